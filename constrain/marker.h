// Marker: searches for a text byte by byte (Knuth, Morris, Pratt 1977). Plain data.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace aisp {

class Marker {
 public:
  Marker() = default;
  explicit Marker(std::string text) : text_(std::move(text)), border_(text_.size() + 1, 0) {
    for (size_t i = 1; i < text_.size(); ++i) {
      size_t k = border_[i];
      while (k > 0 && text_[i] != text_[k]) k = border_[k];
      border_[i + 1] = text_[i] == text_[k] ? k + 1 : 0;
    }
  }

  // Length of the marker's prefix that ends at `byte`, after a prefix of length `matched`.
  size_t Next(size_t matched, char byte) const {
    while (matched > 0 && text_[matched] != byte) matched = border_[matched];
    return text_[matched] == byte ? matched + 1 : 0;
  }
  const std::string& text() const { return text_; }

  // Whether, after some text, the marker may end inside `piece` before its last byte.
  bool MayEndInside(std::string_view piece) const {
    for (size_t end = 1; end < piece.size(); ++end) {
      const size_t common = end < text_.size() ? end : text_.size();
      if (piece.substr(end - common, common) ==
          std::string_view(text_).substr(text_.size() - common)) {
        return true;
      }
    }
    return false;
  }

 private:
  std::string text_;
  std::vector<size_t> border_;
};

}  // namespace aisp
