// ModelDraftHead: an EAGLE-3 head with a KV pool of its own, and draws from its logits. Its draws
// are over the target's vocabulary: a token that the head has no logit for is as unlikely as can
// be, and drawn only where a constraint leaves none that it has. On the CPU. Engine thread only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/draft_head.h"
#include "engine/sampler.h"
#include "kvcache/layout.h"
#include "model/eagle_head.h"

namespace aisp {

struct DraftHeadOptions {
  EagleHeadOptions head;
  int32_t block_tokens = 16;
  int32_t num_blocks = 0;
};

class ModelDraftHead final : public DraftHead {
 public:
  // `embedding`: the target's; it outlives this, as do device and operations.
  static Result<std::unique_ptr<ModelDraftHead>> Create(const std::string& directory,
                                                        const EagleSpec& spec,
                                                        const TensorView& embedding,
                                                        const DraftHeadOptions& options,
                                                        Device& device, Ops& ops);

  const KvLayout& kv_layout() const override { return layout_; }
  int32_t feature_size() const override { return head_->feature_size(); }
  int32_t max_context() const override { return head_->options().max_context; }
  int32_t max_rows() const override { return head_->options().max_rows; }
  int32_t max_sequences() const override { return head_->options().max_sequences; }
  Result<std::vector<SampledToken>> Run(const HeadStep& step) override;

 private:
  explicit ModelDraftHead(std::unique_ptr<EagleHead> head);

  const std::unique_ptr<EagleHead> head_;
  KvLayout layout_;
  Buffer pool_;
  Sampler sampler_;
  std::vector<float> logits_;  // [the target's vocabulary] of one row
};

}  // namespace aisp
