// `aisp info MODEL`: what a checkpoint is and what it would need here, without loading its weights.
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <filesystem>

#include "common/strings.h"
#include "config/command_line.h"
#include "kernels/cpu/cpu_device.h"
#include "server/commands.h"
#include "server/served_model.h"

namespace aisp {
namespace {

std::string Help() {
  constexpr std::array<std::string_view, 2> kPrefixes = {"model.", "engine."};
  return "aisp info [MODEL] [flags]\n\nWithout MODEL: the built-in model.\n\n" +
         HelpForSettings(kPrefixes);
}

uint64_t WeightBytes(const std::string& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".safetensors") bytes += entry.file_size(error);
  }
  return bytes;
}

void Line(std::string_view name, const std::string& value) {
  fmt::print("  {:<22} {}\n", name, value);
}

void PrintShape(const ServedModel& model) {
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
  Line("dtype", std::string(DTypeName(spec.dtype)));
  Line("weights on disk", HumanBytes(WeightBytes(model.path)));
  Line("weights digest", model.fingerprint.weights_digest());
  Line("chat template", model.chat_template ? "yes" : "no");
}

// The largest context of one sequence, from the memory that is free here once the weights are in it.
Status PrintMemory(const ServedModel& model) {
  const KvLayout& kv = model.kv_layout;
  AISP_ASSIGN_OR_RETURN(const MemoryInfo memory, MakeCpuDevice()->GetMemoryInfo());
  const uint64_t weights = WeightBytes(model.path);
  const uint64_t left = memory.free_bytes > weights ? memory.free_bytes - weights : 0;
  const uint64_t fits = left / kv.BytesPerToken();
  Line("KV per token", fmt::format("{} ({})", HumanBytes(kv.BytesPerToken()), DTypeName(kv.dtype)));
  Line("KV block", fmt::format("{} tokens, {}", kv.block_tokens, HumanBytes(kv.BlockBytes())));
  Line("KV pool as configured",
       fmt::format("{} blocks, {} tokens, {}", kv.num_blocks,
                   int64_t{kv.num_blocks} * kv.block_tokens, HumanBytes(kv.PoolBytes())));
  Line("memory free", HumanBytes(memory.free_bytes));
  const auto context = static_cast<uint64_t>(model.max_model_len);
  Line("largest context here",
       fmt::format("{} tokens{}", std::min(fits, context),
                   fits < context ? " (limited by memory)" : " (the model's own limit)"));
  Line("sequences that fit", fmt::format("{} at full context", fits / context));
  return {};
}

}  // namespace

int RunInfo(const std::vector<std::string>& args) {
  auto line = ParseCommandLine(args);
  if (!line) return ReportUsageError("info", line.error().message);
  if (AnswerCommonFlags(*line, Help())) return 0;
  if (line->positional.size() > 1) return ReportUnexpectedArgument("info", line->positional[1]);
  if (!line->positional.empty()) line->config.model.path = line->positional[0];
  const auto model = LoadServedModel(line->config);
  if (!model) return ReportFailure(model.error().message);
  fmt::print("{} ({})\n", (*model)->name, (*model)->path);
  PrintShape(**model);
  if (const Status printed = PrintMemory(**model); !printed)
    return ReportFailure(printed.error().message);
  return 0;
}

}  // namespace aisp
