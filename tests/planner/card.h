// The machine that tests of the planner use.
#pragma once

#include "planner/capacity.h"

namespace aisp::planner {

// Roughly a current GPU: a prompt of 1,024 tokens takes 15 ms, a step of 32 rows 3.6 ms.
inline Machine Card() {
  Machine m;
  m.cost.decode = {2.9, 0.01, 1e-5};
  m.cost.prefill = {3.0, 0.011, 1e-6, 0.01, 1e-5};
  m.chunk_tokens = 2048;
  m.max_running = 256;
  m.kv_tokens = 400'000;
  return m;
}

inline Load LoadOf(double rate, double prompt, double output) {
  return {rate, prompt, prompt, output};
}

inline constexpr Objective kLimits = {300, 12};

}  // namespace aisp::planner
