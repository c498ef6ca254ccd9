// StreamAhead: the mean time of a token over the life of a stream, from the state of its decode
// worker at the placement and from what arrives meanwhile. Rows that run now end one by one, new
// requests bring rows and prompts. Pure.
#pragma once

#include "common/step_cost.h"
#include "router/recent_load.h"

namespace aisp {

struct StreamAhead {
  StepCost cost;
  // Of the decode worker, with this request.
  double rows = 1;
  double context = 0;
  double max_rows = 1;
  double age_ms = 0;  // mean age of its requests
  // By how many requests it has more than the mean of the decode workers.
  double more = 0;
  double ttft_ms = 0;
  double tokens = 1;       // of its answer, expected
  double prompt = 0;       // its own
  RecentLoad::Load load;   // per decode worker

  double TokenMs() const;
};

}  // namespace aisp
