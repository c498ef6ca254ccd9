// `aisp bench kernels`: the operations of a model's shape on a GPU, each compared with the bound of
// memory or tensor cores and with cuBLASLt (bench/kernel_timings.h), as a table or as JSON.
#pragma once

#include <span>
#include <string>

#include "bench/kernel_timings.h"
#include "model/spec.h"

namespace aisp {

// The shape of the first layer. UNIMPLEMENTED: the layers are not grouped attention with a gated
// MLP.
Result<KernelBenchOptions> KernelBenchOptionsOf(const ModelSpec& spec);

// A table below the environment; ends with a line break.
std::string ToTable(const KernelBench& bench, const std::string& model);
// One JSON object; ends with a line break.
std::string ToJson(const KernelBench& bench, const std::string& model);

}  // namespace aisp
