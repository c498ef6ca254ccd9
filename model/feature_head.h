// FeatureHead: what the heads that draft token by token have in common: they read, beside tokens,
// what the target has made of the tokens before them, and have KV of their own, one layer of it.
//
// Row i of a sequence reads the embedding of token i + 1 and, of token i, the target's features or,
// behind the last token that the target has computed, the head's own output one row before. It says
// which token follows token i + 1. A row's KV stands at the place that its position in the batch
// says, so a sequence may begin anywhere in a text (rotation is relative).
//
// A step begins, with features, or goes on with outputs; each Part is a programme of its own. As in
// a Model: everything is allocated by Load, one step at a time, the logits stay valid until the
// next one, and on the CPU rows do not depend on what else is in a step. Everything is enqueued on
// the stream that is given. Device and operations outlive it, and so does the model whose
// embeddings it reads.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "model/batch_upload.h"
#include "model/model.h"
#include "model/prepared_steps.h"

namespace aisp {

struct FeatureHeadOptions {
  DType compute_dtype = DType::kF32;
  int32_t max_rows = 512;
  int32_t max_sequences = 64;  // of a step; as many logit rows
  int32_t max_context = 2048;
  // As ModelOptions. Random weights have tokens from all of the target's vocabulary.
  std::optional<uint64_t> random_weights = std::nullopt;
  std::optional<WeightFormat> weight_format = std::nullopt;
};

struct HeadShape {
  int32_t vocabulary = 0;  // the target's
  int32_t hidden = 0;
  int32_t feature_size = 0;
  KvShape kv;  // one layer
};

class FeatureHead {
 public:
  // What a token that the head has no logit for has in target_logits(): finite, for a draw takes
  // anything else as a fault of the model.
  static constexpr float kNoLogit = -1e9f;
  // kCatchUp: as kBegin, of rows of which nothing but their KV is wanted.
  enum class Part : uint8_t { kBegin, kGoOn, kCatchUp };

  virtual ~FeatureHead() = default;
  FeatureHead(const FeatureHead&) = delete;
  FeatureHead& operator=(const FeatureHead&) = delete;

  const FeatureHeadOptions& options() const { return options_; }
  const HeadShape& shape() const { return shape_; }
  int32_t feature_size() const { return shape_.feature_size; }
  // Of a row of features: f32, or the compute dtype on a device that runs beside the host.
  DType feature_dtype() const { return feature_dtype_; }
  size_t feature_bytes() const {
    return static_cast<size_t>(feature_size()) * DTypeBytes(feature_dtype_);
  }

  // Rows of f32 on the host in the format that TakeFeatures reads.
  void FormatFeatures(std::span<const float> rows, std::byte* to) const;

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

 protected:
  FeatureHead(const HeadShape& shape, const FeatureHeadOptions& options, Device& device, Ops& ops);
  Status CreateUpload();
  Programme& programme(Part part) { return programmes_[static_cast<size_t>(part)]; }
  size_t upload_bytes() const { return upload_.bytes(); }

  const FeatureHeadOptions options_;
  Device& device_;
  Ops& ops_;
  const DType feature_dtype_;
  // What a head allocates. [max_rows, ..]: `features_` as a step reads them, and `hidden_`, f32
  // [max_rows, hidden], which a step that goes on does not read.
  TensorView features_, hidden_;
  // [max_sequences, ..]: of the rows whose logits are wanted. `kept_`: what the head made of them,
  // which a step that goes on reads.
  TensorView kept_, logits_, target_logits_;

 private:
  Bucket BucketFor(const DeviceBatch& batch, const StepDraws& draws) const;

  const HeadShape shape_;
  BatchUpload upload_;
  std::array<Programme, 3> programmes_;                   // by Part
  std::array<std::optional<PreparedSteps>, 3> prepared_;  // from Bind on
  int32_t block_tokens_ = 0;
  int32_t* slot_tokens_ = nullptr;
  std::vector<CopyRange> ranges_;
};

}  // namespace aisp
