// Measures what speculation brings an engine with a real executor: tokens per second with proposed
// tokens and without, where as many of them as asked for are accepted.
//
// Either a real proposer speaks, over prompts that are given, or acceptance is imposed: a bias on
// one token makes every draw known, and a proposer names that token with the wanted probability at
// each position. The bias changes logits in both runs. A real proposer can work beside it.
#pragma once

#include <cstdint>
#include <functional>
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
  std::vector<int32_t> lengths = {4};  // proposed tokens of a sequence and step, at most
  // By position, each given that those before it were accepted; the last one is for all behind it.
  std::vector<double> acceptance = {0.8, 0.77, 0.75, 0.72, 0.7};
  // Where acceptance is imposed: a proposer that does its work beside, so that its time counts.
  std::function<Result<std::unique_ptr<Proposer>>()> make_proposer;
  // Not empty: acceptance is not imposed. Each run begins with a fresh Speculator, and sequence i
  // of it has prompt i, from the front again behind the last.
  std::vector<std::vector<TokenId>> prompts;
  std::function<Result<std::shared_ptr<Speculator>>(int32_t length, bool adaptive)> make;
  float temperature = 0;  // of real prompts
  // Of each run; every one with the prompts that follow. Runs without proposed tokens take turns
  // with those that have them, so that other work of the machine hits both.
  int32_t rounds = 1;
  // In front of the measured ones: what makes graphs and learns what steps cost, as a server has
  // long done. Each run has them for itself.
  int32_t warm_up_rounds = 0;
};

struct SpeculationBenchRow {
  int32_t batch = 0;
  int32_t length = 0;
  bool adaptive = false;   // as many as pay are verified; false: all
  double plain_per_s = 0;  // output tokens per second without proposed tokens
  double per_s = 0;        // and with them
  double speedup = 0;
  // The same by time of the process's threads on the CPU, which other processes do not take; says
  // nothing where a GPU computes, or where threads wait for each other.
  double cpu_speedup = 0;
  double tokens_per_step = 0;  // of a sequence, where any of its tokens were verified
  double acceptance = 0;       // of the tokens that were verified, the accepted ones
  double step_ms = 0;          // mean
  double plain_step_ms = 0;
  double device_ms = 0;   // of step_ms, on the device
  double propose_ms = 0;  // of step_ms, in the proposer
};

// Rows by batch, length, and whether lengths are chosen. INVALID_ARGUMENT: a probability out of
// [0, 1], a batch or length below 1. INTERNAL: an answer to a real prompt was another one with
// proposed tokens than without on the CPU.
Result<std::vector<SpeculationBenchRow>> BenchSpeculation(const SpeculationBenchOptions& options,
                                                          ServingExecutor& executor);
std::string ToTable(const std::vector<SpeculationBenchRow>& rows);
// A JSON array.
std::string ToJson(const std::vector<SpeculationBenchRow>& rows);

}  // namespace aisp
