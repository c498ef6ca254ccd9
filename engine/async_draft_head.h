// AsyncDraftHead: a head (an EAGLE-3 head, a next-token layer) on a device that computes beside the
// host, with a KV pool of its own, and draws there.
//
// Its steps are enqueued on the stream of the target's, so they come behind the step that made the
// features, and in front of the next one; kernels that want the device for themselves never meet
// another's. Steps that draw are captured graphs, by number of rows and for sequences of one row,
// or of at most 4, 8 or 16. Their tokens stay on the device for the next one, and what the host has
// for that comes to the device beside them.
//
// Draws are AsyncExecutor's, over the target's vocabulary: a token that the head has no logit for
// is as unlikely as can be. The logprob of a token under a mask is that among all tokens. Engine
// thread only.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/draft_head.h"
#include "engine/draw_rows.h"
#include "engine/model_draft_head.h"

namespace aisp {

class AsyncDraftHead final : public DraftHead {
 public:
  // `embedding`: the target's; it, the stream, device and operations outlive this.
  static Result<std::unique_ptr<AsyncDraftHead>> Create(const std::string& directory,
                                                        const EagleSpec& spec,
                                                        const TensorView& embedding,
                                                        const DraftHeadOptions& options,
                                                        Stream& stream, Device& device, Ops& ops);
  // `target` outlives this, and so do the others.
  static Result<std::unique_ptr<AsyncDraftHead>> Create(const std::string& directory,
                                                        const MtpSpec& spec, const Model& target,
                                                        const DraftHeadOptions& options,
                                                        Stream& stream, Device& device, Ops& ops);
  // Waits for what is in flight.
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
  // Runs of features from the host, of so many rows, that may wait for the device to read them.
  static constexpr size_t kLandings = 32;
  static constexpr size_t kLandingRows = 64;

  // Page-locked memory for a run of features, from where the device reads them.
  struct Landing {
    std::byte* rows = nullptr;
    std::unique_ptr<Event> read;
    bool given = false;    // by the last call: all that reads it is enqueued before the next one
    bool waiting = false;  // for `read`
  };

  // What the host has for a step, until that has been done.
  struct Flight {
    Buffer staging;       // page-locked: DrawRow [max_sequences], then edits
    Buffer mask_staging;  // page-locked
    std::unique_ptr<Event> done;
    // By sample: of the token that is drawn, and why it was not drawn.
    std::vector<uint32_t> positions;
    std::vector<Status> refused;
  };

  // What a graph was captured for.
  struct GraphKey {
    FeatureHead::Part part = FeatureHead::Part::kBegin;
    bool filters = false;
    int32_t longest = 1;
    int32_t rows = 0;  // 0: no graph
    size_t place = 0;  // of the batch and of the draws
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
  StepDraws DrawsOf(int32_t rows, bool filters, size_t place) const;
  Status Enqueue(const HeadStep& step, size_t place);
  Status UploadDraws(std::span<const SampleRow> samples, int32_t rows, Flight& flight,
                     Stream& stream);
  // Where the device leaves what it draws for a sample.
  size_t DrawnAt(const Flight& flight, size_t sample) const {
    return static_cast<size_t>(&flight - flights_.data()) * static_cast<size_t>(max_sequences()) +
           sample;
  }
  SampledToken TokenOf(const Flight& flight, size_t sample) const;
  Result<Landing*> FreeLanding();
  size_t MaskWords() const;
  size_t MaxEdits() const;

  const DraftHeadOptions options_;
  Stream& stream_;
  Device& device_;
  const std::unique_ptr<FeatureHead> head_;
  KvLayout layout_;
  Buffer pool_, places_, slot_tokens_, draw_edits_, draw_masks_;
  std::array<Buffer, kDepth> draw_rows_;
  Buffer drawn_;  // page-locked, written by the device: DrawnToken [kDepth, max_sequences]
  std::unique_ptr<Stream> upload_stream_;
  std::unique_ptr<Event> uploaded_;
  std::array<Flight, kDepth> flights_;
  size_t launched_ = 0;
  std::deque<Flight*> drawing_;  // those in flight that draw
  std::optional<EditWriter> edits_;
  std::vector<int32_t> sizes_;
  std::map<GraphKey, std::unique_ptr<Graph>> graphs_;
  std::vector<CopyRange> ranges_;
  Buffer landing_rows_;
  std::array<Landing, kLandings> landings_;
};

}  // namespace aisp
