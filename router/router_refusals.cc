// Refusals of requests whose limits cannot be met: the reason and the retry hint.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "router/prediction.h"
#include "router/router_impl.h"

namespace aisp {
namespace {

constexpr Duration kLongestWait = std::chrono::minutes(1);

// A row that will leave a worker: when, and by how much steps shorten then.
struct Leaving {
  double in_ms = 0;
  double step_ms = 0;
};

// Time in ms until enough rows have left to shorten the step by `too_long_ms`; if all are too few,
// until the last has left: what else lengthens steps is learnt from earlier answers and fades.
double UntilShorterMs(std::vector<Leaving> rows, double too_long_ms) {
  std::sort(rows.begin(), rows.end(),
            [](const Leaving& a, const Leaving& b) { return a.in_ms < b.in_ms; });
  for (const Leaving& row : rows) {
    too_long_ms -= row.step_ms;
    if (too_long_ms <= 0) return row.in_ms;
  }
  return rows.empty() ? 0 : rows.back().in_ms;
}

// Three significant digits, also for limits below a millisecond.
std::string Told(double ms) {
  return ms < 100 ? fmt::format("{:.3g}", ms) : fmt::format("{:.0f}", ms);
}

std::string Beyond(const char* what, double ms, double high_ms, double asked_ms) {
  const std::string usual =
      high_ms > ms ? fmt::format(", up to {} with the usual error,", Told(high_ms)) : "";
  return fmt::format("{} {} ms{} against {}", what, Told(ms), usual, Told(asked_ms));
}

}  // namespace

Error Router::Impl::BeyondObjective(const Objective& asked, const Placement& best) {
  std::vector<std::string> parts;
  if (asked.ttft_ms > 0)
    parts.push_back(Beyond("TTFT", best.ttft_ms, best.ttft_high_ms, asked.ttft_ms));
  if (asked.tpot_ms > 0)
    parts.push_back(Beyond("TPOT", best.tpot_ms, best.tpot_high_ms, asked.tpot_ms));
  return {Code::kResourceExhausted,
          fmt::format("no worker is predicted to keep what the request asks for: {}; ask for less, "
                      "retry later or send it as class batch, which waits",
                      fmt::join(parts, ", "))};
}

// Assumes no arrivals meanwhile: requests refused for the same reason do not arrive.
double Router::Impl::UntilStepsShortenMs(const Request& request, const Choice& choice) const {
  const double limit_ms = request.spec.objective.tpot_ms;
  const Placement& best = choice.placement;
  if (limit_ms <= 0 || best.tpot_high_ms <= limit_ms || best.step_ms <= 0) return 0;
  const auto at = static_cast<size_t>(best.decode);
  const WorkerState& worker = *choice.states[at];
  const WorkerView& view = choice.views[at];
  const StepCost::Decode& cost = view.cost.decode;
  const StepShape beside = view.RunningBeside();
  // Not even an idle worker keeps the limit.
  if (view.cost.StepMs({0, 0, 1, static_cast<double>(request.length())}) > limit_ms)
    return ToMs(kLongestWait);
  const auto shortens = [&](double context) {
    return cost.per_row_ms + cost.per_context_ms * context;
  };
  std::vector<Leaving> rows;
  rows.reserve(static_cast<size_t>(std::max(0, view.rows)));
  for (const uint64_t wire_id : worker.attempts) {
    const Request& running = requests.at(by_wire.at(wire_id).value);
    const double left = answer_lengths.Expected(running.spec.max_new_tokens) - running.emitted;
    rows.push_back(
        {std::max(1.0, left) * best.tpot_ms, shortens(static_cast<double>(running.length()))});
  }
  // Streams of other routers: their remaining lifetimes are assumed to be spread evenly.
  const auto unknown = static_cast<int32_t>(beside.decode_rows) - static_cast<int32_t>(rows.size());
  const double lifetime_ms = answer_lengths.Expected(request.spec.max_new_tokens) * best.tpot_ms;
  for (int32_t i = 1; i <= unknown; ++i)
    rows.push_back(
        {lifetime_ms * i / unknown, shortens(beside.decode_context / beside.decode_rows)});
  // Relative to a decode-only step: all added terms scale with it.
  const double with = std::min<double>(beside.decode_rows + 1, view.max_rows);
  const double now_ms = view.cost.StepMs({0, 0, with, beside.decode_context});
  return UntilShorterMs(std::move(rows), now_ms * (1 - limit_ms / best.tpot_high_ms));
}

// No longer than today's queue lasts. The rest of a predicted TTFT is the request's own part and
// what earlier answers taught: waiting for the queue changes neither.
Duration Router::Impl::PredictedWait(const Request& request, const Choice& choice) const {
  const Objective& asked = request.spec.objective;
  const Placement& best = choice.placement;
  const double prompts_ms =
      asked.ttft_ms > 0 ? std::clamp(best.ttft_ms - asked.ttft_ms, 0.0, best.ttft_wait_ms) : 0;
  const double wait_ms = std::max(prompts_ms, UntilStepsShortenMs(request, choice));
  return std::min(FromMs(wait_ms), kLongestWait);
}

}  // namespace aisp
