#include "engine/model_draft_head.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/check.h"
#include "engine/model_executor.h"

namespace aisp {
namespace {

// Finite, for the sampler takes anything else as a fault of the model.
constexpr float kNoLogit = -1e9f;

// Of a logit among those that the head has, which are few beside the target's vocabulary.
float LogprobOf(float logit, std::span<const float> own) {
  const float most = *std::max_element(own.begin(), own.end());
  float sum = 0;
  for (const float each : own) sum += std::exp(each - most);
  return logit - most - std::log(sum);
}

}  // namespace

ModelDraftHead::ModelDraftHead(std::unique_ptr<EagleHead> head)
    : head_(std::move(head)),
      sampler_(head_->spec().layer.vocabulary),
      logits_(static_cast<size_t>(head_->spec().layer.vocabulary), kNoLogit) {}

Result<std::unique_ptr<ModelDraftHead>> ModelDraftHead::Create(const std::string& directory,
                                                               const EagleSpec& spec,
                                                               const TensorView& embedding,
                                                               const DraftHeadOptions& options,
                                                               Device& device, Ops& ops) {
  AISP_ASSIGN_OR_RETURN(auto head,
                        EagleHead::Load(directory, spec, embedding, options.head, device, ops));
  std::unique_ptr<ModelDraftHead> made(new ModelDraftHead(std::move(head)));
  AISP_ASSIGN_OR_RETURN(
      made->layout_, MakeKvLayout(spec.layer.kv(), options.block_tokens, options.head.compute_dtype,
                                  options.num_blocks, 0));
  AISP_ASSIGN_OR_RETURN(made->pool_,
                        device.Allocate(made->layout_.PoolBytes(), MemoryKind::kDevice));
  return made;
}

Result<std::vector<SampledToken>> ModelDraftHead::Run(const HeadStep& step) {
  AISP_CHECK(step.samples.size() == step.batch.logit_rows.size());
  const PagedKvView kv = KvViews(layout_, pool_.data()).front();
  if (step.features.empty()) {
    AISP_RETURN_IF_ERROR(head_->StepOn(step.batch, step.goes_on, kv));
  } else {
    AISP_RETURN_IF_ERROR(head_->Step(step.batch, step.features, kv));
  }
  const std::span<const TokenId> targets = head_->target_tokens();
  std::vector<SampledToken> drawn;
  for (const SampleRow& row : step.samples) {
    const std::span<const float> own(
        head_->logits().as<float>() + static_cast<size_t>(row.logit_index) * targets.size(),
        targets.size());
    for (size_t i = 0; i < targets.size(); ++i) logits_[static_cast<size_t>(targets[i])] = own[i];
    SampledToken& token = drawn.emplace_back(sampler_.Sample(logits_, row));
    if (!token.status || token.token < 0) continue;
    if (row.mask.empty()) {
      token.logprob = TokenLogprob{LogprobOf(logits_[static_cast<size_t>(token.token)], own), {}};
    } else {
      token.logprob = sampler_.LogprobsUnder(row.mask, logits_, token.token, 0);
    }
  }
  return drawn;
}

}  // namespace aisp
