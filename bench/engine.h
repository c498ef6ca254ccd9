// Measures an engine with a real executor: the time of single prompts, the time of a decode step at
// one batch size and its ratio to the memory bound, and throughput in a closed loop as in a server:
// a fixed number of concurrent requests, each followed by another, with prefill. This is the
// reference for what aisp-loadgen measures over HTTP.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
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
  // The device's read bandwidth and the cost of a kernel in a graph; 0: no comparison.
  double read_bytes_per_s = 0;
  double kernel_s = 0;
  bool greedy = true;
  std::vector<std::string> adapters = {};  // digests, assigned to sequences in turn
  // Requests per stream in the closed loop of `batch` streams; 0: not run.
  int32_t rounds = 0;
  EngineOptions serving;  // settings of a server, for the closed loop
};

struct PromptBenchOptions {
  int32_t tokens = 1024;
  int32_t count = 6;  // of rested prompts, and of back-to-back prompts; at least two
  // Pause before a rested prompt: matrix products lower a GPU's clocks for a while, and a prompt on
  // an idle GPU runs at high clocks.
  std::chrono::milliseconds rest{300};
  uint64_t seed = 1;
  std::string adapter = {};  // digest; "": none
};

// Time from submitting a prompt to its first token, one prompt at a time, with different random
// tokens.
struct PromptTimes {
  int32_t tokens = 0;
  int32_t count = 0;
  double first_ms = 0;         // the first prompt of the executor, if nothing ran before
  double rested_ms = 0;        // median of the others that came after a pause
  double back_to_back_ms = 0;  // median of those without a pause
  double device_ms = 0;        // median of rested ones: device time of steps; 0 on a CPU
};

// Totals over all steps of one kind in a closed loop.
struct StepKind {
  uint64_t steps = 0;
  double device_s = 0;
  int64_t decode_rows = 0;
  int64_t prompt_tokens = 0;
};

// The whole run of a closed loop.
struct ClosedLoopResult {
  int32_t streams = 0;
  int32_t requests = 0;
  double seconds = 0;
  double output_tokens_per_s = 0;  // over the whole time, prefill included
  double ttft_ms = 0;              // mean
  uint64_t steps = 0;
  double mixed_percent = 0;  // steps with prefill rows
  double step_ms = 0;        // mean
  StepKind decoding, mixed;  // steps without and with prefill rows
  // Mean host time per step: planning and bookkeeping, and launching the step on the device.
  double overhead_us = 0;
  double launch_us = 0;
  double idle_percent = 0;  // device idle between steps; 0 on a CPU
};

// One row of the result.
struct EngineBenchResult {
  int32_t batch = 0;
  double prefill_s = 0;  // of all `batch` prompts together, until the last first token
  double prompt_tokens_per_s = 0;
  double step_ms = 0;  // median of decode steps, wall clock
  double output_tokens_per_s = 0;
  double device_ms = 0;     // of a decode step, device clock; 0 on a CPU
  double idle_percent = 0;  // device idle between decode steps
  double roofline_ms = 0;   // bytes / bandwidth + kernels * cost; 0 without limits
  double roofline_percent = 0;
  double bytes = 0;       // read by a decode step
  size_t operations = 0;  // in its graph
  std::optional<ClosedLoopResult> closed_loop;
};

Result<PromptTimes> BenchPrompts(const PromptBenchOptions& options, ServingExecutor& executor);

Result<std::vector<EngineBenchResult>> BenchEngine(const EngineBenchOptions& options,
                                                   ServingExecutor& executor);
// As one JSON object.
std::string ToJson(const PromptTimes& times);
std::string ToJson(const EngineBenchResult& result);

}  // namespace aisp
