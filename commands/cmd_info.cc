// `aisp info MODEL`: describes a checkpoint and its memory needs here, without loading weights.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>

#include "commands/commands.h"
#include "commands/programme_map.h"
#include "common/strings.h"
#include "config/command_line.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_ops.h"
#include "server/device_defaults.h"
#include "server/kv_pool.h"
#include "server/memory_plan.h"
#include "server/served_model.h"

namespace aisp {
namespace {

namespace fs = std::filesystem;

constexpr std::array<ExtraFlag, 5> kExtras = {{
    {"--programme", "",
     "Which kernel computes each node of a step on a GPU: launches, grids, bytes, predicted times. "
     "Needs no GPU."},
    {"--batch", "N", "Sequences of that step; 1 without it."},
    {"--rows", "N", "Rows of each sequence (a prompt's chunk); 1, decoding, without it."},
    {"--context", "N", "Keys of each sequence; 1024 without it."},
    {"--all", "", "Every launch, not those that are alike once."},
}};

std::string Help() {
  constexpr std::array<std::string_view, 2> kPrefixes = {"model.", "engine."};
  return "aisp info [MODEL] [flags]\n\nMODEL: a checkpoint's folder, org/name in the cache (aisp "
         "pull), a shipped model's name (story-7m), or a shape: " +
         Join(ShapeNames(), ", ") + ".\nWithout it: the built-in model.\n\n" +
         HelpForSettings(kPrefixes, kExtras);
}

uint64_t WeightBytes(const std::string& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".safetensors") bytes += entry.file_size(error);
  }
  return bytes;
}

void Line(std::string_view name, const std::string& value) {
  fmt::print("  {:<22} {}\n", name, value);
}

std::string QuantisationOf(const Config& config, const ModelSpec& spec) {
  static constexpr std::pair<QuantFormat, std::string_view> kNames[] = {
      {QuantFormat::kNone, "none"},
      {QuantFormat::kFp8Channel, "fp8, a scale for each row"},
      {QuantFormat::kFp8Block, "fp8, a scale for each block"},
      {QuantFormat::kNvfp4, "nvfp4"}};
  std::string name = "unknown";
  for (const auto& [format, shown] : kNames)
    if (format == spec.quant.format) name = shown;
  const std::string& wanted = config.model.quantization;
  return wanted == "auto" ? name : fmt::format("{}; served as {}", name, wanted);
}

// The dtype that --device would compute in, with the reason.
std::string ComputedDType(const Config& config, const ModelSpec& spec) {
  if (config.model.dtype != "auto") return config.model.dtype + " (--dtype)";
  if (WantsGpu(config)) return "bf16 on a GPU; a small f32 checkpoint in f32";
  const auto ops = MakeCpuOps({.threads = 1});
  if (!ops) return "unknown: " + ops.error().message;
  const auto elements = static_cast<int64_t>(WeightBytesOnGpu(config, spec) / 2);
  return fmt::format("{} on this CPU",
                     DTypeName((*ops)->PreferredComputeDType(spec.dtype, elements)));
}

std::string TokenizerLine(const ServedModel& model) {
  if (!model.tokenizer) return "none: asked by token ids";
  return fmt::format("{} ids{}", model.tokenizer->VocabSize(),
                     fs::is_directory(model.path) ? "" : " (a plain one: bytes)");
}

void PrintShape(const Config& config, const ServedModel& model) {
  const ModelSpec& spec = model.spec;
  const AttentionSpec& attention = spec.layers.front().attention;
  Line("architecture", spec.architecture);
  Line("layers", std::to_string(spec.layers.size()));
  Line("hidden size", std::to_string(spec.hidden));
  Line("attention heads", fmt::format("{} ({} KV heads of {})", attention.num_heads,
                                      attention.num_kv_heads, attention.head_dim));
  if (attention.window > 0) Line("sliding window", fmt::format("{} tokens", attention.window));
  Line("vocabulary", std::to_string(spec.vocabulary));
  Line("context", fmt::format("{} tokens", spec.max_position));
  Line("checkpoint dtype", std::string(DTypeName(spec.dtype)));
  Line("quantisation", QuantisationOf(config, spec));
  Line("computes in", ComputedDType(config, spec));
  Line("weights on disk", HumanBytes(WeightBytes(model.path)));
  Line("weights digest", model.fingerprint.weights_digest());
  Line("tokenizer", TokenizerLine(model));
  Line("chat template", model.chat_template ? "yes" : "no");
}

// The largest context of one sequence that fits in the free memory after loading the weights.
Status PrintMemory(const Config& config, const ServedModel& model) {
  KvLayout kv = model.kv_layout;
  AISP_ASSIGN_OR_RETURN(const MemoryInfo memory, MakeCpuDevice()->GetMemoryInfo());
  const uint64_t weights = WeightBytes(model.path);
  const uint64_t left = memory.free_bytes > weights ? memory.free_bytes - weights : 0;
  const uint64_t fits = left / kv.BytesPerToken();
  Line("KV per token", fmt::format("{} ({})", HumanBytes(kv.BytesPerToken()), DTypeName(kv.dtype)));
  Line("KV block", fmt::format("{} tokens, {}", kv.block_tokens, HumanBytes(kv.BlockBytes())));
  if (kv.num_blocks == 0 && WantsGpu(config)) {
    Line("KV pool", fmt::format("what the weights leave of {} x the GPU's memory",
                                config.engine.gpu_memory_utilization));
  } else if (const auto plan = PlanKvPool(config, model, memory, /*gpu=*/false); plan) {
    kv.num_blocks = plan->blocks;
    Line("KV pool", fmt::format("{} blocks, {} tokens, {} ({})", kv.num_blocks,
                                int64_t{kv.num_blocks} * kv.block_tokens,
                                HumanBytes(kv.PoolBytes()), plan->why));
  } else {
    Line("KV pool", plan.error().message);
  }
  Line("memory free", HumanBytes(memory.free_bytes));
  const auto context = static_cast<uint64_t>(model.max_model_len);
  Line("largest context here",
       fmt::format("{} tokens{}", std::min(fits, context),
                   fits < context ? " (limited by memory)" : " (the model's own limit)"));
  Line("sequences that fit", fmt::format("{} at full context", fits / context));
  return {};
}

Status PrintMap(const CommandLine& line, const ServedModel& model) {
  constexpr int64_t kMostRows = 65536;
  ProgrammeMapOptions o;
  AISP_ASSIGN_OR_RETURN(const int64_t batch, line.ExtraInt("batch", 1, 1, 4096));
  AISP_ASSIGN_OR_RETURN(const int64_t rows, line.ExtraInt("rows", 1, 1, kMostRows / batch));
  AISP_ASSIGN_OR_RETURN(const int64_t context, line.ExtraInt("context", 0, 0, 1 << 20));
  o.batch = static_cast<int32_t>(batch);
  o.rows = static_cast<int32_t>(rows);
  o.context = static_cast<int32_t>(context);
  o.all = line.HasExtra("all");
  return PrintProgrammeMap(line.config, model, o);
}

}  // namespace

int RunInfo(const std::vector<std::string>& args) {
  auto line = ParseCommandLine(args, kExtras);
  if (!line) return ReportUsageError("info", line.error().message);
  if (AnswerCommonFlags(*line, Help())) return 0;
  if (line->positional.size() > 1) return ReportUnexpectedArgument("info", line->positional[1]);
  if (!line->positional.empty()) line->config.model.path = line->positional[0];
  // A shape has no checkpoint to look for.
  const std::vector<std::string> shapes = ShapeNames();
  if (line->config.model.weights.empty() &&
      std::find(shapes.begin(), shapes.end(), line->config.model.path) != shapes.end())
    line->config.model.weights = "random:0";
  const auto model = LoadServedModel(line->config);
  if (!model) return ReportFailure(model.error().message);
  if (line->HasExtra("programme")) {
    if (const Status printed = PrintMap(*line, **model); !printed)
      return ReportFailure(printed.error().message);
    return 0;
  }
  fmt::print("{} ({})\n", (*model)->name, (*model)->path);
  PrintShape(line->config, **model);
  if (const Status printed = PrintMemory(line->config, **model); !printed)
    return ReportFailure(printed.error().message);
  Line("shapes", Join(ShapeNames(), ", "));
  return 0;
}

}  // namespace aisp
