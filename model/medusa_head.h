// MedusaHeads: Medusa's heads (Cai et al., arXiv:2401.10774) in the layout that is published, and
// their forward pass.
//
// All of them read what the target's own head reads of a position t, its hidden state behind the
// final norm; head i says which token stands at t + 2 + i. A head is some residual blocks,
// x + silu(W x + b), and a matrix over the target's vocabulary or, as vLLM has it, over a part of
// it (`token_map`). No KV, no state: rows do not depend on each other. On the CPU. The target
// outlives it; one call at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops.h"
#include "model/model.h"
#include "model/parallel_heads.h"
#include "model/sublayer.h"

namespace aisp {

struct MedusaSpec {
  int32_t heads = 0;
  int32_t blocks = 1;
  int32_t hidden = 0;
  int32_t vocabulary = 0;  // the target's
  int32_t draft_vocabulary = 0;
};

// From `directory`/config.json. INVALID_ARGUMENT names the key, or the value in which the heads do
// not fit the target, and the target's.
Result<MedusaSpec> LoadMedusaSpec(const std::string& directory, const ModelSpec& target);
Result<MedusaSpec> ParseMedusaSpec(std::string_view config_json, const ModelSpec& target);

struct MedusaOptions {
  int32_t max_rows = 64;
  // As ModelOptions. Random heads are over tokens from all of the target's vocabulary.
  std::optional<uint64_t> random_weights = std::nullopt;
};

class MedusaHeads final : public ParallelHeads {
 public:
  // Errors name the tensor, or the place in token_map that is out of the target's vocabulary;
  // UNIMPLEMENTED on a device that runs beside the host.
  static Result<std::unique_ptr<MedusaHeads>> Load(const std::string& directory,
                                                   const MedusaSpec& spec, const Model& target,
                                                   const MedusaOptions& options, Device& device,
                                                   Ops& ops);

  int32_t heads() const override { return spec_.heads; }
  int32_t feature_size() const override { return hidden(); }
  int32_t vocabulary() const override { return spec_.vocabulary; }
  int32_t max_rows() const override { return options_.max_rows; }
  std::span<const TokenId> target_tokens() const override { return target_tokens_; }
  // Features are the residual stream behind the target's last layer.
  Status Run(std::span<const float* const> rows, int32_t heads) override;
  std::span<const float> Logits(int32_t head, int32_t row) const override;

 private:
  struct Head {
    std::vector<std::unique_ptr<PackedLinear>> blocks;
    std::unique_ptr<PackedLinear> matrix;
    TensorView logits;  // f32 [max_rows, draft vocabulary]
  };

  MedusaHeads(const MedusaSpec& spec, const Model& target, const MedusaOptions& options,
              Device& device, Ops& ops)
      : spec_(spec), target_(target), options_(options), device_(device), ops_(ops) {}
  int32_t hidden() const { return spec_.hidden; }
  Status LoadWeights(const std::string& directory);
  Status ReadTokenMap(const Checkpoint* checkpoint);
  Status Allocate();
  Status RunHead(const Head& head, int32_t rows);
  // x_ as the inputs of matrices are.
  const TensorView& Input(int32_t rows);

  const MedusaSpec spec_;
  const Model& target_;
  const MedusaOptions options_;
  Device& device_;
  Ops& ops_;
  std::unique_ptr<Stream> stream_;
  std::vector<TokenId> target_tokens_;
  std::vector<Head> heads_;
  Buffer memory_;
  // f32 [max_rows, hidden]: as they come, behind the norm, in a head, and what a block adds.
  TensorView features_, normed_, x_, added_;
  TensorView rounded_;  // x_ in the compute dtype, where that is another
};

}  // namespace aisp
