// Names what an executor does on a profiler's timeline (NVTX), for runs under Nsight: every step is
// a range "step 512+32" (prompt tokens, decode rows) from its launch, and one "collect" in which
// the engine waits for it. Passes everything else on. One engine thread.
#pragma once

#include <memory>

#include "engine/model_executor.h"
#include "kernels/cuda/load.h"

namespace aisp {

std::unique_ptr<ServingExecutor> WithProfilerRanges(std::unique_ptr<ServingExecutor> executor,
                                                    const ProfilerRanges& ranges);

}  // namespace aisp
