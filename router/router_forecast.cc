// The TPOT that clients are told: predicted over the life of a stream. Placements are compared
// without it (router/cost_policy.cc).
#include <algorithm>

#include "router/prediction.h"
#include "router/prefix_pulls.h"
#include "router/router_impl.h"
#include "router/stream_ahead.h"

namespace aisp {

MeanRequest Router::Impl::NoteLoad(const Request& request, const Choice& choice) {
  const Placement& placement = choice.placement;
  const WorkerView& decode = choice.views[static_cast<size_t>(placement.decode)];
  MeanRequest own;
  own.prompt_tokens = static_cast<double>(request.length());
  own.answer_tokens =
      std::max(1.0, answer_lengths.Expected(request.spec.max_new_tokens) - request.emitted);
  own.beside = decode.rows;
  double decodes = 0;
  for (const WorkerView& view : choice.views) {
    if (view.prefill || !view.available) continue;
    own.running += view.rows;
    ++decodes;
  }
  own.more = own.beside + 1 - (own.running + 1) / std::max(1.0, decodes);
  if (placement.prefill < 0) {
    const WorkerView with = WithPrefix(decode, placement.pull.tokens);
    const auto tokens = static_cast<int64_t>(request.length());
    const int64_t known = std::min<int64_t>(KnownTokens(with), tokens - 1);
    const PromptWork work = PromptWork::Of(known, tokens - known);
    own.delay_ms = AddedMs(with, work, PromptMs(with, work));
  }
  recent_load.Add(request.dispatched, own);
  return own;
}

double Router::Impl::PromptStepMs(const Request& request, const Choice& choice) {
  const Placement& placement = choice.placement;
  const bool remote = placement.prefill >= 0;
  const WorkerView view =
      WithPrefix(choice.views[static_cast<size_t>(remote ? placement.prefill : placement.decode)],
                 placement.pull.tokens);
  const auto tokens = static_cast<int64_t>(request.length());
  const int64_t known = std::min<int64_t>(KnownTokens(view), tokens - 1);
  const PromptWork step =
      PromptWork::Of(known, std::min<int64_t>(tokens - known, std::max(1, view.chunk_tokens)));
  return PromptMs(view, step);
}

double Router::Impl::PredictTpot(const Request& request, const Choice& choice) {
  const Placement& placement = choice.placement;
  const Instant now = request.dispatched;
  const auto at = static_cast<size_t>(placement.decode);
  const WorkerView& decode = choice.views[at];
  const WorkerState& worker = *choice.states[at];
  const MeanRequest own = NoteLoad(request, choice);
  const auto decodes = static_cast<double>(
      std::max<ptrdiff_t>(1, std::count_if(choice.views.begin(), choice.views.end(),
                                           [](auto& v) { return !v.prefill && v.available; })));
  StreamAhead ahead;
  ahead.cost = decode.cost;
  ahead.rows = decode.rows + 1;
  ahead.context = static_cast<double>(decode.context_tokens) + own.prompt_tokens;
  ahead.max_rows = decode.max_rows;
  // This request is among them, with no age.
  const auto placed = static_cast<int64_t>(worker.attempts.size());
  const Duration ages = (now - Instant{}) * placed - worker.placed_at;
  ahead.age_ms = ToMs(ages) / static_cast<double>(std::max<int64_t>(1, placed - 1));
  ahead.more = own.more;
  ahead.prompt_tokens = own.prompt_tokens;
  ahead.answer_tokens = own.answer_tokens;
  ahead.ttft_ms = placement.ttft_ms;
  ahead.load = recent_load.Of(decodes);
  ahead.load.per_s *= OfAllRouters(now) / decodes;
  ahead.load.delay_ms *= decodes;
  return TpotForecast::Join(placement.step_ms, ahead.TokenMs());
}

}  // namespace aisp
