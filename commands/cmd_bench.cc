// `aisp bench`: measures this machine, and how close kernels and engine come to it. Prints one JSON
// object to stdout, except for the tables of `kernels` and `prefill`.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <thread>

#include "bench/engine.h"
#include "bench/kernels.h"
#include "bench/prefill.h"
#include "bench/quality.h"
#include "bench/speculation.h"
#include "commands/bench_kv.h"
#include "commands/bench_route.h"
#include "commands/commands.h"
#include "common/log.h"
#include "common/strings.h"
#include "common/version.h"
#include "config/command_line.h"
#include "engine/async_executor.h"
#include "kernels/cuda/load.h"
#include "model/files.h"
#include "server/backend.h"
#include "server/device_defaults.h"
#include "server/process.h"
#include "server/served_model.h"
#include "server/speculation.h"

namespace aisp {
namespace {

constexpr std::array<ExtraFlag, 24> kExtras = {{
    {"--isl", "N",
     "Prompt tokens of each sequence (engine); 1024 without it. A list (prefill): 1024,8000."},
    {"--prompts", "N",
     "Prompts timed one by one, after a rest and without (engine, prefill); 6 without it."},
    {"--osl", "N", "Tokens drawn for each sequence (engine); 128 without it."},
    {"--batch", "LIST", "Batch sizes (engine), as 1,8,32; 1 without it."},
    {"--rounds", "N",
     "Also a closed loop (engine): the batch's requests at a time, N from each, with the "
     "server's settings. Runs with proposed tokens and without take turns so often (spec); each "
     "time the texts of --text that follow."},
    {"--warm-up", "N",
     "Rounds (spec) in front of those that are measured, in which graphs are made and lengths are "
     "learnt; 0 without it."},
    {"--text", "FILE",
     "What is scored (quality). Prompts (spec), for the proposer of --speculative-config."},
    {"--temperature", "X", "Of answers to --text (spec); 0 without it."},
    {"--rows", "N", "Tokens a step (quality): 1 as decoding, more as prompts; 256 without it."},
    {"--against", "DTYPE",
     "Also with weights and KV in this format (quality), as bf16: how often both hold the same "
     "token likeliest."},
    {"--only", "NAME", "Operations with this in their name (kernels)."},
    {"--drafts", "LIST", "Proposed tokens of a step (spec), as 2,4,8; 4 without it."},
    {"--acceptance", "LIST",
     "Probability that a draft token is accepted, by position (spec); 0.8,0.77,0.75,0.72,0.7 "
     "without "
     "it."},
    {"--lanes", "LIST",
     "KV lanes (kv); shm,ucx,tcp,tcp-check without it, cuda_ipc with --gpus. tcp-check: tcp with "
     "the checksums that it has between machines."},
    {"--gpus", "W,O",
     "Pools in the memory of these GPUs (kv): the writer's and the owner's, as 0,1; in host memory "
     "without it."},
    {"--shapes", "LIST",
     "Writes (kv), as 64x16,256x512: KiB of a block x blocks; Llama-3.1-8B's without it."},
    {"--decode", "N", "Decode workers (route); 256 without it."},
    {"--prefill", "N", "Prefill workers (route); none without it."},
    {"--requests", "N", "Requests (route); 20000 without it."},
    {"--rate", "N", "Of them a second of simulated time (route); 10000 without it."},
    {"--prefixes", "N", "Different beginnings of --isl tokens (route); 1000 without it."},
    {"--policy", "NAME", "Routing policy (route); cost without it."},
    {"--json", "", "JSON instead of a table (kernels, prefill, spec, kv, route)."},
    {"--read-tbps", "X", "TB/s that the GPU reads at most; measured without it."},
}};

std::string Help() {
  constexpr std::array<std::string_view, 2> kPrefixes = {"model.", "engine."};
  return "aisp bench limits|kernels|prefill|engine|quality|spec|kv|route [flags]\n\n"
         "limits: what the GPU reads, copies and multiplies at most.\n"
         "kernels: each operation of --model SHAPE on the GPU, beside its floor and cuBLASLt.\n"
         "prefill: a prompt of --model SHAPE on the GPU beside the sum of its parts, each timed "
         "alone.\n"
         "quality: the mean negative log-likelihood of a text.\n"
         "spec: tokens per second with proposed tokens and without, where as many are accepted "
         "as --acceptance says, or, with --text and --speculative-config, as really are. With "
         "--speculative-config alone its proposer works, and --acceptance still says what is "
         "accepted. break-even: the acceptance rate at which such steps cost what they bring.\n"
         "kv: what the KV lanes carry between two processes of this machine, beside memcpy, a bare "
         "socket or a copy between the GPUs.\n"
         "route: what the router takes to place a request and to hear of it, over many workers "
         "that "
         "compute nothing.\n"
         "engine: time of prompts and of decode steps; with --weights random:SEED --model SHAPE, "
         "of any shape in config/models; sequences of decode steps take the adapters of --lora in "
         "turn, prompts the first.\n\n" +
         HelpForSettings(kPrefixes, kExtras);
}

std::vector<std::string> LibraryFolders() {
  const std::string here = ExecutableFolder();
  return {here + "/../lib", here};
}

Result<std::vector<int32_t>> ListOf(const CommandLine& line, std::string_view name, int64_t most,
                                    std::vector<int32_t> otherwise) {
  if (!line.HasExtra(name)) return otherwise;
  std::vector<int32_t> numbers;
  const std::string list{line.Extra(name)};
  std::string_view text = list;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const auto n = ParseIntInRange(text.substr(0, comma), 1, most);
    if (!n) return InvalidArgument(fmt::format("--{}: {}", name, n.error().message));
    numbers.push_back(static_cast<int32_t>(*n));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return numbers;
}

Result<int32_t> NumberOf(const CommandLine& line, std::string_view name, int32_t otherwise) {
  AISP_ASSIGN_OR_RETURN(const int64_t n, line.ExtraInt(name, otherwise, 0, 1 << 20));
  return static_cast<int32_t>(n);
}

std::string ToJson(const CudaLimits& l) {
  return fmt::format(
      "{{\"device\": \"{}\", \"read_tb_per_s\": {:.3f}, \"copy_tb_per_s\": {:.3f}, "
      "\"host_gb_per_s\": {:.1f}, \"bf16_tflops\": {:.1f}, \"fp8_tflops\": {:.1f}, "
      "\"graph_kernel_us\": {:.3f}}}",
      l.device, l.read_bytes_per_s * 1e-12, l.copy_bytes_per_s * 1e-12, l.host_bytes_per_s * 1e-9,
      l.bf16_flops_per_s * 1e-12, l.fp8_flops_per_s * 1e-12, l.graph_kernel_s * 1e6);
}

Status RunLimits() {
  AISP_ASSIGN_OR_RETURN(const CudaLimits limits, MeasureCudaLimits(0, LibraryFolders()));
  fmt::print("{}\n", ToJson(limits));
  return {};
}

// The GPU that `device` names; "auto" and "cuda" mean the first.
Result<int32_t> GpuIndexOf(const std::string& device) {
  constexpr std::string_view kPrefix = "cuda:";
  if (!device.starts_with(kPrefix)) return 0;
  AISP_ASSIGN_OR_RETURN(const int64_t index,
                        ParseIntInRange(device.substr(kPrefix.size()), 0, 1023));
  return static_cast<int32_t>(index);
}

// Timing kernels needs only a shape, so weights are random.
void ChooseShape(CommandLine* line) {
  if (line->config.model.path.empty()) line->config.model.path = "llama-3.1-8b";
  if (line->config.model.weights.empty()) line->config.model.weights = "random:1";
}

Status RunKernels(CommandLine line) {
  ChooseShape(&line);
  AISP_ASSIGN_OR_RETURN(const std::string path, ResolveModelPath(line.config));
  AISP_ASSIGN_OR_RETURN(const ModelSpec spec, LoadModelSpec(path));
  AISP_ASSIGN_OR_RETURN(KernelBenchOptions options, KernelBenchOptionsOf(spec));
  AISP_ASSIGN_OR_RETURN(options.index, GpuIndexOf(line.config.model.device));
  options.only = line.Extra("only");
  AISP_ASSIGN_OR_RETURN(const KernelBench bench, BenchCudaKernels(options, LibraryFolders()));
  fmt::print("{}", line.HasExtra("json") ? ToJson(bench, line.config.model.path)
                                         : ToTable(bench, line.config.model.path));
  return {};
}

// The texts of a file, separated by lines of three asterisks.
Result<std::vector<std::vector<TokenId>>> TokensOf(std::string_view file,
                                                   const Tokenizer& tokenizer) {
  constexpr std::string_view kBetween = "\n***\n";
  std::vector<std::vector<TokenId>> texts;
  while (!file.empty()) {
    const size_t end = std::min(file.find(kBetween), file.size());
    AISP_ASSIGN_OR_RETURN(texts.emplace_back(),
                          tokenizer.Encode(Trim(file.substr(0, end)), /*add_special=*/true,
                                           /*parse_special=*/true));
    file.remove_prefix(std::min(end + kBetween.size(), file.size()));
  }
  return texts;
}

// Measures the same model in an unquantized format.
Result<QualityResult> PlainQuality(Config config, std::string_view dtype,
                                   std::span<const std::vector<TokenId>> texts, int32_t rows) {
  if (dtype != "f32" && dtype != "bf16")
    return InvalidArgument(fmt::format("--against is '{}'; it wants f32 or bf16", dtype));
  const Config plain;
  config.model.dtype = dtype;
  config.model.quantization = plain.model.quantization;
  config.model.kv_dtype = plain.model.kv_dtype;
  AISP_ASSIGN_OR_RETURN(const auto served, LoadServedModel(config));
  AISP_ASSIGN_OR_RETURN(const Backend backend, MakeBackend(config, *served));
  return MeasureQuality(texts, rows, *backend.executor, *backend.device);
}

Status RunQuality(CommandLine line) {
  if (!line.HasExtra("text")) return InvalidArgument("quality wants --text FILE");
  AISP_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(line.Extra("text")));
  AISP_ASSIGN_OR_RETURN(const int32_t rows, NumberOf(line, "rows", 256));
  Config& config = line.config;
  config.engine.max_sequences = rows;
  config.engine.max_batch_tokens = std::max<int64_t>(rows, 16);
  AISP_ASSIGN_OR_RETURN(const auto served, LoadServedModel(config));
  if (!served->tokenizer) {
    return FailedPrecondition(
        fmt::format("'{}' has no tokenizer, so no text can be scored", served->name));
  }
  AISP_ASSIGN_OR_RETURN(const auto texts, TokensOf(text, *served->tokenizer));
  std::optional<QualityResult> plain;
  if (line.HasExtra("against")) {
    AISP_ASSIGN_OR_RETURN(plain, PlainQuality(config, line.Extra("against"), texts, rows));
  }
  AISP_ASSIGN_OR_RETURN(const Backend backend, MakeBackend(config, *served));
  AISP_ASSIGN_OR_RETURN(const QualityResult result,
                        MeasureQuality(texts, rows, *backend.executor, *backend.device));
  fmt::print(
      "{{\"bench\": \"quality\", \"version\": \"{}\", \"model\": \"{}\", \"device\": \"{}\", "
      "\"compute_dtype\": \"{}\", \"quantization\": \"{}\", \"kv_dtype\": \"{}\", "
      "\"rows_per_step\": {}, \"tokens\": {}, \"scored\": {}, \"mean_nll\": {:.5f}, "
      "\"perplexity\": {:.4f}{}}}\n",
      Version(), served->name, backend.device->info().name,
      DTypeName(backend.executor->model().compute_dtype()), config.model.quantization,
      DTypeName(backend.executor->kv_layout().dtype), rows, result.tokens, result.scored,
      result.mean_nll, std::exp(result.mean_nll),
      plain ? fmt::format(
                  ", \"against\": \"{}\", \"against_nll\": {:.5f}, \"top1_agreement\": {:.5f}",
                  line.Extra("against"), plain->mean_nll, Agreement(*plain, result))
            : "");
  return {};
}

// Makes room for the largest batch and nothing beyond.
void FitConfig(const EngineBenchOptions& o, Config* config) {
  const int64_t batch = *std::max_element(o.batches.begin(), o.batches.end());
  const int64_t tokens = int64_t{o.prompt_tokens} + o.output_tokens + 2;
  config->engine.max_sequences = batch;
  // A smaller --max-batch-tokens is kept, except that a decode step must hold the batch.
  int64_t& step = config->engine.max_batch_tokens;
  step = std::max(step > 0 ? step : int64_t{2048}, batch);
  config->model.max_model_len = tokens;
  const int64_t block = EngineSettingsOf(*config).block_tokens;
  config->engine.kv_blocks =
      batch * ((tokens + block - 1) / block + 1) + config->engine.watermark_blocks;
}

// Prompts of one length, each length in a new engine, so that the first run is the first after a
// start. Then their parts, if the timers were built in.
Result<PrefillComparison> ComparePrefill(CommandLine line, const PromptBenchOptions& prompts,
                                         KernelBenchOptions kernels, std::string* device) {
  EngineBenchOptions fitted;
  fitted.prompt_tokens = prompts.tokens;
  fitted.output_tokens = 1;
  FitConfig(fitted, &line.config);
  AISP_ASSIGN_OR_RETURN(const auto served, LoadServedModel(line.config));
  AISP_ASSIGN_OR_RETURN(const Backend backend, MakeBackend(line.config, *served));
  *device = backend.device->info().name;
  PrefillComparison result;
  AISP_ASSIGN_OR_RETURN(result.whole, BenchPrompts(prompts, *backend.executor));
  kernels.prefills = {prompts.tokens};
  kernels.rest_ms = static_cast<int32_t>(prompts.rest.count());
  kernels.span_ms = result.whole.rested_ms;
  const Result<KernelBench> parts = BenchCudaKernels(kernels, LibraryFolders());
  if (!parts && parts.error().code == Code::kNotFound) return result;
  AISP_RETURN_IF_ERROR(parts);
  if (parts->prefills.empty())
    return Internal(fmt::format("no parts of a prompt of {} tokens were timed", prompts.tokens));
  result.parts = parts->prefills.front();
  return result;
}

Status RunPrefill(CommandLine line) {
  ChooseShape(&line);
  if (line.config.model.device == "cpu")
    return InvalidArgument("prefill times the kernels of a GPU; --device cuda:N chooses one");
  // A missing GPU is an error here, not a reason to run on the CPU.
  if (line.config.model.device == "auto") line.config.model.device = "cuda";
  AISP_ASSIGN_OR_RETURN(const auto sizes, ListOf(line, "isl", 1 << 20, {1024, 8000}));
  PromptBenchOptions prompts;
  AISP_ASSIGN_OR_RETURN(prompts.count, NumberOf(line, "prompts", prompts.count));
  AISP_ASSIGN_OR_RETURN(const std::string path, ResolveModelPath(line.config));
  AISP_ASSIGN_OR_RETURN(const ModelSpec spec, LoadModelSpec(path));
  AISP_ASSIGN_OR_RETURN(KernelBenchOptions kernels, KernelBenchOptionsOf(spec));
  AISP_ASSIGN_OR_RETURN(kernels.index, GpuIndexOf(line.config.model.device));
  kernels.only = "prefill";
  kernels.rows = {1};
  kernels.formats = PrefillFormatsOf(line.config.model.quantization, line.config.model.kv_dtype);
  std::vector<PrefillComparison> results;
  std::string device;
  for (const int32_t tokens : sizes) {
    prompts.tokens = tokens;
    AISP_ASSIGN_OR_RETURN(results.emplace_back(), ComparePrefill(line, prompts, kernels, &device));
  }
  fmt::print("{}", line.HasExtra("json") ? ToJson(results, device, line.config.model.path)
                                         : ToTable(results, device, line.config.model.path));
  return {};
}

Status RunEngine(CommandLine line) {
  EngineBenchOptions options;
  AISP_ASSIGN_OR_RETURN(options.prompt_tokens, NumberOf(line, "isl", options.prompt_tokens));
  AISP_ASSIGN_OR_RETURN(options.output_tokens, NumberOf(line, "osl", options.output_tokens));
  AISP_ASSIGN_OR_RETURN(options.batches, ListOf(line, "batch", 4096, {1}));
  AISP_ASSIGN_OR_RETURN(options.rounds, NumberOf(line, "rounds", 0));
  FitConfig(options, &line.config);
  AISP_ASSIGN_OR_RETURN(const auto served, LoadServedModel(line.config));
  options.serving = EngineOptionsOf(line.config, served->fingerprint);
  for (const v1::Adapter& adapter : served->adapters->start().adapters())
    options.adapters.push_back(adapter.digest());
  const SteadyClock clock;
  const Instant begin = clock.Now();
  if (line.HasExtra("read-tbps")) {
    AISP_ASSIGN_OR_RETURN(const double tbps, line.ExtraNumber("read-tbps", 0, 0.001, 1000));
    options.read_bytes_per_s = tbps * 1e12;
    options.kernel_s = 0.52e-6;
  } else if (const auto limits = MeasureCudaLimits(0, LibraryFolders());
             limits && line.config.model.device != "cpu") {
    options.read_bytes_per_s = limits->read_bytes_per_s;
    options.kernel_s = limits->graph_kernel_s;
  }
  AISP_ASSIGN_OR_RETURN(const Backend backend, MakeBackend(line.config, *served));
  const double load_s = ToSeconds(clock.Now() - begin);
  PromptBenchOptions prompt_options;
  prompt_options.tokens = options.prompt_tokens;
  if (!options.adapters.empty()) prompt_options.adapter = options.adapters.front();
  AISP_ASSIGN_OR_RETURN(prompt_options.count, NumberOf(line, "prompts", prompt_options.count));
  AISP_ASSIGN_OR_RETURN(const PromptTimes prompts, BenchPrompts(prompt_options, *backend.executor));
  AISP_ASSIGN_OR_RETURN(const auto results, BenchEngine(options, *backend.executor));
  std::vector<std::string> runs;
  for (const EngineBenchResult& r : results) runs.push_back(ToJson(r));
  const KvLayout& kv = backend.executor->kv_layout();
  fmt::print(
      "{{\"bench\": \"engine\", \"version\": \"{}\", \"model\": \"{}\", \"device\": \"{}\", "
      "\"kernels\": \"{}\", \"cores\": {}, \"compute_dtype\": \"{}\", \"quantization\": \"{}\", "
      "\"kv_dtype\": \"{}\", \"block_tokens\": {}, \"isl\": {}, \"osl\": {}, \"load_s\": {:.2f}, "
      "\"weight_bytes\": {}, \"read_tb_per_s\": {:.3f}, \"prompts\": {}, \"runs\": [{}]}}\n",
      Version(), served->name, backend.device->info().name, backend.ops->Describe(),
      std::thread::hardware_concurrency(), DTypeName(backend.executor->model().compute_dtype()),
      line.config.model.quantization, DTypeName(kv.dtype), kv.block_tokens, options.prompt_tokens,
      options.output_tokens, load_s, backend.executor->model().weight_bytes(),
      options.read_bytes_per_s * 1e-12, ToJson(prompts), Join(runs, ", "));
  return {};
}

// With --text, the prompts for a real proposer; otherwise none.
Status ReadPrompts(const CommandLine& line, const ServedModel& served,
                   SpeculationBenchOptions* options) {
  if (!line.HasExtra("text")) return {};
  if (!served.tokenizer) {
    return FailedPrecondition(
        fmt::format("'{}' has no tokenizer, so no text can be a prompt", served.name));
  }
  AISP_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(line.Extra("text")));
  AISP_ASSIGN_OR_RETURN(options->prompts, TokensOf(text, *served.tokenizer));
  AISP_ASSIGN_OR_RETURN(const double temperature, line.ExtraNumber("temperature", 0, 0, 2));
  options->temperature = static_cast<float>(temperature);
  for (const std::vector<TokenId>& prompt : options->prompts) {
    if (static_cast<int32_t>(prompt.size()) <= options->prompt_tokens) continue;
    return InvalidArgument(fmt::format("a text of {} has {} tokens, and --isl is {}; give more",
                                       line.Extra("text"), prompt.size(), options->prompt_tokens));
  }
  return {};
}

Status RunSpeculation(CommandLine line) {
  SpeculationBenchOptions options;
  AISP_ASSIGN_OR_RETURN(options.prompt_tokens, NumberOf(line, "isl", options.prompt_tokens));
  AISP_ASSIGN_OR_RETURN(options.output_tokens, NumberOf(line, "osl", options.output_tokens));
  AISP_ASSIGN_OR_RETURN(options.batches, ListOf(line, "batch", 4096, {1}));
  AISP_ASSIGN_OR_RETURN(options.lengths, ListOf(line, "drafts", 64, {4}));
  if (line.HasExtra("acceptance")) {
    options.acceptance.clear();
    const std::string acceptance = line.Extra("acceptance");
    for (const std::string_view text : Split(acceptance, ',')) {
      const auto p = ParseDouble(text);
      if (!p) return InvalidArgument(fmt::format("--acceptance: {}", p.error().message));
      options.acceptance.push_back(*p);
    }
  }
  EngineBenchOptions fitted;
  fitted.prompt_tokens = options.prompt_tokens;
  fitted.output_tokens = options.output_tokens;
  fitted.batches = options.batches;
  FitConfig(fitted, &line.config);
  std::string& method = line.config.engine.speculative_config;
  const bool proposes = method != "off";
  if (line.HasExtra("text") && !proposes)
    return InvalidArgument("spec wants --speculative-config where it has --text");
  if (!proposes)  // make room for draft rows
    method = "{\"method\": \"ngram\", \"num_speculative_tokens\": 4}";
  AISP_ASSIGN_OR_RETURN(const auto served, LoadServedModel(line.config));
  AISP_RETURN_IF_ERROR(ReadPrompts(line, *served, &options));
  AISP_ASSIGN_OR_RETURN(options.rounds, NumberOf(line, "rounds", 1));
  AISP_ASSIGN_OR_RETURN(options.warm_up_rounds, NumberOf(line, "warm-up", 0));
  AISP_ASSIGN_OR_RETURN(const Backend backend, MakeBackend(line.config, *served));
  const SteadyClock clock;
  options.make = [&](int32_t length, bool adaptive) -> Result<std::shared_ptr<Speculator>> {
    AISP_ASSIGN_OR_RETURN(SpeculationConfig chosen, SpeculationConfigOf(line.config));
    chosen.num_tokens = length;
    chosen.adaptive = adaptive;
    return MakeSpeculator(chosen, /*forced_runs=*/false, *served, backend, &clock);
  };
  if (proposes) {
    options.make_proposer = [&]() -> Result<std::unique_ptr<Proposer>> {
      AISP_ASSIGN_OR_RETURN(SpeculationConfig chosen, SpeculationConfigOf(line.config));
      chosen.min_probability = 0;  // proposals are replaced by others, so confidence does not
                                   // matter
      return MakeProposer(chosen, *served, backend, &clock);
    };
  }
  AISP_ASSIGN_OR_RETURN(const auto rows, BenchSpeculation(options, *backend.executor));
  if (!line.HasExtra("json")) {
    fmt::print("{}", ToTable(rows));
    return {};
  }
  fmt::print(
      "{{\"bench\": \"spec\", \"version\": \"{}\", \"model\": \"{}\", \"device\": \"{}\", "
      "\"quantization\": \"{}\", \"isl\": {}, \"osl\": {}, \"rows\": {}}}\n",
      Version(), served->name, backend.device->info().name, line.config.model.quantization,
      options.prompt_tokens, options.output_tokens, ToJson(rows));
  return {};
}

}  // namespace

int RunBench(const std::vector<std::string>& args) {
  auto line = ParseCommandLine(args, kExtras);
  if (!line) return ReportUsageError("bench", line.error().message);
  if (AnswerCommonFlags(*line, Help())) return 0;
  const bool owner = line->positional.size() == 4 && line->positional[0] == "kv-owner";
  const std::string what = line->positional.size() == 1 ? line->positional[0] : "";
  LogSession log({.level = LogLevel::kWarning});
  Status done;
  if (owner) {
    done = RunKvOwner(*line, LibraryFolders());
  } else if (what == "kv") {
    done = RunKvBench(*line, LibraryFolders());
  } else if (what == "route") {
    done = RunRouteBench(*line);
  } else if (what == "limits") {
    done = RunLimits();
  } else if (what == "kernels") {
    done = RunKernels(*line);
  } else if (what == "prefill") {
    done = RunPrefill(*line);
  } else if (what == "engine") {
    done = RunEngine(*line);
  } else if (what == "quality") {
    done = RunQuality(*line);
  } else if (what == "spec") {
    done = RunSpeculation(*line);
  } else {
    return ReportUsageError("bench",
                            "wants one of: limits, kernels, prefill, engine, quality, spec, kv, "
                            "route");
  }
  if (!done) return ReportFailure(done.error().message);
  return 0;
}

}  // namespace aisp
