// How much prefill shares the next step with decodes (common/token_limits.h).
#include <algorithm>

#include "engine/engine_impl.h"

namespace aisp {
namespace {

// A running sequence whose next row decodes.
bool Decodes(const Sequence& s) {
  return s.target() - s.scheduled == 1 && s.generated() + s.samples_in_flight > 0;
}

}  // namespace

int32_t Engine::Impl::PrefillTokens(Instant now) {
  if (!step_cost) return limits.max_batch_tokens;
  StepShape shape;
  for (const Sequence* s : table.running()) {
    if (!Schedulable(*s) || !Decodes(*s)) continue;
    shape.decode_rows += 1;
    shape.decode_context += s->target();
  }
  if (shape.decode_rows <= 0) return limits.max_batch_tokens;
  turn.Begin(*step_cost, shape, limits.max_batch_tokens);
  AddPrompts(now);
  AddStreams(now);
  return turn.Tokens();
}

// Steps in flight are still to come: a stream waits for their prefill rows, too.
void Engine::Impl::AddStreams(Instant now) {
  double added_ms = 0;
  for (const StepRecord* step : flight) added_ms += step->added_ms;
  for (const Sequence* s : table.running()) {
    if (!Schedulable(*s) || !Decodes(*s) || s->times.first_token == kNever) continue;
    turn.AddStream(s->request.limits, ToMs(now - s->times.first_token) + added_ms, s->generated(),
                   s->request.max_new_tokens);
  }
}

void Engine::Impl::AddPrompts(Instant now) {
  for (const auto* queue : {&table.running(), &table.waiting()}) {
    for (const Sequence* s : *queue) {
      if (turn.full()) return;
      if (s->has_reader() || s->promotion != 0) continue;
      int32_t begin = s->scheduled;
      // Its prefix hit is matched when it starts.
      if (s->blocks.empty() && s->request.limits.uncached_tokens > 0)
        begin = std::max(begin, s->target() - s->request.limits.uncached_tokens);
      const int32_t left = s->target() - begin;
      if (left < 1 || (left == 1 && !s->blocks.empty())) continue;
      turn.AddPrompt(s->request.limits, ToMs(now - s->times.added), begin, left);
    }
  }
}

double Engine::Impl::AddedMs(const StepTiming& timing) const {
  if (!step_cost || timing.prefill_tokens <= 0 || timing.decode_rows <= 0) return 0;
  StepShape shape{0, 0, static_cast<double>(timing.decode_rows),
                  static_cast<double>(timing.decode_context)};
  const double plain_ms = step_cost->StepMs(shape);
  shape.prefill_tokens = timing.prefill_tokens;
  shape.prefill_context = static_cast<double>(timing.prefill_context);
  return step_cost->StepMs(shape) - plain_ms;
}

}  // namespace aisp
