// Measures an engine with a real executor: how long single prompts of one length take, how long a
// decode step takes at one batch size, and how far that is from what the memory allows; and the
// engine as a server uses it, in a closed loop: so many requests at a time, each followed by
// another, prompts and all. What aisp-loadgen sees over HTTP is to be held against that.
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
  // What the device reads at most, and what a kernel costs in a graph; 0: nothing is compared.
  double read_bytes_per_s = 0;
  double kernel_s = 0;
  bool greedy = true;
  std::vector<std::string> adapters = {};  // digests that sequences take in turn
  // Of the closed loop: requests that each of the `batch` streams sends one after the other; 0: it
  // is not run.
  int32_t rounds = 0;
  EngineOptions serving;  // as a server with these settings would have them
};

struct PromptBenchOptions {
  int32_t tokens = 1024;
  int32_t count = 6;  // of rested prompts, and of those back to back; two or more
  // Between rested prompts: matrix work draws down the clocks of a GPU for a while, and a prompt
  // alone finds them high.
  std::chrono::milliseconds rest{300};
  uint64_t seed = 1;
  std::string adapter = {};  // its digest; "": none
};

// Prompts of one length, one at a time, each of other random tokens: from handing one to the engine
// until its first token is there.
struct PromptTimes {
  int32_t tokens = 0;
  int32_t count = 0;
  double first_ms = 0;         // the first since the executor was made, if nothing ran before
  double rested_ms = 0;        // median of the others that came after a rest
  double back_to_back_ms = 0;  // median of those that followed at once
  double device_ms = 0;        // of rested ones, median: in steps by the device's clock; 0 on a CPU
};

// The whole run of a closed loop.
// What the device did in all steps of a kind.
struct StepKind {
  uint64_t steps = 0;
  double device_s = 0;
  int64_t decode_rows = 0;
  int64_t prompt_tokens = 0;
};

struct ClosedLoopResult {
  int32_t streams = 0;
  int32_t requests = 0;
  double seconds = 0;
  double output_tokens_per_s = 0;  // prompts included in the time
  double ttft_ms = 0;              // mean
  uint64_t steps = 0;
  double mixed_percent = 0;  // of the steps, those with prompt tokens
  double step_ms = 0;        // mean
  StepKind decoding, mixed;  // steps without prompt tokens, and with
  // What the host does in a step, mean: planning and bookkeeping, and handing the step to the
  // device.
  double overhead_us = 0;
  double launch_us = 0;
  double idle_percent = 0;  // of the device between steps; 0 on a CPU
};

// One line of the result.
struct EngineBenchResult {
  int32_t batch = 0;
  double prefill_s = 0;  // of all `batch` prompts together, until the last first token
  double prompt_tokens_per_s = 0;
  double step_ms = 0;  // median of decode steps, wall clock
  double output_tokens_per_s = 0;
  double device_ms = 0;     // of a decode step, on the device's clock; 0 on a CPU
  double idle_percent = 0;  // of the device between decode steps
  double roofline_ms = 0;   // bytes / stream + kernels * cost; 0 without limits
  double roofline_percent = 0;
  double bytes = 0;       // that a decode step has to read
  size_t operations = 0;  // in its graph
  std::optional<ClosedLoopResult> closed_loop;
};

Result<PromptTimes> BenchPrompts(const PromptBenchOptions& options, ServingExecutor& executor);

Result<std::vector<EngineBenchResult>> BenchEngine(const EngineBenchOptions& options,
                                                   ServingExecutor& executor);
// One JSON object.
std::string ToJson(const PromptTimes& times);
std::string ToJson(const EngineBenchResult& result);

}  // namespace aisp
