// GpuMetrics: memory, clocks, power and temperature of a worker's GPUs, from NVML. NVML is opened
// at run time; without it or without a device there are no such metrics.
//
// Owns a thread that polls every two seconds, so that neither a scrape nor a step waits for the
// driver. Created once the device is open; ends with its worker.
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
    std::vector<int> ordinals;  // as numbered by CUDA in this process
    Duration interval = std::chrono::seconds(2);
    std::string nvml = "libnvidia-ml.so.1";
    std::string driver = "libcuda.so.1";
  };
  virtual ~GpuMetrics() = default;

  // Takes the first sample before it returns. Null when there is nothing to measure.
  static std::unique_ptr<GpuMetrics> Start(const Options& options, Metrics* metrics);
};

}  // namespace aisp
