// GrowthBound: limits, while it exists, the work of building a grammar's automata. States are built
// on the thread that all steps wait for. Beyond the limit unseen states count as dead and are built
// another time. So a costly mask may lack some long tokens; those it has are allowed, and tokens of
// one byte are always there.
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
