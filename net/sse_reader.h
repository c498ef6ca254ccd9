// SseReader: the bytes of a text/event-stream body into events (WHATWG HTML, "Server-sent events",
// section "Interpreting an event stream"). Lines end in LF, CRLF or CR, wherever the body was cut;
// comments and unknown fields are skipped; an event is dispatched at its empty line, so what a cut
// stream leaves unfinished is never seen.
//
// Differences: an event with an id or a name and no data is handed out too, and ids do not carry
// over to later events. Sans I/O; one thread at a time.
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
  // A line or an event beyond this many bytes is an error: the peer is not to be trusted with our
  // memory.
  static constexpr size_t kMaxEventBytes = 16u << 20;
  explicit SseReader(size_t max_event_bytes = kMaxEventBytes) : max_event_bytes_(max_event_bytes) {}

  void Feed(std::string_view bytes);
  // The next whole event, nothing when more bytes are needed. RESOURCE_EXHAUSTED: an event is
  // larger than the bound; it stays so.
  Result<std::optional<SseEvent>> Next();

 private:
  // The next whole line without its end; nothing when there is none yet. Valid until the next call.
  std::optional<std::string_view> NextLine();
  void AddField(std::string_view line);

  size_t max_event_bytes_;
  std::string text_;
  size_t begin_ = 0;    // of what was not consumed of text_
  size_t scanned_ = 0;  // up to here there is no line end
  bool skip_lf_ = false;
  bool has_data_ = false;
  SseEvent event_;
};

}  // namespace aisp
