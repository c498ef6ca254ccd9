// ProgressMeter: how far something long is, for a person: a bar on a terminal, redrawn in place, or
// a line every few seconds elsewhere. One thread at a time.
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
  uint64_t total_bytes = 0;  // 0: not known
  double bytes_per_s = 0;    // over the last seconds; 0: not known yet
  std::string note;          // behind it: "2 files by another process"

  // 0 when it is not known.
  double seconds_left() const;
};

// "what  42 % [=====>     ] 6.3 GiB of 14.9 GiB, 240 MiB/s, 37 s left", in `columns` at most. The
// bar goes first where there is no room.
std::string ProgressBar(const ProgressState& state, size_t columns);
// The same without a bar.
std::string ProgressText(const ProgressState& state);
// "37 s", "4 min 10 s", "2 h 5 min".
std::string HumanSeconds(double seconds);

// Whether stderr is a terminal that this process may draw on: one in the background leaves it be.
bool MayDrawOnTerminal();

class ProgressMeter {
 public:
  struct Options {
    bool terminal = false;  // draws on stderr
    // Nothing is shown before this has passed: what is quick needs no bar.
    Duration quiet = std::chrono::milliseconds(300);
    Duration every = std::chrono::seconds(3);  // without a terminal
  };
  // `on_line` is what is called without a terminal.
  ProgressMeter(const Clock* clock, Options options,
                std::function<void(const ProgressState&)> on_line);
  ~ProgressMeter() { Finish(); }
  ProgressMeter(const ProgressMeter&) = delete;
  ProgressMeter& operator=(const ProgressMeter&) = delete;

  // May be called as often as one likes. `done` may go down.
  void Update(const std::string& what, uint64_t done_bytes, uint64_t total_bytes,
              const std::string& note = "");
  // Takes the bar away.
  void Finish();

 private:
  double Rate(Instant now, uint64_t done);

  const Clock* const clock_;
  const Options options_;
  const std::function<void(const ProgressState&)> on_line_;
  const Instant begin_;
  Instant shown_;
  bool drawn_ = false;
  std::deque<std::pair<Instant, uint64_t>> samples_;  // of the last seconds
};

}  // namespace aisp
