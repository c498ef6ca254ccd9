// What the backend launched before it had a table, as it was decided then: layers queued by the
// model, runs cut by comparing the pointers of inputs and outputs, shorter chains tried one after
// the other, slots offered by the addresses that attention had asked for before. Kept to compare
// the table with; nothing of the table is used here but the sizes of instances.
#pragma once

#include <string>
#include <vector>

#include "tests/kernels/cuda/table/planned_model.h"

namespace aisp::cuda {

// "one token [4 5 6 7] consumes publishes", a launch a line, of a step after others like it.
std::vector<std::string> LaunchedBefore(const PlannedModel& model, const Bucket& bucket);
// The same of what the table says now.
std::vector<std::string> LaunchedNow(const PlannedModel& model, const Bucket& bucket);

}  // namespace aisp::cuda
