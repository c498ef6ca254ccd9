// ProgressMeter: shows the progress of a long operation, as a bar on a terminal or else as a line
// every few seconds. One thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "common/clock.h"

namespace aisp {

struct ProgressState {
  std::string what;
  uint64_t done_bytes = 0;
  uint64_t total_bytes = 0;  // 0: unknown
  double bytes_per_s = 0;    // recent rate; 0: not known yet
  std::string note;          // shown after it: "2 files by another process"

  // 0 when unknown.
  double seconds_left() const;
};

// "what  42 % [=====>     ] 6.3 GiB of 14.9 GiB, 240 MiB/s, 37 s left", at most `columns` wide. The
// bar is dropped first when there is no room.
std::string ProgressBar(const ProgressState& state, size_t columns);
// The same without a bar.
std::string ProgressText(const ProgressState& state);
// "37 s", "4 min 10 s", "2 h 5 min".
std::string HumanSeconds(double seconds);

// Whether stderr is a terminal and this process is in its foreground.
bool MayDrawOnTerminal();

class ProgressMeter {
 public:
  struct Options {
    bool terminal = false;  // draw on stderr
    // Nothing is shown before this time has passed.
    Duration quiet = std::chrono::milliseconds(300);
    Duration every = std::chrono::seconds(3);  // between lines, when there is no terminal
  };
  // `on_line` is called for each line when there is no terminal.
  ProgressMeter(const Clock* clock, Options options,
                std::function<void(const ProgressState&)> on_line);
  ~ProgressMeter() { Finish(); }
  ProgressMeter(const ProgressMeter&) = delete;
  ProgressMeter& operator=(const ProgressMeter&) = delete;

  // May be called at any rate. `done_bytes` may decrease.
  void Update(const std::string& what, uint64_t done_bytes, uint64_t total_bytes,
              const std::string& note = "");
  // Erases the bar.
  void Finish();

 private:
  double Rate(Instant now, uint64_t done);

  const Clock* const clock_;
  const Options options_;
  const std::function<void(const ProgressState&)> on_line_;
  const Instant begin_;
  Instant shown_;
  bool drawn_ = false;
  std::deque<std::pair<Instant, uint64_t>> samples_;  // of the recent seconds
};

}  // namespace aisp
