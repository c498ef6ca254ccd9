#include "speculation/verify_cost.h"

namespace aisp {
namespace {

constexpr double kForget = 0.1;   // weight of a new sample, once a knot has seen a few
constexpr double kOutlier = 2.0;  // a sample counts for so many times the mean at most
constexpr int32_t kFewSamples = 4;

}  // namespace

void VerifyCost::Add(int32_t rows, int64_t context_tokens, Duration took) {
  if (rows < 1 || took.count() <= 0) return;
  const auto at = std::lower_bound(kKnots.begin(), kKnots.end(), rows);
  Knot& knot = knots_[static_cast<size_t>(
      std::min<ptrdiff_t>(at - kKnots.begin(), static_cast<ptrdiff_t>(kKnots.size()) - 1))];
  double seconds = ToSeconds(took);
  const auto context = static_cast<double>(context_tokens);
  ++samples_;
  if (knot.seen < kFewSamples) {
    // The shortest of the first ones: a step that was held up says nothing about rows.
    if (knot.seen == 0 || seconds < knot.seconds)
      knot = {seconds, static_cast<double>(rows), context, knot.seen};
    ++knot.seen;
    return;
  }
  seconds = std::min(seconds, kOutlier * knot.seconds);
  const double away = context - knot.context;
  together_ += 0.02 * ((seconds - knot.seconds) * away - together_);
  spread_ += 0.02 * (away * away - spread_);
  knot.seconds += kForget * (seconds - knot.seconds);
  knot.rows += kForget * (rows - knot.rows);
  knot.context += kForget * away;
}

double VerifyCost::OfRows(double rows, double context) const {
  const double slope = ContextSlope();
  const Knot* below = nullptr;
  const Knot* above = nullptr;
  double least = 0, most = -1;  // no less than any shorter step, no more than any longer one
  for (const Knot& knot : knots_) {
    if (knot.seen == 0) continue;
    const double seconds =
        std::max(knot.seconds * 0.1, knot.seconds + slope * (context - knot.context));
    if (knot.rows <= rows) {
      below = &knot;
      least = seconds;
    } else {
      if (above == nullptr) above = &knot;
      most = most < 0 ? seconds : std::min(most, seconds);
    }
  }
  if (below == nullptr && above == nullptr) return 1.0 + kFirstSlope * (rows - 1);
  if (below == nullptr) return most;
  if (above == nullptr)
    return least * (1.0 + kFirstSlope * (rows - below->rows) / std::max(1.0, below->rows));
  const double part = (rows - below->rows) / (above->rows - below->rows);
  return std::min(most, least + part * (most - least));
}

double VerifyCost::Predict(int32_t rows, int64_t context_tokens) const {
  return OfRows(static_cast<double>(rows), static_cast<double>(context_tokens));
}

}  // namespace aisp
