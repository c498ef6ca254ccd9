#include "speculation/draft_chooser.h"

#include <algorithm>
#include <cmath>

namespace aisp {
namespace {

// Required gain over a step without drafts: predictions have errors, which grow with noise.
constexpr double kMargin = 1.02, kMarginOfNoise = 0.15, kLittleNoise = 0.02;
constexpr float kForgetOwn = 0.9f;
constexpr float kForgetAll = 0.998f;

double MarginOf(const VerifyCost& cost) {
  return kMargin + kMarginOfNoise * std::sqrt(std::max(0.0, cost.noise() - kLittleNoise));
}

double ContextOfRow(const VerifyStep& shape) {
  return static_cast<double>(shape.context_tokens) / std::max(1, shape.rows);
}

}  // namespace

size_t Acceptance::BinOf(float confidence) {
  const float part = std::clamp(confidence, 0.0f, 1.0f) * static_cast<float>(kBins);
  return std::min(kBins - 1, static_cast<size_t>(part));
}

float Acceptance::Calibrated(float confidence) const {
  constexpr float kPrior = 4.0f;  // weight of the confidence, in observations
  const Bin& bin = bins_[BinOf(confidence)];
  return (bin.hits + kPrior * confidence) / (bin.seen + kPrior);
}

float Acceptance::Probability(const AcceptanceRecord& record, size_t position,
                              float confidence) const {
  constexpr float kPrior = 2.0f;
  const size_t at = std::min(position, AcceptanceRecord::kPositions - 1);
  const float own = (record.hits[at] + kPrior) / (record.expected[at] + kPrior);
  return std::clamp(Calibrated(confidence) * own, 0.01f, 0.99f);
}

void Acceptance::Learn(AcceptanceRecord* record, size_t position, float confidence, bool accepted) {
  const size_t at = std::min(position, AcceptanceRecord::kPositions - 1);
  const float hit = accepted ? 1.0f : 0.0f;
  record->hits[at] = record->hits[at] * kForgetOwn + hit;
  record->expected[at] = record->expected[at] * kForgetOwn + Calibrated(confidence);
  Bin& bin = bins_[BinOf(confidence)];
  bin.hits = bin.hits * kForgetAll + hit;
  bin.seen = bin.seen * kForgetAll + 1.0f;
}

bool GoesBefore(const DraftCandidate& a, const DraftCandidate& b) {
  if (a.probability != b.probability) return a.probability > b.probability;
  if (a.position != b.position) return a.position < b.position;
  return a.sequence < b.sequence;
}

int32_t ChooseDrafts(std::span<const DraftCandidate> candidates, const VerifyStep& shape,
                     const VerifyCost& cost) {
  const int32_t limit =
      std::min(static_cast<int32_t>(candidates.size()), std::max(0, shape.max_drafts));
  const double context = ContextOfRow(shape);
  const auto seconds = [&](int32_t drafts) {
    const int32_t rows = shape.rows + drafts;
    return shape.spent_seconds +
           cost.LowerEstimate(rows, drafts, static_cast<int64_t>(context * rows));
  };
  double tokens = shape.sequences;
  double best = MarginOf(cost) * tokens / seconds(0);
  int32_t chosen = 0;
  for (int32_t i = 0; i < limit; ++i) {
    tokens += candidates[static_cast<size_t>(i)].probability;
    const int32_t rows = shape.rows + i + 1;
    if (i + 1 < limit && cost.LastLike(rows) != rows) continue;
    const double rate = tokens / seconds(i + 1);
    if (rate > best) best = rate, chosen = i + 1;
  }
  return chosen;
}

int32_t ChooseLength(std::span<const DraftCandidate> candidates, const VerifyStep& shape,
                     std::span<const double> drafting, const VerifyCost& cost) {
  int32_t longest = 0;
  for (const DraftCandidate& each : candidates) longest = std::max(longest, each.position + 1);
  const auto limit = static_cast<size_t>(std::max(0, shape.max_drafts));
  const double context = ContextOfRow(shape);
  // Time of the longest step with the same cost; cached, because every length asks again.
  std::vector<double> seconds(std::min(candidates.size(), limit) + 1, 0);
  const auto seconds_of = [&](size_t drafts) {
    const int32_t rows = shape.rows + static_cast<int32_t>(drafts);
    if (seconds[drafts] == 0)
      seconds[drafts] = cost.LowerEstimate(rows, static_cast<int32_t>(drafts),
                                           static_cast<int64_t>(context * rows));
    return seconds[drafts];
  };
  double best = MarginOf(cost) * shape.sequences / seconds_of(0);
  int32_t chosen = 0;
  for (int32_t length = 1; length <= longest; ++length) {
    const double asked = drafting[static_cast<size_t>(length - 1)];
    double tokens = shape.sequences;
    size_t drafts = 0;
    const auto judge = [&] {
      const double rate = tokens / (seconds_of(drafts) + asked);
      if (rate > best) best = rate, chosen = length;
    };
    for (const DraftCandidate& each : candidates) {
      if (each.position >= length) continue;
      if (drafts == limit) break;
      tokens += each.probability;
      const int32_t rows = shape.rows + static_cast<int32_t>(++drafts);
      if (cost.LastLike(rows) == rows) judge();
    }
    if (drafts > 0) judge();
  }
  return chosen;
}

}  // namespace aisp
