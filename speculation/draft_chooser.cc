#include "speculation/draft_chooser.h"

#include <algorithm>

namespace aisp {
namespace {

// Drafts have to bring so much more than none: predictions are not exact.
constexpr double kMargin = 1.02;
constexpr float kForgetOwn = 0.9f;
constexpr float kForgetAll = 0.998f;

}  // namespace

size_t Acceptance::BinOf(float confidence) {
  const float part = std::clamp(confidence, 0.0f, 1.0f) * static_cast<float>(kBins);
  return std::min(kBins - 1, static_cast<size_t>(part));
}

float Acceptance::Calibrated(float confidence) const {
  constexpr float kPrior = 4.0f;  // observations that the confidence itself counts for
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

void Acceptance::Learn(AcceptanceRecord* record, size_t position, float confidence, bool stood) {
  const size_t at = std::min(position, AcceptanceRecord::kPositions - 1);
  const float hit = stood ? 1.0f : 0.0f;
  record->hits[at] = record->hits[at] * kForgetOwn + hit;
  record->expected[at] = record->expected[at] * kForgetOwn + Calibrated(confidence);
  Bin& bin = bins_[BinOf(confidence)];
  bin.hits = bin.hits * kForgetAll + hit;
  bin.seen = bin.seen * kForgetAll + 1.0f;
}

int32_t ChooseDrafts(std::span<const DraftCandidate> candidates, const StepShape& shape,
                     const VerifyCost& cost) {
  const int32_t limit =
      std::min(static_cast<int32_t>(candidates.size()), std::max(0, shape.max_drafts));
  const double context = static_cast<double>(shape.context_tokens) / std::max(1, shape.rows);
  const auto seconds = [&](int32_t drafts) {
    const int32_t rows = shape.rows + drafts;
    return shape.spent_seconds + cost.Hopeful(rows, static_cast<int64_t>(context * rows));
  };
  double tokens = shape.sequences;
  double best = kMargin * tokens / seconds(0);
  int32_t chosen = 0;
  for (int32_t i = 0; i < limit; ++i) {
    tokens += candidates[static_cast<size_t>(i)].probability;
    const int32_t rows = shape.rows + i + 1;
    if (i + 1 < limit && VerifyCost::LastLike(rows) != rows) continue;
    const double rate = tokens / seconds(i + 1);
    if (rate > best) best = rate, chosen = i + 1;
  }
  return chosen;
}

int32_t ChooseLength(const StepShape& shape, std::span<const double> stands, double token_seconds,
                     const VerifyCost& cost) {
  const double context = static_cast<double>(shape.context_tokens) / std::max(1, shape.rows);
  const auto seconds = [&](int32_t length) {
    const int32_t rows = shape.rows + length * shape.sequences;
    return cost.Hopeful(rows, static_cast<int64_t>(context * rows)) + length * token_seconds;
  };
  double best = kMargin / seconds(0), tokens = 1, together = 1;
  int32_t chosen = 0;
  for (int32_t i = 0; i < static_cast<int32_t>(stands.size()); ++i) {
    if ((i + 1) * shape.sequences > shape.max_drafts) break;
    together *= stands[static_cast<size_t>(i)];
    tokens += together;
    const double rate = tokens / seconds(i + 1);
    if (rate > best) best = rate, chosen = i + 1;
  }
  return chosen;
}

}  // namespace aisp
