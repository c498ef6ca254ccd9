// What the NVIDIA driver says about this machine's GPUs, asked through libcuda.so.1 opened at run
// time, without a context on any GPU: for `aisp doctor`. Main thread.
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
  std::vector<int> unreachable;  // other GPUs whose memory it cannot read
  int capability = 0;            // 90: Hopper
};

struct DriverFacts {
  int cuda_version = 0;  // 13000: what the driver can run
  std::vector<GpuFacts> gpus;
};

// NOT_FOUND: there is no driver; UNAVAILABLE: it does not work, and what it says.
Result<DriverFacts> ProbeDriver();

}  // namespace aisp
