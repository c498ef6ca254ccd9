// ProvenanceHead: a head that is never wrong, unless its KV is. Each slot of its pool holds a row's
// token and features; the pool starts as garbage. A draw checks every slot of its sequence: if each
// holds the target's values for the preceding tokens, it draws the target's token, else another.
// One thread.
#pragma once

#include <utility>
#include <vector>

#include "engine/draft_head.h"
#include "tests/support/provenance_executor.h"

namespace aisp {

struct ProvenanceHeadOptions {
  int32_t block_tokens = 16;
  int32_t num_blocks = 64;
  int32_t max_context = 4096;
  int32_t max_rows = 512;
  int32_t max_sequences = 16;
  // Runs of features that the host can upload at once, if the target's stay on a device.
  int32_t landings = 16;
};

class ProvenanceHead final : public DraftHead {
 public:
  ProvenanceHead(const ProvenanceOptions& target, const ProvenanceHeadOptions& options);

  const KvLayout& kv_layout() const override { return layout_; }
  int32_t feature_size() const override { return kProvenanceFeatures; }
  size_t feature_bytes() const override {
    return kProvenanceFeatures * (on_device() ? sizeof(uint16_t) : sizeof(float));
  }
  std::byte* feature_places() override { return places_.data(); }
  int32_t num_feature_places() const override {
    return static_cast<int32_t>(places_.size() / feature_bytes());
  }
  Status PlaceFeatures(std::span<const std::span<const float>> runs,
                       std::vector<std::span<const std::byte>>* placed) override;
  Status KeepFeatures(std::span<const FeatureCopy> rows) override;
  int32_t max_context() const override { return options_.max_context; }
  int32_t max_rows() const override { return options_.max_rows; }
  int32_t max_sequences() const override { return options_.max_sequences; }
  int max_depth() const override { return 1; }
  Status Launch(const HeadStep& step) override;
  Result<std::vector<SampledToken>> Collect() override { return std::exchange(tokens_, {}); }

  bool fail = false;  // every step
  uint64_t rows_computed = 0;
  int32_t longest_step = 0;       // in rows
  int32_t longest_context = 0;    // of a draw
  int32_t shortest_context = -1;  // of a draw
  // Each draw: its position, and how many rows it read.
  std::vector<std::pair<uint32_t, int32_t>> draws;

 private:
  struct Slot {
    uint64_t state = 0;
    TokenId token = 0;
  };
  bool on_device() const { return target_.most_kept_features >= 0; }
  uint64_t StateAt(const std::byte* features) const;
  Slot& At(const HeadStep& step, const SequenceRows& rows, int32_t position);
  SampledToken Draw(const HeadStep& step, const SequenceRows& rows, const SampleRow& row);

  const ProvenanceOptions target_;
  const ProvenanceHeadOptions options_;
  KvLayout layout_;
  std::vector<Slot> pool_;
  std::vector<std::byte> places_;
  std::vector<std::vector<uint16_t>> landings_;  // of the last PlaceFeatures
  std::vector<SampledToken> tokens_;             // of the step in flight
  std::vector<uint64_t> outputs_, drawn_;        // of the previous step, and of this one
};

}  // namespace aisp
