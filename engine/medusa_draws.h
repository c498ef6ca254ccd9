// MedusaDraws: keeps features of sequences, runs heads that each predict one token after a
// position, and draws from them. Implementations: HostMedusaDraws over any ParallelHeads, and
// AsyncMedusaDraws on a GPU. Engine thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/executor.h"
#include "engine/sampler.h"
#include "model/parallel_heads.h"

namespace aisp {

// A row of features to keep: in the format of steps (StepResult::feature_bytes), or f32 in host
// memory.
struct FeatureRow {
  const std::byte* from = nullptr;
  bool on_host = false;
  int32_t place = 0;
  bool kept = true;  // false: it could not be uploaded, and the place is unchanged
};

class MedusaDraws {
 public:
  virtual ~MedusaDraws() = default;
  virtual int32_t heads() const = 0;
  virtual int32_t feature_size() const = 0;
  // Bytes of a row in the format of steps.
  virtual size_t feature_bytes() const = 0;
  virtual int32_t max_rows() const = 0;  // of one Run
  // Most rows of features kept.
  virtual int32_t places() const = 0;
  // Copies rows to their places, after all earlier reads and before the next Run.
  virtual Status Keep(std::span<FeatureRow> rows) = 0;
  // Whether draws of several heads cost little more than those of one.
  virtual bool draws_together() const = 0;
  // Runs the first `heads` heads on the features at these places, then draws as Draw does.
  virtual Status Run(std::span<const int32_t> places, int32_t heads,
                     std::span<const SampleRow> samples) = 0;
  // Draws from the logits of the last Run; samples address rows by LogitIndex.
  virtual Status Draw(std::span<const SampleRow> samples) = 0;
  // Tokens of the last Run or Draw, each with the head's logprob.
  virtual Result<std::vector<SampledToken>> Collect() = 0;
  // `row`: index into Run's places.
  virtual int32_t LogitIndex(int32_t head, int32_t row) const = 0;
};

class HostMedusaDraws final : public MedusaDraws {
 public:
  explicit HostMedusaDraws(std::unique_ptr<ParallelHeads> heads);

  int32_t heads() const override { return heads_->heads(); }
  int32_t feature_size() const override { return heads_->feature_size(); }
  size_t feature_bytes() const override { return size() * sizeof(float); }
  int32_t max_rows() const override { return heads_->max_rows(); }
  int32_t places() const override { return std::numeric_limits<int32_t>::max(); }
  Status Keep(std::span<FeatureRow> rows) override;
  bool draws_together() const override { return false; }
  Status Run(std::span<const int32_t> places, int32_t heads,
             std::span<const SampleRow> samples) override;
  Status Draw(std::span<const SampleRow> samples) override;
  Result<std::vector<SampledToken>> Collect() override { return std::exchange(drawn_, {}); }
  int32_t LogitIndex(int32_t head, int32_t row) const override {
    return head * heads_->max_rows() + row;
  }

 private:
  size_t size() const { return static_cast<size_t>(heads_->feature_size()); }

  const std::unique_ptr<ParallelHeads> heads_;
  Sampler sampler_;
  std::vector<float> kept_;
  // Over the target's vocabulary; tokens without a logit in the head stay unchanged.
  std::vector<float> logits_;
  std::vector<const float*> rows_;
  std::vector<SampledToken> drawn_;
};

}  // namespace aisp
