// MedusaHeads: Medusa's heads (Cai et al., arXiv:2401.10774) in the layout that is published, and
// their forward pass.
//
// All of them read what the target's own head reads of a position t, its hidden state behind the
// final norm; head i says which token stands at t + 2 + i. A head is some residual blocks,
// x + silu(W x + b), and a matrix over the target's vocabulary or, as vLLM has it, over a part of
// it (`token_map`). No KV, no state: rows do not depend on each other.
//
// The norm, each head and, where the device draws, all draws are a programme each. On the CPU Run
// computes them; beside the host TakeFeatures and Enqueue do, on the stream that is given, where a
// graph may capture what they launch. The target outlives it; one call at a time.
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
#include "model/prepared_steps.h"
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
  std::optional<WeightFormat> weight_format = std::nullopt;
};

class MedusaHeads final : public ParallelHeads {
 public:
  // Errors name the tensor, or the place in token_map that is out of the target's vocabulary.
  static Result<std::unique_ptr<MedusaHeads>> Load(const std::string& directory,
                                                   const MedusaSpec& spec, const Model& target,
                                                   const MedusaOptions& options, Device& device,
                                                   Ops& ops);

  int32_t heads() const override { return spec_.heads; }
  int32_t feature_size() const override { return hidden(); }
  int32_t vocabulary() const override { return spec_.vocabulary; }
  int32_t max_rows() const override { return options_.max_rows; }
  std::span<const TokenId> target_tokens() const override { return target_tokens_; }
  // Features are the residual stream behind the target's last layer. These two are for the CPU.
  Status Run(std::span<const float* const> rows, int32_t heads) override;
  std::span<const float> Logits(int32_t head, int32_t row) const override;

  // Of a row of features: f32, or the target's compute dtype on a device that runs beside the host.
  DType feature_dtype() const { return feature_dtype_; }
  size_t feature_bytes() const {
    return static_cast<size_t>(hidden()) * DTypeBytes(feature_dtype_);
  }
  // Rows of f32 on the host in that format.
  void FormatFeatures(std::span<const float> rows, std::byte* to) const;
  // What the next Enqueue reads: the features at rows[i], in the device's memory.
  Status TakeFeatures(std::span<const std::byte* const> rows, Stream& stream);
  // The first `heads` heads of so many rows; then the draws, which may be none.
  Status Enqueue(int32_t rows, int32_t heads, const StepDraws& draws, Stream& stream);
  // Draws alone, from what the last Enqueue left.
  Status EnqueueDraws(const StepDraws& draws, Stream& stream);
  // All that such an Enqueue launches, for a capture.
  Status Prepare(int32_t rows, int32_t heads, const StepDraws& draws);
  // Of target_logits, f32 over the target's vocabulary, in which draws name a row.
  int32_t LogitIndex(int32_t head, int32_t row) const {
    return head * static_cast<int32_t>(features_.rows()) + row;
  }
  TensorView target_logits() const { return target_logits_; }

 private:
  struct Head {
    std::vector<std::unique_ptr<PackedLinear>> blocks;
    std::unique_ptr<PackedLinear> matrix;
    TensorView logits;  // f32 [max_rows, draft vocabulary]
    Programme programme;
    std::optional<PreparedSteps> prepared;
  };

  MedusaHeads(const MedusaSpec& spec, const Model& target, const MedusaOptions& options,
              Device& device, Ops& ops);
  int32_t hidden() const { return spec_.hidden; }
  bool beside_host() const { return device_.info().asynchronous; }
  // Whether its logits are spread over the target's vocabulary: draws on the host do that.
  bool spreads() const { return beside_host() && spec_.draft_vocabulary != spec_.vocabulary; }
  Status LoadWeights(const std::string& directory);
  Status ReadTokenMap(const Checkpoint* checkpoint);
  Status Allocate();
  Status FillTables();
  void EmitNorm(ProgrammeBuilder& b) const;
  void EmitHead(ProgrammeBuilder& b, size_t index) const;
  void EmitProgrammes();
  // What matrices read behind the norm, and inside a head.
  const TensorView& normed_input() const { return rounds() ? normed_rounded_ : normed_; }
  const TensorView& input() const { return rounds() ? rounded_ : x_; }
  bool rounds() const { return target_.compute_dtype() != DType::kF32; }

  const MedusaSpec spec_;
  const Model& target_;
  const MedusaOptions options_;
  Device& device_;
  Ops& ops_;
  const DType feature_dtype_;
  std::unique_ptr<Stream> stream_;
  std::vector<TokenId> target_tokens_;
  std::vector<Head> heads_;
  Programme norm_, draw_;
  std::optional<PreparedSteps> prepared_norm_, prepared_draw_;
  Buffer memory_, columns_;
  // [max_rows, hidden]: as they come, behind the norm, in a head, and what a block adds; f32 but
  // for the features. The other two are the same in the compute dtype, where that is another.
  TensorView features_, normed_, x_, added_, normed_rounded_, rounded_;
  TensorView target_logits_;  // beside the host: f32 [heads * max_rows, vocabulary]
  std::vector<CopyRange> ranges_;
};

}  // namespace aisp
