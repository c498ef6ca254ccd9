// An upper bound for every policy: work conservation. Pure functions; any thread.
#pragma once

#include <vector>

#include "loadgen/prompts.h"
#include "simulate/profile.h"

namespace aisp::simulate {

// The request rate per second, serving all `items`, at which every worker is always busy. Assumes
// that all earlier prompts are cached everywhere, full batches that share a step's base cost, and
// free transfers. Beyond it the backlog grows without limit. 0: no work or no worker.
double WorkConservingRate(const std::vector<Fleet>& fleets,
                          const std::vector<loadgen::WorkItem>& items);

}  // namespace aisp::simulate
