// Facts about this machine's GPUs from the NVIDIA driver: opens libcuda.so.1 at run time and
// creates no context. For `aisp doctor`. Main thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"

namespace aisp {

struct GpuFacts {
  std::string name;
  uint64_t memory_bytes = 0;
  std::string pci;               // "0000:18:00.0", lower case
  std::vector<int> unreachable;  // GPUs whose memory it cannot access
  int capability = 0;            // compute capability; 90: Hopper
};

struct DriverFacts {
  int cuda_version = 0;  // 13000: the newest CUDA version that the driver supports
  std::vector<GpuFacts> gpus;
};

// NOT_FOUND: no driver; UNAVAILABLE: it does not work, with its error.
Result<DriverFacts> ProbeDriver();

}  // namespace aisp
