#include "router/step_time_model.h"

#include <algorithm>
#include <cmath>

namespace aisp {
namespace {

constexpr uint64_t kMaxDurationNs = 600'000'000'000;
// So many samples say more than what other workers' do.
constexpr uint64_t kEnough = 64;

}  // namespace

double StepCost::PromptMs(const PromptWork& work, int32_t chunk, const StepShape& beside) const {
  if (work.tokens <= 0) return 0;
  const auto tokens = static_cast<double>(work.tokens);
  const double steps = std::ceil(tokens / std::max(1, chunk));
  StepShape mean = beside;
  mean.prefill_tokens = tokens / steps;
  mean.prefill_context = static_cast<double>(work.context) / steps;
  return steps * StepMs(mean);
}

StepTimeModel::StepTimeModel(const StepCost& prior)
    : decode_({prior.decode.base_ms, prior.decode.per_row_ms, prior.decode.per_context_ms},
              {1.0, 10.0, 10'000.0}),
      prefill_(
          {prior.prefill.base_ms, prior.prefill.per_token_ms, prior.prefill.per_prefill_context_ms,
           prior.prefill.per_row_ms, prior.prefill.per_context_ms},
          {1.0, 100.0, 100'000.0, 10.0, 10'000.0}) {}

void StepTimeModel::Observe(const StepShape& shape, uint64_t duration_ns) {
  if (duration_ns == 0 || duration_ns > kMaxDurationNs) return;
  const double ms = static_cast<double>(duration_ns) * 1e-6;
  if (shape.prefill_tokens > 0) {
    prefill_.Observe(
        {1.0, shape.prefill_tokens, shape.prefill_context, shape.decode_rows, shape.decode_context},
        ms);
  } else if (shape.decode_rows > 0) {
    decode_.Observe({1.0, shape.decode_rows, shape.decode_context}, ms);
  }
}

bool StepTimeModel::Settled(bool only_prefills) const {
  return prefill_.samples() >= kEnough && (only_prefills || decode_.samples() >= kEnough);
}

StepCost StepTimeModel::Cost() const { return CostWith(*this); }

StepCost StepTimeModel::CostWith(const StepTimeModel& others) const {
  const auto& d = (decode_.samples() < kEnough ? others : *this).decode_.Coefficients();
  const auto& p = (prefill_.samples() < kEnough ? others : *this).prefill_.Coefficients();
  return {{d[0], d[1], d[2]}, {p[0], p[1], p[2], p[3], p[4]}};
}

}  // namespace aisp
