// AsyncDraftHead: a draft head (EAGLE-3 or a multi-token prediction layer) on an asynchronous
// device, with its own KV pool; tokens are drawn on the device.
//
// Its steps are enqueued on the target's stream: after the step that made the features and before
// the next one, so its kernels never compete with the target's. Steps that draw are captured
// graphs, keyed by number of rows, for sequences of one row or of at most 4, 8 or 16. Drawn tokens
// stay on the device for the next step; the host's inputs for that step are uploaded while this one
// runs.
//
// Draws follow AsyncExecutor's rules over the target's vocabulary: a token without a logit in the
// head gets the lowest probability. With a mask, the logprob is still over all tokens. Engine
// thread only.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/draft_draws.h"
#include "engine/draft_head.h"
#include "engine/feature_landings.h"
#include "engine/model_draft_head.h"

namespace aisp {

class AsyncDraftHead final : public DraftHead {
 public:
  // `embedding` is the target's. It, the stream, device and operations outlive this.
  static Result<std::unique_ptr<AsyncDraftHead>> Create(const std::string& directory,
                                                        const EagleSpec& spec,
                                                        const TensorView& embedding,
                                                        const DraftHeadOptions& options,
                                                        Stream& stream, Device& device, Ops& ops);
  // All references outlive this.
  static Result<std::unique_ptr<AsyncDraftHead>> Create(const std::string& directory,
                                                        const MtpSpec& spec, const Model& target,
                                                        const DraftHeadOptions& options,
                                                        Stream& stream, Device& device, Ops& ops);
  // Waits for steps in flight.
  ~AsyncDraftHead() override;

  const KvLayout& kv_layout() const override { return layout_; }
  int32_t feature_size() const override { return head_->feature_size(); }
  size_t feature_bytes() const override { return head_->feature_bytes(); }
  std::byte* feature_places() override { return static_cast<std::byte*>(places_.data()); }
  int32_t num_feature_places() const override { return FeaturePlacesOf(options_); }
  Status PlaceFeatures(std::span<const std::span<const float>> runs,
                       std::vector<std::span<const std::byte>>* placed) override;
  Status KeepFeatures(std::span<const FeatureCopy> rows) override;
  int32_t max_context() const override { return options_.head.max_context; }
  int32_t max_rows() const override { return options_.head.max_rows; }
  int32_t max_sequences() const override { return options_.head.max_sequences; }
  int max_depth() const override { return kDepth; }
  Status Launch(const HeadStep& step) override;
  Result<std::vector<SampledToken>> Collect() override;

  size_t graphs() const { return graphs_.size(); }

 private:
  static constexpr int kDepth = 2;
  // Most rows of one run of features uploaded from the host.
  static constexpr size_t kLandingRows = 64;

  // What a graph was captured for.
  struct GraphKey {
    FeatureHead::Part part = FeatureHead::Part::kBegin;
    bool filters = false;
    int32_t longest = 1;
    int32_t rows = 0;  // 0: no graph
    size_t place = 0;  // buffer set of the batch and of the draws
    auto operator<=>(const GraphKey&) const = default;
  };

  static Result<std::unique_ptr<AsyncDraftHead>> Over(std::unique_ptr<FeatureHead> head,
                                                      const DraftHeadOptions& options,
                                                      Stream& stream, Device& device);
  AsyncDraftHead(std::unique_ptr<FeatureHead> head, const DraftHeadOptions& options, Stream& stream,
                 Device& device)
      : options_(options), stream_(stream), device_(device), head_(std::move(head)) {}
  Status Start();
  Status Allocate();
  Status WarmUp();
  Status CaptureGraphs();
  GraphKey KeyFor(const HeadStep& step) const;
  Result<Graph*> GraphFor(const GraphKey& key);
  Status Enqueue(const HeadStep& step, size_t place);

  const DraftHeadOptions options_;
  Stream& stream_;
  Device& device_;
  const std::unique_ptr<FeatureHead> head_;
  KvLayout layout_;
  Buffer pool_, places_, slot_tokens_;
  std::unique_ptr<DraftDraws> draws_;
  std::unique_ptr<FeatureLandings> landings_;
  std::unique_ptr<Stream> upload_stream_;
  std::unique_ptr<Event> uploaded_;
  size_t launched_ = 0;
  std::deque<size_t> drawing_;  // buffer sets of the steps in flight that draw
  std::vector<int32_t> sizes_;
  std::map<GraphKey, std::unique_ptr<Graph>> graphs_;
  std::vector<CopyRange> ranges_;
};

}  // namespace aisp
