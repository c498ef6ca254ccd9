// What the cost policy and its shortlist predict of one worker alone. Pure.
#pragma once

#include <algorithm>

#include "router/policy.h"

namespace aisp {

// A step of D with this request among the others, or among those that do not yield to it.
double StepWithMs(const RequestSummary& request, const WorkerView& decode, bool displaces);

// The time for a token where steps take `step_ms` and prompts make them longer by so much of each
// second. Each step draws one token, those that hold prompts as well, however many share one.
double BesidePromptsMs(const RequestSummary& request, double step_ms);

// Streams beside `work`, and what else takes `queued_ms` there, would miss their time for a token
// if it were computed in whole chunks: short ones by these alone, or usual ones by these and what
// is to come.
struct Pacing {
  bool now = false;
  bool lasting = false;
  bool any() const { return now || lasting; }
};
Pacing Paces(const WorkerView& worker, double queued_ms, const PromptWork& work);

// Tokens of `work` that a step of `worker` takes on average.
int32_t ChunkFor(const WorkerView& worker, const PromptWork& work);

inline double PromptMs(const WorkerView& worker, const PromptWork& work) {
  return worker.cost.PromptMs(work, ChunkFor(worker, work), worker.RunningBeside());
}

// Of a limit for a token, what a step with a paced prompt takes: steps are not all as long as
// predicted. And however little that leaves, a prompt gets at least one in kLeastPace of a chunk.
inline constexpr double kPaced = 0.9;
inline constexpr int32_t kLeastPace = 8;
// So that a step with prompts leaves streams `tpot_ms` for a token, but never less than a part of
// the worker's own chunk; none without a limit.
PromptPace PaceWithin(const WorkerView& worker, double tpot_ms);
// Of streams of so many tokens each of which takes `step_ms` without these prompts; other prompts
// make steps longer by the part `beside` of each second.
double SpareMs(double tokens, double step_ms, double tpot_ms, double beside = 0);

// Tokens that `worker` would compute and have read.
PromptWork WorkFor(const RequestSummary& request, const WorkerView& worker, int32_t more);

// Until `worker` is through with all that it has: the long step that it is in computes what is
// queued.
inline double BusyMs(const WorkerView& worker) {
  return std::max(worker.busy_ms, worker.backlog_ms);
}

// Until `worker` is through with this prompt, without the `compute_ms` of the prompt itself. Of n
// prompts ahead that are longer than a step the first takes half of the step, the next half of the
// rest and so on: a short one does not wait for all of them.
double QueueMs(const WorkerView& worker, const PromptWork& work, double compute_ms);

// Until the step ends that D is in at some moment, and those that it has launched behind it: half
// of a step on average, of the longer ones more often, and each of these whole.
double StepUnderWayMs(const RequestSummary& request, const WorkerView& decode);

// What computing a prompt costs the requests that come until it is made up for. Each waits for half
// of it on average. It is made up for in the time that other prompts leave (the busy period of a
// queue): where these fill nine tenths of each second, ten times as many come until then.
double ComputeCostMs(const RequestSummary& request, double compute_ms);

// By how much computing `work` there makes the steps longer that its chunks are in: they would
// have been steps of decodes alone.
double AddedMs(const WorkerView& decode, const PromptWork& work, double compute_ms);

// What that puts on the streams that decode there.
double DelayMs(const WorkerView& decode, const PromptWork& work, double compute_ms);

// How likely what was predicted as `ms` is to miss `limit_ms` (0: none), where predictions are off
// by `spread_ms` on average: a half at the limit itself, by a curve whose tails are those of waits.
double MissRisk(double ms, double limit_ms, double spread_ms);

// What a request is worth in risks: as much as one costs that just keeps its limits. A limit that
// there is not counts as what was predicted. Nothing where it names its limits itself: it is
// refused with a margin before them, and to accept it near them is no gamble.
double WorthMs(const RequestSummary& request, double ttft_ms, double tpot_ms);

}  // namespace aisp
