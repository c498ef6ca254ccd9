// MedusaHeads: Medusa's heads (Cai et al., arXiv:2401.10774) in their published layout, and their
// forward pass.
//
// All heads read the target's hidden state of a position t after the final norm; head i predicts
// the token at t + 2 + i. A head is a few residual blocks, x + silu(W x + b), and a matrix over the
// target's vocabulary or, as in vLLM, a part of it (`token_map`). No KV, no state: rows are
// independent.
//
// The norm, each head and, if the device draws, all draws are separate programmes. On the CPU, Run
// executes them. On an asynchronous device (GPU), TakeFeatures and Enqueue do, on the given stream,
// where a graph may capture their launches. The target outlives it; one call at a time.
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

// From `directory`/config.json. INVALID_ARGUMENT names the key, or the value that does not fit the
// target and the target's value.
Result<MedusaSpec> LoadMedusaSpec(const std::string& directory, const ModelSpec& target);
Result<MedusaSpec> ParseMedusaSpec(std::string_view config_json, const ModelSpec& target);

struct MedusaOptions {
  int32_t max_rows = 64;
  // As in ModelOptions. Random heads use tokens spread over the target's vocabulary.
  std::optional<uint64_t> random_weights = std::nullopt;
  std::optional<WeightFormat> weight_format = std::nullopt;
};

class MedusaHeads final : public ParallelHeads {
 public:
  // Errors name the tensor, or the entry of token_map outside the target's vocabulary.
  static Result<std::unique_ptr<MedusaHeads>> Load(const std::string& directory,
                                                   const MedusaSpec& spec, const Model& target,
                                                   const MedusaOptions& options, Device& device,
                                                   Ops& ops);

  int32_t heads() const override { return spec_.heads; }
  int32_t feature_size() const override { return hidden(); }
  int32_t vocabulary() const override { return spec_.vocabulary; }
  int32_t max_rows() const override { return options_.max_rows; }
  std::span<const TokenId> target_tokens() const override { return target_tokens_; }
  // Features: the residual stream after the target's last layer. For the CPU only.
  Status Run(std::span<const float* const> rows, int32_t heads) override;
  std::span<const float> Logits(int32_t head, int32_t row) const override;

  // Dtype of features: f32, or the target's compute dtype on an asynchronous device (GPU).
  DType feature_dtype() const { return feature_dtype_; }
  size_t feature_bytes() const {
    return static_cast<size_t>(hidden()) * DTypeBytes(feature_dtype_);
  }
  // Converts f32 rows on the host to that format.
  void FormatFeatures(std::span<const float> rows, std::byte* to) const;
  // Sets the input of the next Enqueue: the features at rows[i], in device memory.
  Status TakeFeatures(std::span<const std::byte* const> rows, Stream& stream);
  // Enqueues the first `heads` heads for `rows` rows, then the draws, if any.
  Status Enqueue(int32_t rows, int32_t heads, const StepDraws& draws, Stream& stream);
  // Enqueues only draws, from the logits of the last Enqueue.
  Status EnqueueDraws(const StepDraws& draws, Stream& stream);
  // Prepares all launches of such an Enqueue, for a capture.
  Status Prepare(int32_t rows, int32_t heads, const StepDraws& draws);
  // The row of `head` and `row` in target_logits (f32, target's vocabulary), as draws number it.
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
  // Whether logits are spread over the target's vocabulary; for the CPU, the host's draw does that.
  bool spreads() const { return beside_host() && spec_.draft_vocabulary != spec_.vocabulary; }
  Status LoadWeights(const std::string& directory);
  Status ReadTokenMap(const Checkpoint* checkpoint);
  Status Allocate();
  Status FillTables();
  void EmitNorm(ProgrammeBuilder& b) const;
  void EmitHead(ProgrammeBuilder& b, size_t index) const;
  void EmitProgrammes();
  // The input of matrices after the norm / inside a head.
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
  // [max_rows, hidden]: the input, after the norm, inside a head, and a block's output; f32 except
  // features_. The rounded_ ones are copies in the compute dtype, if that is another.
  TensorView features_, normed_, x_, added_, normed_rounded_, rounded_;
  TensorView target_logits_;  // GPU only: f32 [heads * max_rows, vocabulary]
  std::vector<CopyRange> ranges_;
};

}  // namespace aisp
