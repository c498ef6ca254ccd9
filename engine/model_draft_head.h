// ModelDraftHead: a draft head (EAGLE-3 or a multi-token prediction layer) on the CPU, with its own
// KV pool. It draws over the target's vocabulary: a token without a logit in the head gets the
// lowest probability, and is drawn only if a constraint allows no other. Engine thread only.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/draft_head.h"
#include "engine/sampler.h"
#include "kvcache/layout.h"
#include "model/eagle_head.h"
#include "model/mtp_head.h"

namespace aisp {

struct DraftHeadOptions {
  FeatureHeadOptions head;
  int32_t block_tokens = 16;
  int32_t num_blocks = 0;
  DType kv_dtype = DType::kF32;  // on a GPU; else the compute dtype is used
  bool use_graphs = true;        // on a GPU
  // Buffers for rows of features that wait; 0: nine per sequence of a step.
  int32_t feature_places = 0;
};

int32_t FeaturePlacesOf(const DraftHeadOptions& options);
FeatureHead::Part PartOf(const HeadStep& step);

class ModelDraftHead final : public DraftHead {
 public:
  // `embedding` is the target's; it, device and operations outlive this.
  static Result<std::unique_ptr<ModelDraftHead>> Create(const std::string& directory,
                                                        const EagleSpec& spec,
                                                        const TensorView& embedding,
                                                        const DraftHeadOptions& options,
                                                        Device& device, Ops& ops);
  // All references outlive this.
  static Result<std::unique_ptr<ModelDraftHead>> Create(const std::string& directory,
                                                        const MtpSpec& spec, const Model& target,
                                                        const DraftHeadOptions& options,
                                                        Device& device, Ops& ops);

  const KvLayout& kv_layout() const override { return layout_; }
  int32_t feature_size() const override { return head_->feature_size(); }
  size_t feature_bytes() const override { return head_->feature_bytes(); }
  std::byte* feature_places() override { return places_.data(); }
  int32_t num_feature_places() const override {
    return static_cast<int32_t>(places_.size() / feature_bytes());
  }
  Status KeepFeatures(std::span<const FeatureCopy> rows) override;
  int32_t max_context() const override { return head_->options().max_context; }
  int32_t max_rows() const override { return head_->options().max_rows; }
  int32_t max_sequences() const override { return head_->options().max_sequences; }
  int max_depth() const override { return 1; }
  Status Launch(const HeadStep& step) override;
  Result<std::vector<SampledToken>> Collect() override { return std::exchange(drawn_, {}); }

 private:
  static Result<std::unique_ptr<ModelDraftHead>> Over(std::unique_ptr<FeatureHead> head,
                                                      const DraftHeadOptions& options,
                                                      Device& device);
  ModelDraftHead(std::unique_ptr<FeatureHead> head, int32_t feature_places);

  const std::unique_ptr<FeatureHead> head_;
  KvLayout layout_;
  Buffer pool_;
  std::unique_ptr<Stream> stream_;
  Sampler sampler_;
  std::vector<std::byte> places_;
  std::vector<SampledToken> drawn_;  // by the last step
};

}  // namespace aisp
