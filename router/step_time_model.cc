#include "router/step_time_model.h"

#include <algorithm>
#include <cmath>

namespace aisp {
namespace {

constexpr uint64_t kMaxDurationNs = 600'000'000'000;
// From so many samples on, other workers' samples no longer help.
constexpr uint64_t kEnough = 64;
// Bound on how far a device differs from the prior.
constexpr double kMostScale = 1000;
constexpr double kScaleWeight = 0.2;
// Relative error of the hint that a decode row costs the same with and without prefill rows.
constexpr double kRowsAlike = 0.5;

// Typical values of x: see LinearFit.
constexpr LinearFit<3>::Vector kDecodeTypical = {1.0, 10.0, 10'000.0};
constexpr LinearFit<5>::Vector kPrefillTypical = {1.0, 100.0, 100'000.0, 10.0, 10'000.0};

}  // namespace

StepTimeModel::DecodeFit::Vector StepTimeModel::DecodePrior(const StepCost& prior, double scale) {
  const StepCost::Decode& d = prior.decode;
  return {scale * d.base_ms, scale * d.per_row_ms, scale * d.per_context_ms};
}

StepTimeModel::PrefillFit::Vector StepTimeModel::PrefillPrior(const StepCost& prior, double scale) {
  const StepCost::Prefill& p = prior.prefill;
  return {scale * p.base_ms, scale * p.per_token_ms, scale * p.per_prefill_context_ms,
          scale * p.per_row_ms, scale * p.per_context_ms};
}

StepTimeModel::StepTimeModel(const StepCost& prior)
    : prior_(prior),
      decode_(DecodePrior(prior, 1), kDecodeTypical),
      prefill_(PrefillPrior(prior, 1), kPrefillTypical) {}

void StepTimeModel::Observe(const StepShape& shape, uint64_t duration_ns) {
  if (duration_ns == 0 || duration_ns > kMaxDurationNs) return;
  const bool prompts = shape.prefill_tokens > 0;
  if (!prompts && shape.decode_rows <= 0) return;
  const double ms = static_cast<double>(duration_ns) * 1e-6;
  const double ratio = std::clamp(ms / prior_.StepMs(shape), 1 / kMostScale, kMostScale);
  double& scale = prompts ? prefill_scale_ : decode_scale_;
  const bool first = (prompts ? prefill_.samples() : decode_.samples()) == 0;
  scale = first ? ratio : scale + kScaleWeight * (ratio - scale);
  if (prompts) {
    if (first) prefill_ = {PrefillPrior(prior_, ratio), kPrefillTypical};
    prefill_.Observe(
        {1.0, shape.prefill_tokens, shape.prefill_context, shape.decode_rows, shape.decode_context},
        ms);
    HintRows(shape);
  } else {
    if (first) decode_ = {DecodePrior(prior_, ratio), kDecodeTypical};
    decode_.Observe({1.0, shape.decode_rows, shape.decode_context}, ms);
  }
}

// If all steps of a worker hold prefill rows, nothing tells the cost of many decode rows. Without
// this hint a few steps with few rows made rows look free, and every request went there.
void StepTimeModel::HintRows(const StepShape& shape) {
  if (decode_.samples() == 0 || prefill_.samples() < kEnough || shape.decode_rows <= 0) return;
  const PrefillFit::Vector beside = {0, 0, 0, shape.decode_rows, shape.decode_context};
  const double ms = prefill_.Predict(beside);
  if (ms <= 0) return;
  decode_.Hint({0, shape.decode_rows, shape.decode_context}, ms,
               std::hypot(kRowsAlike * ms, prefill_.Deviation(beside)));
}

bool StepTimeModel::Settled(bool only_prefills) const {
  return prefill_.samples() >= kEnough && (only_prefills || decode_.samples() >= kEnough);
}

StepTimeModel::DecodeFit::Vector StepTimeModel::DecodeTerms() const {
  if (decode_.samples() > 0) return decode_.Coefficients();
  return DecodePrior(prior_, prefill_scale_);
}

StepTimeModel::PrefillFit::Vector StepTimeModel::PrefillTerms() const {
  if (prefill_.samples() > 0) return prefill_.Coefficients();
  return PrefillPrior(prior_, decode_scale_);
}

StepCost StepTimeModel::Cost() const { return CostWith(*this); }

StepCost StepTimeModel::CostWith(const StepTimeModel& others) const {
  const auto d = (decode_.samples() < kEnough ? others : *this).DecodeTerms();
  const auto p = (prefill_.samples() < kEnough ? others : *this).PrefillTerms();
  return {{d[0], d[1], d[2]}, {p[0], p[1], p[2], p[3], p[4]}};
}

}  // namespace aisp
