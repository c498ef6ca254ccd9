// GrowthBound: while it lives, the automata of a grammar grow by so much work and no more. States
// are made as they are met, on the thread that everybody's steps wait for; beyond the bound, places
// that were not met before count as dead ends and are made another time. So a mask that needs more
// lacks some long tokens; what it has may follow, and tokens of one byte are always there.
#pragma once

#include "constrain/language.h"

namespace aisp {

class GrowthBound {
 public:
  explicit GrowthBound(Languages* languages) : languages_(*languages) {
    languages_.BoundGrowth(kMostWork);
  }
  ~GrowthBound() { languages_.BoundGrowth(Languages::kAnyWork); }
  GrowthBound(const GrowthBound&) = delete;
  GrowthBound& operator=(const GrowthBound&) = delete;

 private:
  static constexpr uint64_t kMostWork = 500'000;  // derivations: some tens of milliseconds
  Languages& languages_;
};

}  // namespace aisp
