// The TPOT that clients are told: predicted over the life of a stream. Placements are compared
// without it (router/cost_policy.cc).
#include <algorithm>
#include <span>

#include "router/prediction.h"
#include "router/prefix_pulls.h"
#include "router/router_impl.h"
#include "router/stream_ahead.h"

namespace aisp {
namespace {

// What a worker computes of a prompt of `tokens` after its pull; at most `most` tokens.
PromptWork WorkOf(const WorkerView& with, int64_t tokens, int64_t most) {
  const int64_t known = std::min<int64_t>(KnownTokens(with), tokens - 1);
  return PromptWork::Of(known, std::min(most, tokens - known));
}

// The request as one of those that arrive.
MeanRequest Arriving(int64_t tokens, const Placement& placement,
                     std::span<const WorkerView> views) {
  const WorkerView& decode = views[static_cast<size_t>(placement.decode)];
  MeanRequest own;
  own.prompt_tokens = static_cast<double>(tokens);
  own.beside = decode.rows;
  double decodes = 0;
  for (const WorkerView& view : views) {
    if (view.prefill || !view.available) continue;
    own.running += view.rows;
    ++decodes;
  }
  own.more = own.beside + 1 - (own.running + 1) / std::max(1.0, decodes);
  if (placement.prefill < 0) {
    const WorkerView with = WithPrefix(decode, placement.pull.tokens);
    const PromptWork work = WorkOf(with, tokens, tokens);
    own.delay_ms = AddedMs(with, work, PromptMs(with, work));
  }
  return own;
}

// Time of the step that begins the prompt.
double PromptStepMs(int64_t tokens, const Placement& placement, std::span<const WorkerView> views) {
  const int at = placement.prefill >= 0 ? placement.prefill : placement.decode;
  const WorkerView with = WithPrefix(views[static_cast<size_t>(at)], placement.pull.tokens);
  return PromptMs(with, WorkOf(with, tokens, std::max(1, with.chunk_tokens)));
}

double DecodeWorkers(std::span<const WorkerView> views) {
  const auto decodes = std::count_if(views.begin(), views.end(), [](const WorkerView& view) {
    return !view.prefill && view.available;
  });
  return static_cast<double>(std::max<ptrdiff_t>(1, decodes));
}

}  // namespace

void Router::Impl::PredictTpot(Request& request, const Choice& choice) {
  const Placement& placement = choice.placement;
  const Instant now = request.dispatched;
  const auto at = static_cast<size_t>(placement.decode);
  const WorkerView& decode = choice.views[at];
  const WorkerState& worker = *choice.states[at];
  const auto length = static_cast<int64_t>(request.length());
  request.prompt_step_ms = PromptStepMs(length, placement, choice.views);
  MeanRequest own = Arriving(length, placement, choice.views);
  own.answer_tokens =
      std::max(1.0, answer_lengths.Expected(request.spec.max_new_tokens) - request.emitted);
  pool.load.Add(now, own);
  const double decodes = DecodeWorkers(choice.views);
  StreamAhead ahead;
  ahead.cost = decode.cost;
  ahead.rows = decode.rows + 1;
  ahead.context = static_cast<double>(decode.context_tokens) + own.prompt_tokens;
  ahead.max_rows = decode.max_rows;
  ahead.age_ms = worker.ages.MeanOfOthersMs(now, worker.attempts.size());
  ahead.more = own.more;
  ahead.prompt_tokens = own.prompt_tokens;
  ahead.answer_tokens = own.answer_tokens;
  ahead.ttft_ms = placement.ttft_ms;
  ahead.load = pool.load.Of(decodes);
  ahead.load.per_s *= OfAllRouters(now) / decodes;
  ahead.load.delay_ms *= decodes;
  request.predicted_tpot_ms = TpotForecast::Join(placement.step_ms, ahead.TokenMs());
  request.placed.tpot_ms = pool.tpot.Median(request.predicted_tpot_ms, now);
}

}  // namespace aisp
