// What the backend launched before it had a table: layers queued by the model, chains cut by
// comparing the pointers of inputs and outputs, shorter chains tried one after the other, slots
// offered by the addresses that attention had asked for before. Kept only to compare the table
// with; it shares nothing with the table but the sizes of instances.
#pragma once

#include <string>
#include <vector>

#include "tests/kernels/cuda/table/planned_model.h"

namespace aisp::cuda {

// "one token [4 5 6 7] consumes publishes": one launch per line, for a step after others like it.
std::vector<std::string> LaunchedBefore(const PlannedModel& model, const Bucket& bucket);
// The same from the table.
std::vector<std::string> LaunchedNow(const PlannedModel& model, const Bucket& bucket);

}  // namespace aisp::cuda
