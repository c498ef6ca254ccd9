// StepObserver: is told of every step of a worker, e.g. to log it. Called on the engine's thread.
#pragma once

#include "common/clock.h"
#include "engine/engine.h"

namespace aisp {

class StepObserver {
 public:
  virtual ~StepObserver() = default;

  // `end`: when the step was collected. Must not block.
  virtual void OnStep(const StepTiming& timing, Instant end) = 0;
};

}  // namespace aisp
