#include "router/stream_ahead.h"

#include <algorithm>
#include <array>

namespace aisp {
namespace {

constexpr int kParts = 16;
// Cap on the fraction of time that prompts take.
constexpr double kMostBusy = 0.95;

}  // namespace

double StreamAhead::TokenMs() const {
  const double life = std::max(1.0, load.mean.answer_tokens);
  const double part = std::max(1.0, tokens) / kParts;
  const double others = std::max(0.0, rows - 1);
  // The ages of its rows are spread evenly around their mean.
  const double busy = std::clamp(load.per_s * 1e-3 * load.mean.delay_ms, 0.0, kMostBusy);
  const double step0 = cost.StepMs({0, 0, rows, context}) / (1 - busy);
  const double emitted = std::min(life, step0 > 0 ? std::max(0.0, age_ms - ttft_ms) / step0 : 0);
  const double half = std::min(emitted, std::max(0.0, life - emitted));
  const double first_end = std::max(0.0, life - emitted - half), last_end = life - emitted + half;
  const auto left = [&](double after) {
    if (after <= first_end) return 1.0;
    return after >= last_end ? 0.0 : (last_end - after) / (last_end - first_end);
  };
  double pending = more;  // requests that others take first
  const auto joining = [&](double ms) {
    const double all = load.per_s * ms * 1e-3;
    const double kept = std::clamp(pending, -all, all);
    pending -= kept;
    return all - kept;
  };
  const double per_row = rows > 0 ? context / rows : 0;
  // Until its first token.
  const double waited = joining(ttft_ms);
  double ms = waited * load.mean.delay_ms;
  double gone = step0 > 0 ? ttft_ms / step0 : 0;  // tokens that the rows emit
  std::array<double, kParts> came{};
  came[0] = waited;
  for (int i = 0; i < kParts; ++i) {
    const double at = (i + 0.5) * part;
    double newer = 0, newer_context = 0;
    for (int j = 0; j <= i; ++j) {
      const double age = (i - j) * part;
      if (age >= life) continue;
      newer += came[j];
      newer_context += came[j] * (load.mean.prompt_tokens + age);
    }
    const double older = others * left(gone + at);
    const double now = std::min(max_rows, 1 + older + newer);
    const double read = older * (per_row + at) + (prompt + at) + newer_context;
    const double step = cost.StepMs({0, 0, now, read});
    // How many come depends on the time that they take.
    const double alone = part * step;
    const double come = joining(alone / (1 - busy));
    ms += alone + come * load.mean.delay_ms;
    came[i] += come / 2;
    if (i + 1 < kParts) came[i + 1] += come / 2;
  }
  return ms / std::max(1.0, tokens);
}

}  // namespace aisp
