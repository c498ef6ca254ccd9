// Measures an engine with a real executor: how fast prompts of one length are computed, how long a decode step takes at one
// batch size, and how far that is from what the memory allows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"
#include "engine/engine.h"
#include "engine/model_executor.h"

namespace aisp {

struct EngineBenchOptions {
  int32_t prompt_tokens = 1024;  // ISL
  int32_t output_tokens = 128;   // OSL
  std::vector<int32_t> batches = {1};
  // What the device reads at most, and what a kernel costs in a graph; 0: nothing is compared.
  double read_bytes_per_s = 0;
  double kernel_s = 0;
  bool greedy = true;
};

// One line of the result.
struct EngineBenchResult {
  int32_t batch = 0;
  double prefill_s = 0;  // until the last first token
  double prompt_tokens_per_s = 0;
  double step_ms = 0;  // median of decode steps, wall clock
  double output_tokens_per_s = 0;
  double device_ms = 0;     // of a decode step, on the device's clock; 0 on a CPU
  double idle_percent = 0;  // of the device between decode steps
  double roofline_ms = 0;   // bytes / stream + kernels * cost; 0 without limits
  double roofline_percent = 0;
  double bytes = 0;       // that a decode step has to read
  size_t operations = 0;  // in its graph
};

Result<std::vector<EngineBenchResult>> BenchEngine(const EngineBenchOptions& options,
                                                   ServingExecutor& executor);
// One JSON object.
std::string ToJson(const EngineBenchResult& result);

}  // namespace aisp
