// Stop strings over a stream of text. What may be the beginning of a stop string is held back until
// it is clear that it is none, so a client never sees part of one. One owner (one choice), not
// thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace aisp {

class StopMatcher {
 public:
  // Empty strings in `stops` are ignored. `include_stop`: the stop string that ends the text is
  // given out too.
  explicit StopMatcher(std::vector<std::string> stops, bool include_stop = false);

  struct Output {
    std::string text;      // safe to send
    bool stopped = false;  // a stop string was found; everything behind it is dropped
    std::string stop;      // which one
  };
  // Takes the next text. The earliest end of any stop string decides; of those that end there, the
  // one that begins first. After `stopped`, further text gives nothing.
  Output Push(std::string_view text);

  // Ends the stream: what was held back, which turned out to be no stop string.
  std::string Flush();

  bool stopped() const { return stopped_; }
  // Bytes held back.
  size_t held_bytes() const { return held_.size(); }

 private:
  // Knuth-Morris-Pratt: of each stop string, how much of it ends at the last byte seen.
  struct Pattern {
    std::string text;
    std::vector<size_t> failure;
    size_t matched = 0;
  };

  std::vector<Pattern> patterns_;
  bool include_stop_;
  bool stopped_ = false;
  std::string held_;
};

}  // namespace aisp
