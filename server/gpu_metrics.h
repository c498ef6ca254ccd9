// GpuMetrics: memory, clocks, power and temperature of the GPUs that a worker computes on, as the
// driver's management library (NVML) tells them. Opened at run time: without the library, or
// without a device, there are no such metrics and nothing else changes.
//
// Owns a thread that asks every two seconds, so that neither a scrape nor a step waits for the
// driver. Made once the device is open; ends with its worker.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/metrics.h"

namespace aisp {

class GpuMetrics {
 public:
  struct Options {
    std::vector<int> ordinals;  // as CUDA counts in this process
    Duration interval = std::chrono::seconds(2);
    std::string nvml = "libnvidia-ml.so.1";
    std::string driver = "libcuda.so.1";
  };
  virtual ~GpuMetrics() = default;

  // Measures once before it returns. Null where there is nothing to ask.
  static std::unique_ptr<GpuMetrics> Start(const Options& options, Metrics* metrics);
};

}  // namespace aisp
