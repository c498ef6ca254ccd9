// EagleHead: the weights of an EAGLE-3 head and its forward pass.
//
// Row i of a sequence reads the embedding of token i + 1 and, of token i, the target's features or,
// behind the last token that the target has computed, the head's own output one row before. It says
// which token follows token i + 1. Its KV is its own, one layer of it; a row stands there at the
// place that its position in the batch says, so a sequence may begin anywhere in a text (rotation
// is relative).
//
// A step begins, with features, or goes on with outputs; each Part is a programme of its own. As in
// a Model: everything is allocated by Load, one step at a time, the logits stay valid until the
// next one, and on the CPU rows do not depend on what else is in a step. Everything is enqueued on
// the stream that is given. Device and operations outlive it, and so does the model whose
// embeddings it reads.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "model/batch_upload.h"
#include "model/eagle_spec.h"
#include "model/model.h"
#include "model/prepared_steps.h"
#include "model/sublayer.h"

namespace aisp {

struct EagleHeadOptions {
  DType compute_dtype = DType::kF32;
  int32_t max_rows = 512;
  int32_t max_sequences = 64;  // of a step; as many logit rows
  int32_t max_context = 2048;
  // As ModelOptions. Random weights have tokens from all of the target's vocabulary.
  std::optional<uint64_t> random_weights = std::nullopt;
  std::optional<WeightFormat> weight_format = std::nullopt;
};

class EagleHead {
 public:
  // What a token that the head has no logit for has in target_logits(): finite, for a draw takes
  // anything else as a fault of the model.
  static constexpr float kNoLogit = -1e9f;
  // kTakeUp: as kBegin, of rows of which nothing but their KV is wanted.
  enum class Part : uint8_t { kBegin, kGoOn, kTakeUp };

  // `embedding`: the target's, [vocabulary, hidden]. Errors name the tensor, or the place in d2t
  // that is out of the target's vocabulary.
  static Result<std::unique_ptr<EagleHead>> Load(const std::string& directory,
                                                 const EagleSpec& spec, const TensorView& embedding,
                                                 const EagleHeadOptions& options, Device& device,
                                                 Ops& ops);

  const EagleSpec& spec() const { return spec_; }
  const EagleHeadOptions& options() const { return options_; }
  int32_t feature_size() const {
    return static_cast<int32_t>(spec_.feature_layers.size()) * spec_.target_hidden;
  }
  // Of a row of features: f32, or the compute dtype on a device that runs beside the host.
  DType feature_dtype() const { return feature_dtype_; }
  size_t feature_bytes() const {
    return static_cast<size_t>(feature_size()) * DTypeBytes(feature_dtype_);
  }
  // The token of the target's vocabulary that each of the head's logits is of.
  std::span<const TokenId> target_tokens() const { return target_tokens_; }
  // Device bytes beside the KV pool.
  size_t bytes() const;

  // Where its KV lies, and, as of Model, the last token drawn for each slot, if rows may read it.
  // Once, before the first step; errors name what the device has no kernel for.
  Status Bind(const PagedKvView& kv, int32_t* slot_tokens = nullptr);

  // What the next step reads beside its tokens. Row i begins with the features at rows[i], in the
  // device's memory; or goes on with the head's output at logit row outputs[i], which ascend, of
  // the step before.
  Status TakeFeatures(std::span<const std::byte* const> rows, Stream& stream);
  Status GoOnFrom(std::span<const int32_t> outputs, Stream& stream);

  // A step, as of Model. `all_logits` of Padded: of every row, in order; else one for a sequence.
  Result<DeviceBatch> Upload(const ForwardBatch& batch, int32_t pad_to, int32_t place,
                             Stream& stream);
  DeviceBatch Padded(int32_t rows, int32_t longest, int32_t place, bool all_logits) const {
    return upload_.Padded(rows, longest, place, all_logits);
  }
  Status Enqueue(Part part, const DeviceBatch& batch, const StepDraws& draws, Stream& stream);
  Result<PreparedStep*> Prepare(Part part, const DeviceBatch& batch, const StepDraws& draws);

  // f32 [max_sequences, draft vocabulary]: row i is of batch.logit_rows[i] of the last step.
  TensorView logits() const { return logits_; }
  // The same over the target's vocabulary.
  TensorView target_logits() const { return target_logits_; }

 private:
  EagleHead(EagleSpec spec, const EagleHeadOptions& options, Device& device, Ops& ops)
      : spec_(std::move(spec)), options_(options), device_(device), ops_(ops) {}
  Status LoadWeights(const std::string& directory, Stream& stream);
  Status ReadTokenMap(const Checkpoint& checkpoint);
  void MakeTokenMap();
  Status Allocate(Stream& stream);
  Status FillTables(Stream& stream);
  void EmitProgrammes();
  void EmitFeatures(ProgrammeBuilder& b) const;
  ValueId EmitKeys(ProgrammeBuilder& b, const TensorView& residual) const;
  void EmitLayer(ProgrammeBuilder& b, const TensorView& residual) const;
  void EmitMlp(ProgrammeBuilder& b, const TensorView& residual) const;
  void EmitOutput(ProgrammeBuilder& b, const TensorView& residual, bool keeps) const;
  Bucket BucketFor(const DeviceBatch& batch, const StepDraws& draws) const;
  bool spreads() const { return spec_.draft_vocabulary != spec_.layer.vocabulary; }

  const EagleSpec spec_;
  const EagleHeadOptions options_;
  Device& device_;
  Ops& ops_;
  DType feature_dtype_ = DType::kF32;
  DType activation_ = DType::kF32;
  bool fused_ = false;  // gate, up and their product in one operation
  TensorView embedding_;
  std::vector<TokenId> target_tokens_;
  DeviceVector input_norm_, hidden_norm_, post_norm_, final_norm_;
  std::unique_ptr<PackedLinear> fc_, qkv_, output_, gate_up_, down_, head_;
  size_t weight_bytes_ = 0;
  Workspace unused_;
  Buffer rope_memory_, memory_, columns_;
  TensorView rope_;
  // [max_rows, ..]: what a step hands on. `both_`: the normed embedding beside the normed hidden
  // state. `hidden_`: the residual stream of a step that begins.
  TensorView features_, embedded_, hidden_, both_, wide_, mixed_, normed_;
  // [max_sequences, ..]: of the rows whose logits are wanted. `kept_`: what the head made of them,
  // and the residual stream of a step that goes on.
  TensorView kept_, head_input_, logits_, target_logits_;
  BatchUpload upload_;
  std::array<Programme, 3> programmes_;                   // by Part
  std::array<std::optional<PreparedSteps>, 3> prepared_;  // from Bind on
  int32_t block_tokens_ = 0;
  int32_t* slot_tokens_ = nullptr;
  std::vector<CopyRange> ranges_;
};

}  // namespace aisp
