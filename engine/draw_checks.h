// Checks a request's sampling parameters before the engine accepts it. Pure functions: any thread.
#pragma once

#include <cstdint>

#include "common/result.h"
#include "engine/request.h"

namespace aisp {

// INVALID_ARGUMENT: a parameter that is not a number or so large that no draw is possible. The APIs
// reject these already; requests of routers and decode workers are not trusted.
Status CheckDraws(const SequenceRequest& request, int32_t vocabulary);

// Clamps checked parameters so that no logit overflows when divided by them. Draws do not change.
void FitDraws(SamplingParams* sampling);

}  // namespace aisp
