// Predictions of the cost policy and its shortlist for one worker alone. Pure.
#pragma once

#include <algorithm>

#include "router/policy.h"

namespace aisp {

// Time of a decode step of `decode` with this request added; `displaces`: after yielding rows have
// left.
double StepWithMs(const RequestSummary& request, const WorkerView& decode, bool displaces);

// TPOT in ms for steps of `step_ms` that prefill rows prolong by a known fraction of time. Each
// step draws one token per stream, also steps with prefill rows.
double BesidePromptsMs(const RequestSummary& request, double step_ms);

inline double PromptMs(const WorkerView& worker, const PromptWork& work) {
  return worker.cost.PromptMs(work, worker.chunk_tokens, worker.RunningBeside());
}

// Tokens and positions that `worker` would compute and read.
PromptWork WorkFor(const RequestSummary& request, const WorkerView& worker, int32_t more);

// Time until `worker` has finished all its work. Its current long step computes queued prompts, so
// the two overlap.
inline double BusyMs(const WorkerView& worker) {
  return std::max(worker.busy_ms, worker.backlog_ms);
}

// Time until `worker` has finished this prompt, minus the prompt's own `compute_ms`. Of n longer
// prompts ahead the first gets half of the step, the next half of the rest, and so on, so a short
// prompt does not wait for all of them.
double QueueMs(const WorkerView& worker, const PromptWork& work, double compute_ms);

// Expected time until the running step, and those launched after it, end: half of a step on average
// (longer steps weigh more), plus the launched ones in whole.
double StepUnderWayMs(const RequestSummary& request, const WorkerView& decode);

// Cost of computing a prompt on `worker` to later requests: all that arrive until its queue has
// caught up wait longer. The busy period of a queue grows with what is in it already, and as
// 1 / (1 - load): at nine tenths load ten times as many requests are affected.
double ComputeCostMs(const RequestSummary& request, const WorkerView& worker, double compute_ms);

// Time by which the chunks of `work` prolong steps, compared with decode-only steps.
double AddedMs(const WorkerView& decode, const PromptWork& work, double compute_ms);

// The same if streams decode there, else 0.
double DelayMs(const WorkerView& decode, const PromptWork& work, double compute_ms);

// Probability that a prediction of `ms` with mean error `spread_ms` misses `limit_ms` (0: no
// limit). One half at the limit; the tails of the curve are those of waiting times.
double MissRisk(double ms, double limit_ms, double spread_ms);

// Weight of a miss in ms: the cost of a request that just meets its limits. A missing limit counts
// as the predicted value. Zero if the request names its own limits: it is then refused with a
// margin, so accepting it is no risk.
double WorthMs(const RequestSummary& request, double ttft_ms, double tpot_ms);

}  // namespace aisp
