#include "engine/model_draft_head.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "common/check.h"
#include "engine/drafting.h"
#include "engine/model_executor.h"

namespace aisp {
namespace {

std::span<const float> RowOf(const TensorView& rows, int32_t index) {
  return {rows.as<const float>() + index * rows.cols(), static_cast<size_t>(rows.cols())};
}

}  // namespace

FeatureHead::Part PartOf(const HeadStep& step) {
  if (step.features.empty()) return FeatureHead::Part::kGoOn;
  return step.samples.empty() ? FeatureHead::Part::kCatchUp : FeatureHead::Part::kBegin;
}

int32_t FeaturePlacesOf(const DraftHeadOptions& options) {
  constexpr int32_t kOfSequence = 9;
  return options.feature_places > 0 ? options.feature_places
                                    : kOfSequence * options.head.max_sequences;
}

ModelDraftHead::ModelDraftHead(std::unique_ptr<FeatureHead> head, int32_t feature_places)
    : head_(std::move(head)),
      sampler_(head_->shape().vocabulary),
      places_(static_cast<size_t>(feature_places) * head_->feature_bytes()) {}

Result<std::unique_ptr<ModelDraftHead>> ModelDraftHead::Create(const std::string& directory,
                                                               const EagleSpec& spec,
                                                               const TensorView& embedding,
                                                               const DraftHeadOptions& options,
                                                               Device& device, Ops& ops) {
  if (device.info().asynchronous) {
    return Unimplemented(fmt::format("this head computes inside Run; a {} device needs another one",
                                     device.info().kind));
  }
  AISP_ASSIGN_OR_RETURN(auto head,
                        EagleHead::Load(directory, spec, embedding, options.head, device, ops));
  return Over(std::move(head), options, device);
}

Result<std::unique_ptr<ModelDraftHead>> ModelDraftHead::Create(const std::string& directory,
                                                               const MtpSpec& spec,
                                                               const Model& target,
                                                               const DraftHeadOptions& options,
                                                               Device& device, Ops& ops) {
  AISP_ASSIGN_OR_RETURN(auto head,
                        MtpHead::Load(directory, spec, target, options.head, device, ops));
  return Over(std::move(head), options, device);
}

Result<std::unique_ptr<ModelDraftHead>> ModelDraftHead::Over(std::unique_ptr<FeatureHead> head,
                                                             const DraftHeadOptions& options,
                                                             Device& device) {
  std::unique_ptr<ModelDraftHead> made(
      new ModelDraftHead(std::move(head), FeaturePlacesOf(options)));
  AISP_ASSIGN_OR_RETURN(made->layout_,
                        MakeKvLayout(made->head_->shape().kv, options.block_tokens,
                                     options.head.compute_dtype, options.num_blocks, 0));
  AISP_ASSIGN_OR_RETURN(made->pool_,
                        device.Allocate(made->layout_.PoolBytes(), MemoryKind::kDevice));
  AISP_ASSIGN_OR_RETURN(made->stream_, device.CreateStream());
  AISP_RETURN_IF_ERROR(made->head_->Bind(KvViews(made->layout_, made->pool_.data()).front()));
  return made;
}

Status ModelDraftHead::KeepFeatures(std::span<const FeatureCopy> rows) {
  for (const FeatureCopy& row : rows) std::memcpy(row.to, row.from, feature_bytes());
  return {};
}

Status ModelDraftHead::Launch(const HeadStep& step) {
  AISP_CHECK(step.samples.size() == step.batch.logit_rows.size());
  const bool begins = !step.features.empty();
  AISP_RETURN_IF_ERROR(begins ? head_->TakeFeatures(step.features, *stream_)
                              : head_->GoOnFrom(step.goes_on, *stream_));
  AISP_ASSIGN_OR_RETURN(const DeviceBatch batch, head_->Upload(step.batch, 0, 0, *stream_));
  AISP_RETURN_IF_ERROR(head_->Enqueue(PartOf(step), batch, {}, *stream_));
  drawn_.clear();
  for (const SampleRow& row : step.samples) {
    const std::span<const float> own = RowOf(head_->logits(), row.logit_index),
                                 all = RowOf(head_->target_logits(), row.logit_index);
    drawn_.push_back(DrawDrafted(sampler_, own, all, row));
  }
  return {};
}

}  // namespace aisp
