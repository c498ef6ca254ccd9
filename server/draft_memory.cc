#include "server/draft_memory.h"

#include "model/eagle_spec.h"
#include "model/medusa_head.h"
#include "model/mtp_spec.h"
#include "server/device_defaults.h"
#include "server/memory_plan.h"
#include "server/speculation.h"

namespace aisp {
namespace {

constexpr uint64_t kGraphsAndBuffers = uint64_t{512} << 20;

uint64_t U(int64_t value) { return static_cast<uint64_t>(value); }

// Bytes of an element of the compute type.
uint64_t ElementBytes(const Config& config, const ServedModel& served) {
  const bool wide = config.model.dtype == "f32" || served.spec.dtype == DType::kF32;
  return wide ? sizeof(float) : sizeof(uint16_t);
}

// Rows of the three feature buffers: of the target's steps, of the head's, and of waiting rows.
uint64_t FeatureRows(const Config::Engine& engine) {
  return 3 * U(engine.max_batch_tokens) + 9 * U(engine.max_sequences) +
         U(DraftHeadRows(engine.max_batch_tokens));
}

// With the draft's own format of weights.
Config WithFormatOf(const SpeculationConfig& chosen, const Config& config) {
  Config own = config;
  if (!chosen.quantization.empty()) own.model.quantization = chosen.quantization;
  return own;
}

uint64_t BlockBytesOf(const ServedModel& served, const KvShape& kv) {
  KvLayout block = served.kv_layout;
  block.num_layers = kv.num_layers;
  block.num_kv_heads = kv.num_kv_heads;
  block.head_dim = kv.head_dim;
  return block.BlockBytes();
}

Result<DraftMemory> EagleMemory(const Config& config, const SpeculationConfig& chosen,
                                const ServedModel& served) {
  AISP_ASSIGN_OR_RETURN(const EagleSpec head,
                        LoadEagleSpec(DraftModelFolder(chosen.model, served), served.spec));
  const Config::Engine engine = EngineSettingsOf(config);
  const LayerSpec& layer = head.layer.layers.front();
  const uint64_t hidden = U(head.layer.hidden);
  const uint64_t features = head.feature_layers.size() * U(head.target_hidden);
  const uint64_t heads = U(layer.attention.num_heads) * U(layer.attention.head_dim);
  const uint64_t kv_heads = U(layer.attention.num_kv_heads) * U(layer.attention.head_dim);
  const uint64_t inner = U(layer.mlp.intermediate);
  const uint64_t elements = hidden * (features + 2 * (heads + 2 * kv_heads) + heads + 3 * inner +
                                      U(head.draft_vocabulary));
  const uint64_t logits = U(engine.max_sequences) * sizeof(float) *
                          (U(head.layer.vocabulary) * 2 + U(head.draft_vocabulary));
  const uint64_t bytes = ElementBytes(config, served);
  return DraftMemory{
      elements * bytes + FeatureRows(engine) * features * bytes + logits + kGraphsAndBuffers,
      BlockBytesOf(served, {1, layer.attention.num_kv_heads, layer.attention.head_dim})};
}

// Bytes per row of a step of such a layer, without its features.
uint64_t RowBytes(const ModelSpec& model) {
  const AttentionSpec& a = model.layers.front().attention;
  const MlpSpec& mlp = model.layers.front().mlp;
  const int64_t q = int64_t{a.num_heads} *
                    (a.kind == AttentionKind::kLatent ? a.nope_dim + a.rope_dim : a.head_dim);
  const int64_t kv = a.kind == AttentionKind::kLatent
                         ? int64_t{a.num_heads} * (a.nope_dim + a.v_dim)
                         : int64_t{2} * a.num_kv_heads * a.head_dim;
  const int64_t inner = std::max(mlp.intermediate, mlp.shared_intermediate);
  return sizeof(float) *
         U(7 * int64_t{model.hidden} + std::max(q + kv, 2 * inner) + std::max(q, inner) + kv);
}

// The layer may have its own output matrix over the vocabulary, as large as the target's.
Result<DraftMemory> MtpMemory(const Config& config, const SpeculationConfig& chosen,
                              const ServedModel& served) {
  AISP_ASSIGN_OR_RETURN(MtpSpec head, LoadMtpSpec(MtpFolder(chosen, served), served.spec));
  const Config::Engine engine = EngineSettingsOf(config);
  head.model.tied_embeddings = true;
  const uint64_t hidden = U(head.model.hidden), bytes = ElementBytes(config, served);
  const uint64_t weights =
      WeightBytesOnGpu(WithFormatOf(chosen, config), head.model) + 2 * hidden * hidden * bytes;
  const uint64_t logits = U(engine.max_sequences) * sizeof(float) * U(head.model.vocabulary) * 2;
  const uint64_t rows = U(DraftHeadRows(engine.max_batch_tokens)) * RowBytes(head.model);
  return DraftMemory{
      weights + FeatureRows(engine) * hidden * bytes + rows + logits + kGraphsAndBuffers,
      BlockBytesOf(served, head.model.kv())};
}

// Most of it are the logits of all heads over the target's vocabulary.
Result<DraftMemory> MedusaMemory(const Config& config, const SpeculationConfig& chosen,
                                 const ServedModel& served) {
  AISP_ASSIGN_OR_RETURN(const MedusaSpec spec,
                        LoadMedusaSpec(DraftModelFolder(chosen.model, served), served.spec));
  const Config::Engine engine = EngineSettingsOf(config);
  const uint64_t hidden = U(spec.hidden), heads = U(spec.heads),
                 bytes = ElementBytes(config, served);
  const uint64_t weights =
      heads * hidden * (U(spec.blocks) * hidden + U(spec.draft_vocabulary)) * bytes;
  // Twice: sampling needs scratch memory of the same size.
  const uint64_t logits = 2 * heads * U(engine.max_sequences) * U(spec.vocabulary) * sizeof(float);
  return DraftMemory{weights + FeatureRows(engine) * hidden * bytes + logits + kGraphsAndBuffers,
                     0};
}

Result<DraftMemory> DraftModelMemory(const Config& config, const SpeculationConfig& chosen,
                                     const ServedModel& served) {
  AISP_ASSIGN_OR_RETURN(const ModelSpec spec,
                        LoadModelSpec(DraftModelFolder(chosen.model, served)));
  const uint64_t rows = U(EngineSettingsOf(config).max_sequences + kDraftTailRows);
  const uint64_t logits =
      rows * U(int64_t{spec.vocabulary} + chosen.draft_vocabulary) * sizeof(float);
  return DraftMemory{
      WeightBytesOnGpu(WithFormatOf(chosen, config), spec) + logits + kGraphsAndBuffers,
      BlockBytesOf(served, spec.kv())};
}

}  // namespace

Result<DraftMemory> DraftMemoryOf(const Config& config, const ServedModel& served) {
  AISP_ASSIGN_OR_RETURN(const SpeculationConfig chosen, SpeculationConfigOf(config));
  switch (chosen.method) {
    case SpeculationConfig::Method::kEagle3:
      return EagleMemory(config, chosen, served);
    case SpeculationConfig::Method::kMtp:
      return MtpMemory(config, chosen, served);
    case SpeculationConfig::Method::kMedusa:
      return MedusaMemory(config, chosen, served);
    case SpeculationConfig::Method::kDraftModel:
      return DraftModelMemory(config, chosen, served);
    default:
      return DraftMemory{};
  }
}

}  // namespace aisp
