#include "server/memory_plan.h"

#include <fmt/format.h>

#include "common/strings.h"

namespace aisp {
namespace {

double AttentionWeights(const AttentionSpec& a, double hidden) {
  const double heads = a.num_heads;
  if (a.kind == AttentionKind::kGrouped)
    return hidden * a.head_dim * (2 * heads + 2.0 * a.num_kv_heads);
  const double q = heads * (a.nope_dim + a.rope_dim);
  const double rank = a.q_lora_rank;
  return (rank > 0 ? rank * (hidden + q) : hidden * q) + hidden * (a.kv_lora_rank + a.rope_dim) +
         a.kv_lora_rank * heads * (a.nope_dim + a.v_dim) + heads * a.v_dim * hidden;
}

double MlpWeights(const MlpSpec& m, double hidden) {
  const double one = 3 * hidden * m.intermediate;
  if (m.kind == MlpKind::kGated) return one;
  return m.num_experts * (one + hidden) + 3 * hidden * m.shared_intermediate;
}

// Of a layer's matrices.
double BytesPerWeight(const Config& config, const ModelSpec& spec) {
  constexpr double kNvfp4 = 0.5 + 1.0 / 16;  // including its scales
  const std::string& wanted = config.model.quantization;
  if (wanted == "fp8") return 1;
  if (wanted == "nvfp4") return kNvfp4;
  if (wanted != "none") {
    if (spec.quant.format == QuantFormat::kNvfp4) return kNvfp4;
    if (spec.quant.format != QuantFormat::kNone) return 1;
  }
  return config.model.dtype == "f32" ? 4 : 2;
}

}  // namespace

uint64_t WeightBytesOnGpu(const Config& config, const ModelSpec& spec) {
  double layers = 0;
  for (const LayerSpec& layer : spec.layers)
    layers += AttentionWeights(layer.attention, spec.hidden) + MlpWeights(layer.mlp, spec.hidden);
  const double dense = config.model.dtype == "f32" ? 4 : 2;
  const double words = static_cast<double>(spec.vocabulary) * spec.hidden;
  const double tables = spec.tied_embeddings ? words : 2 * words;
  return static_cast<uint64_t>(layers * BytesPerWeight(config, spec) + tables * dense);
}

Status CheckGpuMemory(const Config& config, const ServedModel& served, const DeviceInfo& device,
                      const MemoryInfo& memory) {
  const uint64_t weights = WeightBytesOnGpu(config, served.spec);
  const uint64_t pool = served.kv_layout.PoolBytes();
  if (weights + pool <= memory.free_bytes) return {};
  const bool weights_fit = weights < memory.free_bytes;
  return ResourceExhausted(fmt::format(
      "{} needs {}: {} of weights and a KV pool of {} ({} blocks); {} of {} are free on {}. {}",
      served.name, HumanBytes(weights + pool), HumanBytes(weights), HumanBytes(pool),
      served.kv_layout.num_blocks, HumanBytes(memory.free_bytes), HumanBytes(memory.total_bytes),
      device.name,
      weights_fit ? fmt::format("Lower the KV pool (--kv-memory below {}) or keep the weights "
                                "smaller (--quantization fp8 or nvfp4)",
                                HumanBytes(memory.free_bytes - weights))
                  : std::string("Keep the weights smaller (--quantization fp8 or nvfp4), or use a "
                                "GPU with more free memory (--device cuda:N)")));
}

}  // namespace aisp
