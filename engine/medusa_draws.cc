#include "engine/medusa_draws.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "engine/drafting.h"
#include "model/feature_head.h"

namespace aisp {

HostMedusaDraws::HostMedusaDraws(std::unique_ptr<ParallelHeads> heads)
    : heads_(std::move(heads)),
      sampler_(heads_->vocabulary()),
      logits_(static_cast<size_t>(heads_->vocabulary()), kNoLogit) {}

Status HostMedusaDraws::Keep(std::span<FeatureRow> rows) {
  for (const FeatureRow& row : rows) {
    const auto begin = static_cast<size_t>(row.place) * size();
    kept_.resize(std::max(kept_.size(), begin + size()));
    std::memcpy(kept_.data() + begin, row.from, feature_bytes());
  }
  return {};
}

Status HostMedusaDraws::Run(std::span<const int32_t> places, int32_t heads,
                            std::span<const SampleRow> samples) {
  AISP_CHECK(static_cast<int32_t>(places.size()) <= heads_->max_rows());
  rows_.clear();
  for (const int32_t place : places)
    rows_.push_back(kept_.data() + static_cast<size_t>(place) * size());
  AISP_RETURN_IF_ERROR(heads_->Run(rows_, heads));
  return Draw(samples);
}

Status HostMedusaDraws::Draw(std::span<const SampleRow> samples) {
  const std::span<const TokenId> tokens = heads_->target_tokens();
  drawn_.clear();
  for (const SampleRow& sample : samples) {
    const int32_t rows = heads_->max_rows();
    const std::span<const float> own =
        heads_->Logits(sample.logit_index / rows, sample.logit_index % rows);
    for (size_t i = 0; i < own.size(); ++i) logits_[static_cast<size_t>(tokens[i])] = own[i];
    drawn_.push_back(DrawDrafted(sampler_, own, logits_, sample));
  }
  return {};
}

}  // namespace aisp
