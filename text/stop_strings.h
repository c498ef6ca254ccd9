// Finds stop strings in a stream of text. A possible beginning of a stop string is held back until
// it is decided, so a client never sees a part of one. One owner (one choice), not thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace aisp {

class StopMatcher {
 public:
  // Empty strings in `stops` are ignored. `include_stop`: outputs the stop string too.
  explicit StopMatcher(std::vector<std::string> stops, bool include_stop = false);

  struct Output {
    std::string text;      // safe to send
    bool stopped = false;  // a stop string was found; the text after it is dropped
    std::string stop;      // which one
  };
  // Adds text. The match that ends first wins; among those that end together, the longest. After
  // `stopped`, further text gives nothing.
  Output Push(std::string_view text);

  // Ends the stream: returns the text held back, which is no stop string.
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
