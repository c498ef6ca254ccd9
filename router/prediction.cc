#include "router/prediction.h"

#include <algorithm>
#include <cmath>

namespace aisp {
namespace {

// Cap on the fraction of time that prefill takes: at one, predictions would be infinite.
constexpr double kMostBusy = 0.95;

}  // namespace

double StepWithMs(const RequestSummary& request, const WorkerView& decode, bool displaces) {
  const int32_t others = decode.rows - (displaces ? decode.yielding_rows : 0);
  const int64_t context = decode.context_tokens - (displaces ? decode.yielding_context : 0);
  const int32_t rows = std::min(others + 1, std::max(1, decode.max_rows));
  return decode.cost.StepMs({0, 0, static_cast<double>(rows),
                             static_cast<double>(std::max(int64_t{0}, context) + request.tokens)});
}

double BesidePromptsMs(const RequestSummary& request, double step_ms) {
  return step_ms / (1 - std::clamp(1e-3 * request.prompt_delay_ms_per_s, 0.0, kMostBusy));
}

PromptWork WorkFor(const RequestSummary& request, const WorkerView& worker, int32_t more) {
  const int32_t tokens = UncachedTokens(request, worker);
  return PromptWork::Of(request.tokens - tokens - 1, tokens + more);
}

double QueueMs(const WorkerView& worker, const PromptWork& work, double compute_ms) {
  constexpr double kMostStepContext = 1e15;  // cap on what a worker reports for its queue
  if (worker.queued_prompts <= 0) return BusyMs(worker);
  const double share = std::exp2(-std::min(worker.queued_prompts, 16));
  const PromptWork& queued = worker.queued_prefill;
  const int32_t chunk = std::max(1, worker.chunk_tokens);
  const double steps =
      std::ceil(static_cast<double>(std::max<int64_t>(1, work.tokens)) / (chunk * share));
  // A step reads as far back as the queued prompts do: deep in a long prompt it takes many times
  // what its tokens alone suggest.
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

double StepUnderWayMs(const RequestSummary& request, const WorkerView& decode) {
  const StepShape running = decode.RunningBeside();
  if (running.decode_rows <= 0) return 0;
  double ms = decode.cost.StepMs(running);
  if (request.prompt_steps_per_s > 0) {
    const double busy = std::min(request.prompt_ms_per_s * 1e-3, 1.0);
    ms += busy * (request.prompt_ms_per_s / request.prompt_steps_per_s - ms);
  }
  return (0.5 + decode.launched_ahead) * std::max(0.0, ms);
}

double ComputeCostMs(const RequestSummary& request, const WorkerView& worker, double compute_ms) {
  const double left = 1 - std::clamp(request.prompts_part, 0.0, kMostBusy);
  // Those that arrive during the prompt wait for half of it, the others for all. Behind a queue as
  // long as the TTFT limit they are late in any case.
  double queue_ms = request.aggregated ? BusyMs(worker) : 0;
  if (request.objective.ttft_ms > 0) queue_ms = std::min(queue_ms, request.objective.ttft_ms);
  return request.arrivals_per_s * 1e-3 * compute_ms * (0.5 * compute_ms + queue_ms) / left;
}

double AddedMs(const WorkerView& decode, const PromptWork& work, double compute_ms) {
  const double steps =
      std::ceil(static_cast<double>(work.tokens) / std::max(1, decode.chunk_tokens));
  return std::max(0.0, compute_ms - steps * decode.cost.StepMs(decode.RunningBeside()));
}

double DelayMs(const WorkerView& decode, const PromptWork& work, double compute_ms) {
  return decode.RunningBeside().decode_rows > 0 ? AddedMs(decode, work, compute_ms) : 0;
}

double MissRisk(double ms, double limit_ms, double spread_ms) {
  constexpr double kLeast = 0.12, kMost = 0.3;  // bounds of error / limit
  constexpr double kSteepness = 1.4;            // slope per mean error
  if (limit_ms <= 0 || ms <= 0) return 0;
  const double part = std::clamp(spread_ms / limit_ms, kLeast, kMost);
  return 1 / (1 + std::pow(limit_ms / ms, kSteepness / part));
}

double WorthMs(const RequestSummary& request, double ttft_ms, double tpot_ms) {
  if (request.asked.any()) return 0;
  const Objective& o = request.objective;
  return (o.ttft_ms > 0 ? o.ttft_ms : ttft_ms) +
         request.expected_new_tokens * (o.tpot_ms > 0 ? o.tpot_ms : tpot_ms);
}

}  // namespace aisp
