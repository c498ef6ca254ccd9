// `aisp bench kernels`: the operations of a model's shape on a GPU, each beside what the memory or
// the tensor cores allow and beside cuBLASLt (bench/kernel_timings.h), as a table or as JSON.
#pragma once

#include <span>
#include <string>

#include "bench/kernel_timings.h"
#include "model/spec.h"

namespace aisp {

// The first layer's shape. UNIMPLEMENTED: a shape whose layers are not grouped attention with a
// gated MLP.
Result<KernelBenchOptions> KernelBenchOptionsOf(const ModelSpec& spec);

// A table with the environment above it; it ends with a line break.
std::string ToTable(const KernelBench& bench, const std::string& model);
// One JSON object; it ends with a line break.
std::string ToJson(const KernelBench& bench, const std::string& model);

}  // namespace aisp
