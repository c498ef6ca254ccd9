// What the cost policy and its shortlist predict of one worker alone. Pure.
#pragma once

#include <algorithm>
#include <cmath>

#include "router/policy.h"

namespace aisp {

// A step of D with this request among the others, or among those that do not yield to it.
inline double StepWithMs(const RequestSummary& request, const WorkerView& decode, bool displaces) {
  const int32_t others = decode.rows - (displaces ? decode.yielding_rows : 0);
  const int64_t context = decode.context_tokens - (displaces ? decode.yielding_context : 0);
  const int32_t rows = std::min(others + 1, std::max(1, decode.max_rows));
  return decode.cost.StepMs({0, 0, static_cast<double>(rows),
                             static_cast<double>(std::max(int64_t{0}, context) + request.tokens)});
}

// The time for a token where steps take `step_ms` and prompts make them longer by so much of each
// second. Each step draws one token, those that hold prompts as well, however many share one.
inline double BesidePromptsMs(const RequestSummary& request, double step_ms) {
  constexpr double kMostBusy = 950;
  return step_ms / (1 - 1e-3 * std::clamp(request.prompt_delay_ms_per_s, 0.0, kMostBusy));
}

// Short streams beside `work`, and what else takes `queued_ms` there, would miss their time for a
// token if it were computed in whole chunks.
inline bool Paces(const WorkerView& worker, double queued_ms, const PromptWork& work) {
  if (!worker.pace.any() || work.tokens <= 0) return false;
  const double whole_ms = worker.cost.PromptMs(work, worker.chunk_tokens, worker.RunningBeside());
  return queued_ms + whole_ms > worker.spare_ms;
}

// Tokens of `work` that a step of `worker` takes on average.
inline int32_t ChunkFor(const WorkerView& worker, const PromptWork& work) {
  const int32_t whole = std::max(1, worker.chunk_tokens);
  if (worker.RunningBeside().decode_rows <= 0 || !Paces(worker, 0, work)) return whole;
  const double steps = std::max(1.0, worker.pace.Worth(work) / worker.pace.rows);
  return std::clamp(static_cast<int32_t>(static_cast<double>(work.tokens) / steps), 1, whole);
}

inline double PromptMs(const WorkerView& worker, const PromptWork& work) {
  return worker.cost.PromptMs(work, ChunkFor(worker, work), worker.RunningBeside());
}

// So that a step with prompts leaves streams `tpot_ms` for a token, but never less than a part of
// the worker's own chunk; none without a limit.
PromptPace PaceWithin(const WorkerView& worker, double tpot_ms);
// Of streams of so many tokens each of which takes `step_ms` without these prompts.
double SpareMs(double tokens, double step_ms, double tpot_ms);

// Tokens that `worker` would compute and have read.
inline PromptWork WorkFor(const RequestSummary& request, const WorkerView& worker, int32_t more) {
  const int32_t tokens = UncachedTokens(request, worker);
  return PromptWork::Of(request.tokens - tokens - 1, tokens + more);
}

// Until `worker` is through with all that it has: the long step that it is in computes what is
// queued.
inline double BusyMs(const WorkerView& worker) {
  return std::max(worker.busy_ms, worker.backlog_ms);
}

// Until `worker` is through with this prompt, without the `compute_ms` of the prompt itself. Of n
// prompts ahead that are longer than a step the first takes half of the step, the next half of the
// rest and so on: a short one does not wait for all of them.
inline double QueueMs(const WorkerView& worker, const PromptWork& work, double compute_ms) {
  constexpr double kMostStepContext = 1e15;  // a worker may report more for its queue
  if (worker.queued_prompts <= 0) return BusyMs(worker);
  const double share = std::exp2(-std::min(worker.queued_prompts, 16));
  const PromptWork& queued = worker.queued_prefill;
  const int32_t chunk = ChunkFor(worker, queued);
  const double steps =
      std::ceil(static_cast<double>(std::max<int64_t>(1, work.tokens)) / (chunk * share));
  // Those steps read as far back as what is queued does: deep in a long prompt one takes many times
  // what its tokens say.
  PromptWork step = PromptWork::Of(0, chunk);
  if (queued.tokens > 0) {
    const int64_t per_token = queued.context / queued.tokens;
    const double context = static_cast<double>(per_token) * chunk;
    step.context =
        std::max(step.context, static_cast<int64_t>(std::min(context, kMostStepContext)));
  }
  const double shared_ms = steps * PromptMs(worker, step);
  return std::max(worker.busy_ms,
                  std::min(worker.backlog_ms, std::max(0.0, shared_ms - compute_ms)));
}

// Until the step ends that D is in at some moment, and those that it has launched behind it: half
// of a step on average, of the longer ones more often, and each of these whole.
inline double StepUnderWayMs(const RequestSummary& request, const WorkerView& decode) {
  const StepShape running = decode.RunningBeside();
  if (running.decode_rows <= 0) return 0;
  double ms = decode.cost.StepMs(running);
  if (request.prompt_steps_per_s > 0) {
    const double busy = std::min(request.prompt_ms_per_s * 1e-3, 1.0);
    ms += busy * (request.prompt_ms_per_s / request.prompt_steps_per_s - ms);
  }
  return (0.5 + decode.launched_ahead) * std::max(0.0, ms);
}

// What computing a prompt costs the requests that come meanwhile: each waits for half of it on
// average.
inline double ComputeCostMs(const RequestSummary& request, double compute_ms) {
  return 0.5 * request.arrivals_per_s * 1e-3 * compute_ms * compute_ms;
}

// By how much computing `work` there makes the steps longer that its chunks are in: they would
// have been steps of decodes alone.
inline double AddedMs(const WorkerView& decode, const PromptWork& work, double compute_ms) {
  const double steps = std::ceil(static_cast<double>(work.tokens) / ChunkFor(decode, work));
  return std::max(0.0, compute_ms - steps * decode.cost.StepMs(decode.RunningBeside()));
}

// What that puts on the streams that decode there.
inline double DelayMs(const WorkerView& decode, const PromptWork& work, double compute_ms) {
  return decode.RunningBeside().decode_rows > 0 ? AddedMs(decode, work, compute_ms) : 0;
}

// How likely what was predicted as `ms` is to miss `limit_ms` (0: none), where predictions are off
// by `spread_ms` on average: a half at the limit itself, by a curve whose tails are those of waits.
inline double MissRisk(double ms, double limit_ms, double spread_ms) {
  constexpr double kLeast = 0.12,
                   kMost = 0.3;       // what is taken for the spread, as a part of the limit
  constexpr double kSteepness = 1.4;  // over the spread
  if (limit_ms <= 0 || ms <= 0) return 0;
  const double part = std::clamp(spread_ms / limit_ms, kLeast, kMost);
  return 1 / (1 + std::pow(limit_ms / ms, kSteepness / part));
}

// What a request is worth in risks: as much as one costs that just keeps its limits. A limit that
// there is not counts as what was predicted. Nothing where it names its limits itself: it is
// refused with a margin before them, and to accept it near them is no gamble.
inline double WorthMs(const RequestSummary& request, double ttft_ms, double tpot_ms) {
  if (request.asked.any()) return 0;
  const Objective& o = request.objective;
  return (o.ttft_ms > 0 ? o.ttft_ms : ttft_ms) +
         request.expected_new_tokens * (o.tpot_ms > 0 ? o.tpot_ms : tpot_ms);
}

}  // namespace aisp
