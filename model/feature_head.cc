#include "model/feature_head.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "model/bf16.h"

namespace aisp {

FeatureHead::FeatureHead(const HeadShape& shape, const FeatureHeadOptions& options, Device& device,
                         Ops& ops)
    : options_(options),
      device_(device),
      ops_(ops),
      feature_dtype_(device.info().asynchronous ? options.compute_dtype : DType::kF32),
      shape_(shape) {}

Status FeatureHead::CreateUpload() {
  AISP_ASSIGN_OR_RETURN(
      upload_, BatchUpload::Create(device_, {options_.max_rows, options_.max_sequences,
                                             options_.max_sequences, options_.max_context}));
  return {};
}

Status FeatureHead::Bind(const PagedKvView& kv, int32_t* slot_tokens) {
  block_tokens_ = kv.block_tokens;
  slot_tokens_ = slot_tokens;
  for (size_t part = 0; part < programmes_.size(); ++part) {
    AISP_RETURN_IF_ERROR(programmes_[part].BindKv({&kv, 1}));
    prepared_[part].emplace(ops_, programmes_[part]);
    Bucket smallest;
    smallest.sequences = smallest.rows = smallest.rows_per_sequence = smallest.logit_rows = 1;
    smallest.all_logits = true;
    AISP_RETURN_IF_ERROR(prepared_[part]->For(smallest));
  }
  return {};
}

void FeatureHead::FormatFeatures(std::span<const float> rows, std::byte* to) const {
  if (feature_dtype_ == DType::kF32) {
    std::memcpy(to, rows.data(), rows.size_bytes());
  } else {
    AISP_CHECK(feature_dtype_ == DType::kBF16);
    RoundToBf16(rows, reinterpret_cast<uint16_t*>(to));
  }
}

Status FeatureHead::TakeFeatures(std::span<const std::byte* const> rows, Stream& stream) {
  AISP_CHECK(static_cast<int64_t>(rows.size()) <= features_.rows());
  const size_t bytes = feature_bytes();
  if (feature_dtype_ != features_.dtype) {  // on the CPU only
    const auto size = static_cast<size_t>(feature_size());
    for (size_t i = 0; i < rows.size(); ++i)
      RoundToBf16({reinterpret_cast<const float*>(rows[i]), size},
                  features_.as<uint16_t>() + i * size);
    return {};
  }
  // Adjacent rows are merged into one range. `base` is the address that offsets are relative to.
  const std::byte* const base = *std::min_element(rows.begin(), rows.end());
  ranges_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto from = static_cast<size_t>(rows[i] - base);
    if (!ranges_.empty() && ranges_.back().source_offset + ranges_.back().bytes == from) {
      ranges_.back().bytes += bytes;
    } else {
      ranges_.push_back({from, i * bytes, bytes});
    }
  }
  return device_.CopyRanges(features_.data, base, ranges_, stream);
}

// Nothing is copied unless a sequence has left.
Status FeatureHead::GoOnFrom(std::span<const int32_t> outputs, Stream& stream) {
  const size_t bytes = static_cast<size_t>(shape_.hidden) * sizeof(float);
  ranges_.clear();
  bool moves = false;
  for (size_t i = 0; i < outputs.size(); ++i) {
    AISP_CHECK(outputs[i] >= static_cast<int32_t>(i) && outputs[i] < kept_.rows());
    moves |= outputs[i] != static_cast<int32_t>(i);
    ranges_.push_back({static_cast<size_t>(outputs[i]) * bytes, i * bytes, bytes});
  }
  if (!moves) return {};
  // Through hidden_, which kGoOn does not use: a source row may be another's destination.
  AISP_RETURN_IF_ERROR(device_.CopyRanges(hidden_.data, kept_.data, ranges_, stream));
  return device_.Copy(kept_.data, hidden_.data, outputs.size() * bytes, stream);
}

Result<DeviceBatch> FeatureHead::Upload(const ForwardBatch& batch, int32_t pad_to, int32_t place,
                                        Stream& stream) {
  return upload_.Upload(batch, shape_.vocabulary, block_tokens_, pad_to, place, device_, stream);
}

// Sequences with few rows use the verify kernels, whichever logits are wanted.
Bucket FeatureHead::BucketFor(const DeviceBatch& batch, const StepDraws& draws) const {
  Bucket bucket = BucketOf(batch, draws.part, draws.params);
  const int32_t longest = batch.ragged.longest_rows;
  if (longest > 1 && longest <= kMostVerifyRows) {
    bucket.mode = StepMode::kVerify;
    bucket.rows_per_sequence = VerifyRows(longest);
  }
  return bucket;
}

Result<PreparedStep*> FeatureHead::Prepare(Part part, const DeviceBatch& batch,
                                           const StepDraws& draws) {
  auto& prepared = prepared_[static_cast<size_t>(part)];
  AISP_CHECK_MSG(prepared, "a step before Bind");
  return prepared->For(BucketFor(batch, draws));
}

Status FeatureHead::Enqueue(Part part, const DeviceBatch& batch, const StepDraws& draws,
                            Stream& stream) {
  AISP_ASSIGN_OR_RETURN(PreparedStep* const step, Prepare(part, batch, draws));
  StepInputs inputs;
  inputs.batch = batch.ragged;
  inputs.tokens = batch.tokens;
  inputs.slot_of_row = slot_tokens_ != nullptr ? batch.slot_of_row : nullptr;
  inputs.slot_tokens = slot_tokens_;
  inputs.logit_rows = batch.logit_rows;
  inputs.num_logit_rows = batch.num_logit_rows;
  inputs.draw = draws.params;
  return step->Run(inputs, {}, stream);
}

}  // namespace aisp
