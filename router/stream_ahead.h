// StreamAhead: the mean time of a token over the life of a stream, from the state of its decode
// worker at the placement and from what arrives at present. Rows that run now end one by one; new
// requests bring rows, and prompts that prolong steps. Pure.
#pragma once

#include "common/step_cost.h"
#include "router/recent_load.h"

namespace aisp {

struct StreamAhead {
  StepCost cost;
  // The decode worker, with this request.
  double rows = 1;
  double context = 0;  // KV tokens that a step reads
  double max_rows = 1;
  double age_ms = 0;  // mean time since its other requests were placed
  double more = 0;    // requests that it has more than the mean decode worker
  // This request.
  double prompt_tokens = 0;
  double answer_tokens = 1;  // expected
  double ttft_ms = 0;
  // What arrives: `per_s` for each decode worker, `delay_ms` for the streams of this one.
  RecentLoad::Load load;

  // TPOT in ms.
  double TokenMs() const;
};

}  // namespace aisp
