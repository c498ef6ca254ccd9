// SseReader: parses a text/event-stream body into events (WHATWG HTML, "Server-sent events",
// section "Interpreting an event stream"). Lines end in LF, CRLF or CR, wherever the body is split;
// comments and unknown fields are skipped. An event is dispatched at its empty line, so an
// incomplete event of a cut stream is never seen.
//
// Differences from the standard: an event with an id or a name and no data is returned too, and ids
// do not carry over to later events. Sans I/O; one thread at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "common/result.h"

namespace aisp {

// One event; several data lines are joined by newlines.
struct SseEvent {
  std::string id;
  std::string event;
  std::string data;
  bool empty() const { return id.empty() && event.empty() && data.empty(); }
};

class SseReader {
 public:
  // Limit of a line or event, since the peer is not trusted with our memory.
  static constexpr size_t kMaxEventBytes = 16u << 20;
  explicit SseReader(size_t max_event_bytes = kMaxEventBytes) : max_event_bytes_(max_event_bytes) {}

  void Feed(std::string_view bytes);
  // The next complete event; nullopt: feed more. RESOURCE_EXHAUSTED, permanently, above the limit.
  Result<std::optional<SseEvent>> Next();

 private:
  // The next complete line without its end; nullopt: none yet. Valid until the next call.
  std::optional<std::string_view> NextLine();
  void AddField(std::string_view line);

  size_t max_event_bytes_;
  std::string text_;
  size_t begin_ = 0;    // start of the unconsumed part of text_
  size_t scanned_ = 0;  // no line end before this position
  bool skip_lf_ = false;
  bool has_data_ = false;
  SseEvent event_;
};

}  // namespace aisp
