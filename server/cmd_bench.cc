// `aisp bench`: what this machine can do, and how near the engine comes. Everything it prints on stdout is one JSON object.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <thread>

#include "common/log.h"
#include "common/strings.h"
#include "config/command_line.h"
#include "engine/async_executor.h"
#include "kernels/cuda/load.h"
#include "server/backend.h"
#include "server/bench_engine.h"
#include "server/commands.h"
#include "server/process.h"
#include "server/served_model.h"

namespace aisp {
namespace {

constexpr std::array<ExtraFlag, 5> kExtras = {{
    {"--isl", "N", "Prompt tokens of each sequence (engine); 1024 without it."},
    {"--osl", "N", "Tokens drawn for each sequence (engine); 128 without it."},
    {"--batch", "LIST", "Batch sizes (engine), as 1,8,32; 1 without it."},
    {"--rounds", "N",
     "Also a closed loop (engine): the batch's requests at a time, N from each, with the "
     "server's settings."},
    {"--read-tbps", "X", "TB/s that the GPU reads at most; measured without it."},
}};

std::string Help() {
  constexpr std::array<std::string_view, 2> kPrefixes = {"model.", "engine."};
  return "aisp bench limits|engine [flags]\n\n"
         "limits: what the GPU reads, copies and multiplies at most.\n"
         "engine: time of prompts and of decode steps; with --weights random:SEED --model SHAPE, "
         "of "
         "any shape in config/models.\n\n" +
         HelpForSettings(kPrefixes, kExtras);
}

std::vector<std::string> BackendFolders() {
  const std::string here = ExecutableFolder();
  return {here + "/../lib", here};
}

Result<std::vector<int32_t>> BatchesOf(const CommandLine& line) {
  if (!line.HasExtra("batch")) return std::vector<int32_t>{1};
  std::vector<int32_t> batches;
  const std::string list{line.Extra("batch")};
  std::string_view text = list;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    AISP_ASSIGN_OR_RETURN(const int64_t n, ParseIntInRange(text.substr(0, comma), 1, 4096));
    batches.push_back(static_cast<int32_t>(n));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return batches;
}

Result<int32_t> NumberOf(const CommandLine& line, std::string_view name, int32_t otherwise) {
  if (!line.HasExtra(name)) return otherwise;
  AISP_ASSIGN_OR_RETURN(const int64_t n, ParseIntInRange(line.Extra(name), 1, 1 << 20));
  return static_cast<int32_t>(n);
}

std::string ToJson(const CudaLimits& l) {
  return fmt::format(
      "{{\"device\": \"{}\", \"read_tb_per_s\": {:.3f}, \"copy_tb_per_s\": {:.3f}, "
      "\"host_gb_per_s\": {:.1f}, \"bf16_tflops\": {:.1f}, \"graph_kernel_us\": {:.3f}}}",
      l.device, l.read_bytes_per_s * 1e-12, l.copy_bytes_per_s * 1e-12, l.host_bytes_per_s * 1e-9,
      l.bf16_flops_per_s * 1e-12, l.graph_kernel_s * 1e6);
}

Status RunLimits() {
  AISP_ASSIGN_OR_RETURN(const CudaLimits limits, MeasureCudaLimits(0, BackendFolders()));
  fmt::print("{}\n", ToJson(limits));
  return {};
}

// Room for the largest batch, and no more than the measurement needs.
void FitConfig(const EngineBenchOptions& o, Config* config) {
  const int64_t batch = *std::max_element(o.batches.begin(), o.batches.end());
  const int64_t tokens = int64_t{o.prompt_tokens} + o.output_tokens + 2;
  config->engine.max_sequences = batch;
  config->engine.max_batch_tokens =
      std::max(config->engine.max_batch_tokens, std::max<int64_t>(batch, 2048));
  config->model.max_model_len = tokens;
  config->engine.kv_blocks =
      batch * ((tokens + config->engine.block_tokens - 1) / config->engine.block_tokens + 1);
}

Status RunEngine(CommandLine line) {
  EngineBenchOptions options;
  AISP_ASSIGN_OR_RETURN(options.prompt_tokens, NumberOf(line, "isl", options.prompt_tokens));
  AISP_ASSIGN_OR_RETURN(options.output_tokens, NumberOf(line, "osl", options.output_tokens));
  AISP_ASSIGN_OR_RETURN(options.batches, BatchesOf(line));
  AISP_ASSIGN_OR_RETURN(options.rounds, NumberOf(line, "rounds", 0));
  FitConfig(options, &line.config);
  AISP_ASSIGN_OR_RETURN(const auto served, LoadServedModel(line.config));
  options.serving = EngineOptionsOf(line.config, *served);
  const SteadyClock clock;
  const Instant begin = clock.Now();
  if (line.HasExtra("read-tbps")) {
    AISP_ASSIGN_OR_RETURN(const double tbps, ParseDouble(line.Extra("read-tbps")));
    options.read_bytes_per_s = tbps * 1e12;
    options.kernel_s = 0.52e-6;
  } else if (const auto limits = MeasureCudaLimits(0, BackendFolders());
             limits && line.config.model.device != "cpu") {
    options.read_bytes_per_s = limits->read_bytes_per_s;
    options.kernel_s = limits->graph_kernel_s;
  }
  AISP_ASSIGN_OR_RETURN(const Backend backend, MakeBackend(line.config, *served));
  const double load_s = ToSeconds(clock.Now() - begin);
  AISP_ASSIGN_OR_RETURN(const auto results, BenchEngine(options, *backend.executor));
  std::vector<std::string> runs;
  for (const EngineBenchResult& r : results) runs.push_back(ToJson(r));
  const KvLayout& kv = backend.executor->kv_layout();
  fmt::print(
      "{{\"bench\": \"engine\", \"version\": \"{}\", \"model\": \"{}\", \"device\": \"{}\", "
      "\"kernels\": \"{}\", \"cores\": {}, \"compute_dtype\": \"{}\", \"quantization\": \"{}\", "
      "\"kv_dtype\": \"{}\", \"block_tokens\": {}, \"isl\": {}, \"osl\": {}, \"load_s\": {:.2f}, "
      "\"weight_bytes\": {}, \"read_tb_per_s\": {:.3f}, \"runs\": [{}]}}\n",
      Version(), served->name, backend.device->info().name, backend.ops->Describe(),
      std::thread::hardware_concurrency(), DTypeName(backend.executor->model().compute_dtype()),
      line.config.model.quantization, DTypeName(kv.dtype), kv.block_tokens, options.prompt_tokens,
      options.output_tokens, load_s, backend.executor->model().weight_bytes(),
      options.read_bytes_per_s * 1e-12, Join(runs, ", "));
  return {};
}

}  // namespace

int RunBench(const std::vector<std::string>& args) {
  auto line = ParseCommandLine(args, kExtras);
  if (!line) return ReportUsageError("bench", line.error().message);
  if (AnswerCommonFlags(*line, Help())) return 0;
  if (line->positional.size() != 1 ||
      (line->positional[0] != "limits" && line->positional[0] != "engine")) {
    return ReportUsageError("bench", "wants one of: limits, engine");
  }
  LogSession log({.level = LogLevel::kWarning});
  const Status done = line->positional[0] == "limits" ? RunLimits() : RunEngine(*line);
  if (!done) return ReportFailure(done.error().message);
  return 0;
}

}  // namespace aisp
