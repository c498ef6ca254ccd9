// What no policy can exceed: work conservation. Pure functions; any thread.
#pragma once

#include <vector>

#include "loadgen/prompts.h"
#include "simulate/profile.h"

namespace aisp::simulate {

// Requests a second at which all workers compute without a pause, where every request of `items` is
// served: each beginning of a prompt that came before is cached wherever it is wanted, for good and
// at no cost; a step's base is shared by as many as it holds at most; nobody waits, nothing moves.
// Beyond it the backlog grows for as long as such requests come. 0: there is nothing to do, or no
// worker.
double WorkConservingRate(const std::vector<Fleet>& fleets,
                          const std::vector<loadgen::WorkItem>& items);

}  // namespace aisp::simulate
