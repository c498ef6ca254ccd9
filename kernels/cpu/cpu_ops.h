// The operations of kernels/ops.h on the CPU: vectorised loops for the available instruction set.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace aisp {

struct CpuOpsOptions {
  // Threads that share one step, including the caller. One is best for small models and if
  // processes share cores.
  int threads = 1;
};

// INVALID_ARGUMENT: threads outside 1..256.
Result<std::unique_ptr<Ops>> MakeCpuOps(const CpuOpsOptions& options);

}  // namespace aisp
