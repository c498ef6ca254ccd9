// What a request says of its draws, looked at before it is one of the engine's. Pure functions: any
// thread.
#pragma once

#include <cstdint>

#include "common/result.h"
#include "engine/request.h"

namespace aisp {

// INVALID_ARGUMENT: a parameter that is no number or beyond all sense, so that no draw could follow
// it. The APIs let nothing like it through; routers and decode workers are not believed in this.
Status CheckDraws(const SequenceRequest& request, int32_t vocabulary);

// Makes what passed the check fit to be computed with: no logit overflows when it is divided by
// them. What is drawn is the same.
void FitDraws(SamplingParams* sampling);

}  // namespace aisp
