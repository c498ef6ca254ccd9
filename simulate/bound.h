// What no policy can exceed: work conservation. Pure functions; any thread.
#pragma once

#include <vector>

#include "loadgen/prompts.h"
#include "simulate/profile.h"

namespace aisp::simulate {

// Requests a second at which no worker pauses, where all of `items` are served. What came before is
// cached everywhere for good, a step's base shared by as many as it holds; nothing moves or waits.
// Beyond it the backlog grows. 0: there is nothing to do, or no worker.
double WorkConservingRate(const std::vector<Fleet>& fleets,
                          const std::vector<loadgen::WorkItem>& items);

}  // namespace aisp::simulate
