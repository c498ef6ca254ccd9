// Measures the gain of speculation for an engine with a real executor: tokens per second with and
// without draft tokens.
//
// Either a real proposer drafts for given prompts, or the acceptance rate is imposed: a bias on one
// token makes every draw known, and a proposer proposes that token with the wanted probability at
// each position. The bias is on in both runs. A real proposer can do its work in addition.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "common/result.h"
#include "engine/model_executor.h"
#include "speculation/speculator.h"

namespace aisp {

struct SpeculationBenchOptions {
  int32_t prompt_tokens = 1024;
  int32_t output_tokens = 192;
  std::vector<int32_t> batches = {1};
  std::vector<int32_t> lengths = {4};  // maximum draft tokens per sequence and step
  // By position, each given that those before it were accepted; the last one covers all later
  // positions.
  std::vector<double> acceptance = {0.8, 0.77, 0.75, 0.72, 0.7};
  // With imposed acceptance: a proposer that does its work in addition, so that its time counts.
  std::function<Result<std::unique_ptr<Proposer>>()> make_proposer;
  // Not empty: acceptance is not imposed. Each run begins with a new Speculator, and sequence i has
  // prompt i, starting again after the last prompt.
  std::vector<std::vector<TokenId>> prompts;
  std::function<Result<std::shared_ptr<Speculator>>(int32_t length, bool adaptive)> make;
  float temperature = 0;  // for real prompts
  // Rounds per run, each with the next prompts. Runs with and without draft tokens alternate, so
  // that other load on the machine affects both.
  int32_t rounds = 1;
  // Rounds before the measured ones, for each run: they capture graphs and learn step times, as in
  // a server that has run for a while.
  int32_t warm_up_rounds = 0;
};

struct SpeculationBenchRow {
  int32_t batch = 0;
  int32_t length = 0;
  bool adaptive = false;   // the speculator chooses the number of verified tokens; false: all
  double plain_per_s = 0;  // output tokens per second without draft tokens
  double per_s = 0;        // with draft tokens
  double speedup = 0;
  // The speed-up by CPU time of the process's threads, which other processes do not affect. No
  // meaning if a GPU computes, or if threads wait for each other.
  double cpu_speedup = 0;
  double tokens_per_step = 0;  // per sequence, in steps that verified any of its tokens
  double acceptance = 0;       // fraction of verified tokens that were accepted
  double step_ms = 0;          // mean
  double plain_step_ms = 0;
  double device_ms = 0;   // of step_ms, on the device
  double propose_ms = 0;  // of step_ms, in the proposer
  // BreakEven of steps that verify drafts of the full length; NaN where lengths vary (adaptive, or
  // drafts for real prompts).
  double break_even = std::numeric_limits<double>::quiet_NaN();
};

// The acceptance rate, equal at every position, at which steps that cost `cost` plain steps and
// verify `length` draft tokens bring as many tokens per second as plain steps; infinity: even if
// all are accepted they bring fewer.
double BreakEven(double cost, int32_t length);

// Rows by batch, length, and adaptive or not. INVALID_ARGUMENT: a probability outside [0, 1], a
// batch or length below 1. INTERNAL: on the CPU, an answer to a real prompt differed between runs
// with and without draft tokens.
Result<std::vector<SpeculationBenchRow>> BenchSpeculation(const SpeculationBenchOptions& options,
                                                          ServingExecutor& executor);
std::string ToTable(const std::vector<SpeculationBenchRow>& rows);
// As a JSON array.
std::string ToJson(const std::vector<SpeculationBenchRow>& rows);

}  // namespace aisp
