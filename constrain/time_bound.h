// TimeBound: while it lives, the automata of a grammar grow for so long and no longer. States are
// made as they are met, on the thread that everybody's steps wait for; beyond the time nothing may
// follow, and the requests of this grammar alone end.
#pragma once

#include <chrono>

#include "constrain/language.h"

namespace aisp {

class TimeBound {
 public:
  explicit TimeBound(Languages* languages) : languages_(*languages) {
    languages_.SetDeadline(std::chrono::steady_clock::now() + kMost);
  }
  ~TimeBound() { languages_.SetDeadline(Languages::TimePoint::max()); }
  TimeBound(const TimeBound&) = delete;
  TimeBound& operator=(const TimeBound&) = delete;

 private:
  static constexpr std::chrono::seconds kMost{1};
  Languages& languages_;
};

}  // namespace aisp
