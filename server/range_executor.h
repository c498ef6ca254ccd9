// Marks an executor's work on a profiler's timeline (NVTX), for Nsight: each step is a range "step
// 512+32" (prompt tokens + decode rows) from its launch, and a range "collect" while the engine
// waits for it. Forwards everything else. One engine thread.
#pragma once

#include <memory>

#include "engine/model_executor.h"
#include "kernels/cuda/load.h"

namespace aisp {

std::unique_ptr<ServingExecutor> WithProfilerRanges(std::unique_ptr<ServingExecutor> executor,
                                                    const ProfilerRanges& ranges);

}  // namespace aisp
