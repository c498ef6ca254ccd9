#include "net/sse_reader.h"

#include <algorithm>
#include <string>
#include <utility>

namespace aisp {

void SseReader::Feed(std::string_view bytes) {
  if (begin_ > 0 && begin_ * 2 >= text_.size()) {
    text_.erase(0, begin_);
    scanned_ -= begin_;
    begin_ = 0;
  }
  text_ += bytes;
}

std::optional<std::string_view> SseReader::NextLine() {
  // Skip the LF of a CRLF whose CR ended the previous line, perhaps in an earlier piece.
  if (skip_lf_ && begin_ < text_.size()) {
    if (text_[begin_] == '\n') ++begin_;
    skip_lf_ = false;
  }
  scanned_ = std::max(scanned_, begin_);
  const size_t end = text_.find_first_of("\r\n", scanned_);
  if (end == std::string::npos) {
    scanned_ = text_.size();
    return std::nullopt;
  }
  const std::string_view line = std::string_view(text_).substr(begin_, end - begin_);
  skip_lf_ = text_[end] == '\r';
  begin_ = scanned_ = end + 1;
  return line;
}

void SseReader::AddField(std::string_view line) {
  const size_t colon = line.find(':');
  const std::string_view field = line.substr(0, colon);
  std::string_view value;
  if (colon != std::string_view::npos) value = line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (field == "data") {
    if (std::exchange(has_data_, true)) event_.data += '\n';
    event_.data += value;
  }
  if (field == "id") event_.id = value;
  if (field == "event") event_.event = value;
}

Result<std::optional<SseEvent>> SseReader::Next() {
  const auto too_large = [&] {
    return Fail(Code::kResourceExhausted, "an event of the stream is larger than the bound of " +
                                              std::to_string(max_event_bytes_) + " bytes");
  };
  if (event_.data.size() > max_event_bytes_) return too_large();
  while (const auto line = NextLine()) {
    if (line->empty()) {
      if (std::exchange(has_data_, false) || !event_.empty()) return std::exchange(event_, {});
      continue;
    }
    AddField(*line);
    if (event_.data.size() > max_event_bytes_) return too_large();
  }
  if (text_.size() - begin_ > max_event_bytes_) return too_large();
  return std::nullopt;
}

}  // namespace aisp
