// JsonScanner: scans JSON text in one pass without a tree, for what is parsed per token or request.
// Views point into the text. Pure; one thread at a time.
#pragma once

#include <charconv>
#include <cstdint>
#include <string_view>

namespace aisp::loadgen {

inline constexpr int kMaxJsonDepth = 64;

// Every function returns false when the text is not JSON; the scanner is then unusable.
class JsonScanner {
 public:
  explicit JsonScanner(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  bool AtEnd() {
    Space();
    return at_ == end_;
  }
  char Peek() {
    Space();
    return at_ == end_ ? '\0' : *at_;
  }
  bool Take(char c) {
    if (Peek() != c) return false;
    ++at_;
    return true;
  }

  // The inside of a string, with escapes.
  bool String(std::string_view* raw) {
    if (!Take('"')) return false;
    const char* from = at_;
    for (; at_ != end_; ++at_) {
      if (*at_ == '"') {
        *raw = {from, static_cast<size_t>(at_ - from)};
        ++at_;
        return true;
      }
      if (*at_ != '\\') continue;
      ++at_;
      if (at_ == end_) return false;
    }
    return false;
  }
  // A number, true, false or null, unparsed.
  bool Word(std::string_view* word) {
    Space();
    const char* from = at_;
    while (at_ != end_ &&
           ((*at_ >= '0' && *at_ <= '9') || (*at_ >= 'a' && *at_ <= 'z') ||
            (*at_ >= 'A' && *at_ <= 'Z') || *at_ == '-' || *at_ == '+' || *at_ == '.')) {
      ++at_;
    }
    *word = {from, static_cast<size_t>(at_ - from)};
    return at_ != from;
  }
  bool Integer(int64_t* value) {
    if (Peek() != '-' && (Peek() < '0' || Peek() > '9')) return Skip();
    std::string_view word;
    if (!Word(&word)) return false;
    std::from_chars(word.data(), word.data() + word.size(), *value);
    return true;
  }
  bool Skip(int depth = 0) {
    std::string_view ignored;
    if (depth > kMaxJsonDepth) return false;
    switch (Peek()) {
      case '"':
        return String(&ignored);
      case '{':
        return Object([&](std::string_view) { return Skip(depth + 1); });
      case '[':
        return Array([&] { return Skip(depth + 1); });
      default:
        return Word(&ignored);
    }
  }
  // Any value, unparsed.
  bool Raw(std::string_view* raw) {
    Space();
    const char* from = at_;
    const bool read = Skip();
    *raw = {from, static_cast<size_t>(at_ - from)};
    return read;
  }
  // Calls `member` at each value, which it must consume. Anything but an object is skipped.
  template <typename Fn>
  bool Object(Fn member) {
    if (Peek() != '{') return Skip();
    ++at_;
    if (Take('}')) return true;
    do {
      std::string_view key;
      if (!String(&key) || !Take(':') || !member(key)) return false;
    } while (Take(','));
    return Take('}');
  }
  template <typename Fn>
  bool Array(Fn element) {
    if (Peek() != '[') return Skip();
    ++at_;
    if (Take(']')) return true;
    do {
      if (!element()) return false;
    } while (Take(','));
    return Take(']');
  }
  // Reads a string into `raw`; skips null and other values.
  bool Text(std::string_view* raw) { return Peek() == '"' ? String(raw) : Skip(); }

 private:
  void Space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }

  const char* at_;
  const char* end_;
};

}  // namespace aisp::loadgen
