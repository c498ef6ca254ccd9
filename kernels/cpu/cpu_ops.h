// The operations of kernels/ops.h on the CPU: vectorised loops, for the instruction set that is
// there.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace aisp {

struct CpuOpsOptions {
  // Threads that share one step, the caller among them. One is best for small models and where
  // processes share cores.
  int threads = 1;
};

// INVALID_ARGUMENT: threads out of 1..256.
Result<std::unique_ptr<Ops>> MakeCpuOps(const CpuOpsOptions& options);

}  // namespace aisp
