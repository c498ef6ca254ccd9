// FeatureHead: common part of the heads that draft autoregressively. They read tokens and the
// target's features of the previous tokens, and have one layer with KV of its own.
//
// Row i of a sequence reads the embedding of token i + 1 and the target's features of token i or,
// beyond the last token that the target has computed, the head's own output of the row before. It
// predicts the token after i + 1. A row's KV is stored by its position in the batch, so a sequence
// may start anywhere in a text (rotary positions are relative).
//
// A step either begins, from features, or goes on, from outputs; each Part has its own programme.
// As in Model: Load allocates everything, one step at a time, logits stay valid until the next
// step, and on the CPU a row does not depend on the others. Everything is enqueued on the given
// stream. Device, operations and the model whose embeddings it reads outlive it.
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
  int32_t max_sequences = 64;  // per step; also the number of logit rows
  int32_t max_context = 2048;
  // As in ModelOptions. Random heads use tokens spread over the target's vocabulary.
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
  // kCatchUp: as kBegin, for rows of which only the KV is needed.
  enum class Part : uint8_t { kBegin, kGoOn, kCatchUp };

  virtual ~FeatureHead() = default;
  FeatureHead(const FeatureHead&) = delete;
  FeatureHead& operator=(const FeatureHead&) = delete;

  const FeatureHeadOptions& options() const { return options_; }
  const HeadShape& shape() const { return shape_; }
  int32_t feature_size() const { return shape_.feature_size; }
  // Dtype of features: f32, or the compute dtype on an asynchronous device (GPU).
  DType feature_dtype() const { return feature_dtype_; }
  size_t feature_bytes() const {
    return static_cast<size_t>(feature_size()) * DTypeBytes(feature_dtype_);
  }

  // Converts f32 rows on the host to the format that TakeFeatures reads.
  void FormatFeatures(std::span<const float> rows, std::byte* to) const;

  // Sets the KV pool and, if rows may read it, the last token drawn for each slot (as in
  // Model::Bind). Once, before the first step; errors name what the device has no kernel for.
  Status Bind(const PagedKvView& kv, int32_t* slot_tokens = nullptr);

  // Sets the input of the next step. TakeFeatures: row i reads the features at rows[i], in device
  // memory. GoOnFrom: row i reads the previous step's output at logit row outputs[i] (ascending).
  Status TakeFeatures(std::span<const std::byte* const> rows, Stream& stream);
  Status GoOnFrom(std::span<const int32_t> outputs, Stream& stream);

  // A step, as in Model. `all_logits` of Padded: a logit row for every row, else one per sequence.
  Result<DeviceBatch> Upload(const ForwardBatch& batch, int32_t pad_to, int32_t place,
                             Stream& stream);
  DeviceBatch Padded(int32_t rows, int32_t longest, int32_t place, bool all_logits) const {
    return upload_.Padded(rows, longest, place, all_logits);
  }
  Status Enqueue(Part part, const DeviceBatch& batch, const StepDraws& draws, Stream& stream);
  Result<PreparedStep*> Prepare(Part part, const DeviceBatch& batch, const StepDraws& draws);

  // f32 [max_sequences, draft vocabulary]: row i belongs to batch.logit_rows[i] of the last step.
  TensorView logits() const { return logits_; }
  // The same, over the target's vocabulary.
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
  // Allocated by the derived class. [max_rows, ..]: `features_` as steps read them; `hidden_`, f32
  // [max_rows, hidden], which kGoOn does not read.
  TensorView features_, hidden_;
  // [max_sequences, ..], for the logit rows. `kept_`: the head's output, which kGoOn reads.
  TensorView kept_, logits_, target_logits_;

 private:
  Bucket BucketFor(const DeviceBatch& batch, const StepDraws& draws) const;

  const HeadShape shape_;
  BatchUpload upload_;
  std::array<Programme, 3> programmes_;                   // by Part
  std::array<std::optional<PreparedSteps>, 3> prepared_;  // set by Bind
  int32_t block_tokens_ = 0;
  int32_t* slot_tokens_ = nullptr;
  std::vector<CopyRange> ranges_;
};

}  // namespace aisp
