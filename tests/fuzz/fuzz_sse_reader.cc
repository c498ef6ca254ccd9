// Bodies of event streams, read in pieces. The first byte is the size of a piece: the events must
// be those of the whole body.
#include <vector>

#include "common/check.h"
#include "net/sse_reader.h"
#include "tests/fuzz/fuzz_target.h"

namespace aisp {
namespace {

constexpr size_t kMaxEventBytes = 256;

struct Outcome {
  std::vector<SseEvent> events;
  bool too_large = false;
};

Outcome ReadInPieces(std::string_view body, size_t piece) {
  SseReader reader(kMaxEventBytes);
  Outcome outcome;
  for (size_t at = 0; at < body.size(); at += piece) {
    reader.Feed(body.substr(at, piece));
    for (;;) {
      auto event = reader.Next();
      if (!event) {
        outcome.too_large = true;
        return outcome;
      }
      if (!*event) break;
      AISP_CHECK((*event)->data.size() <= kMaxEventBytes);
      outcome.events.push_back(**event);
    }
  }
  return outcome;
}

}  // namespace

void FuzzOne(std::string_view input) {
  if (input.empty()) return;
  const size_t piece = static_cast<uint8_t>(input[0]) + size_t{1};
  const std::string_view body = input.substr(1);
  const Outcome whole = ReadInPieces(body, body.size() + 1);
  const Outcome pieces = ReadInPieces(body, piece);
  // A long line is refused when its beginning is seen, or, if complete, with the event that it
  // makes too large.
  if (pieces.too_large || whole.too_large) return;
  AISP_CHECK(whole.events.size() == pieces.events.size());
  for (size_t i = 0; i < whole.events.size(); ++i) {
    AISP_CHECK(whole.events[i].id == pieces.events[i].id);
    AISP_CHECK(whole.events[i].event == pieces.events[i].event);
    AISP_CHECK(whole.events[i].data == pieces.events[i].data);
  }
}

}  // namespace aisp
