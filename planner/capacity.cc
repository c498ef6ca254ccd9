#include "planner/capacity.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

namespace aisp::planner {
namespace {

// Limits are kept by nine of ten requests, both together: who misses one need not miss the other.
constexpr double kMisses = 0.1;
// A stream's time per token over the mean of all, for what differs between workers and moments;
// what prompts come beside a stream is counted apart, as a normal deviation.
constexpr double kSlowStream = 1.05;
// A queue beyond this is taken for endless.
constexpr double kBusiest = 0.95;
constexpr double kLeast = 1.0 / 64;
// More splits than that are not tried one by one.
constexpr int kMostSplits = 33;

// Mean wait of a queue in which each takes `service`: M/D/1, and longer by as much as arrivals vary
// more than by chance (Kingman's bound, which is near where a queue is long).
double QueueMs(const Load& load, double busy, double service) {
  return service * busy / (2 * (1 - busy)) * std::max(1.0, load.dispersion);
}

struct Decoding {
  bool ok = false;
  double tpot_ms = 0;
  double spread_ms = 0;  // of it between streams, by the prompts that come beside them
  double busy = 0;       // with prompts
  double prompt_ms = 0;  // of one beside the streams
};

// One decode worker that gets `rate` requests a second and computes the part `local` of their
// prompts itself.
Decoding Decode(const Load& load, const Machine& m, double rate, double local) {
  const double context = load.prompt_tokens + load.new_tokens / 2;
  const PromptWork work =
      PromptWork::Of(static_cast<int64_t>(load.prompt_tokens - load.uncached_tokens),
                     static_cast<int64_t>(load.uncached_tokens));
  const double chunks = std::ceil(std::max(1.0, load.uncached_tokens) / m.chunk_tokens);
  const double prompts_per_ms = rate * local * 1e-3;
  Decoding out;
  double rows = 1;
  // The rows that run decide the step, and the step how many run.
  for (int i = 0; i < 40; ++i) {
    const StepShape shape{0, 0, rows, rows * context};
    const double step = m.cost.StepMs(shape);
    out.prompt_ms = local > 0 ? m.cost.PromptMs(work, m.chunk_tokens, shape) : 0;
    out.busy = prompts_per_ms * out.prompt_ms;
    if (out.busy >= kBusiest) return out;
    const double tokens_per_ms = prompts_per_ms * chunks + (1 - out.busy) / step;
    out.tpot_ms = 1 / tokens_per_ms;
    const double wanted = std::max(1.0, rate * 1e-3 * load.new_tokens * out.tpot_ms);
    if (std::abs(wanted - rows) < 0.01 * rows) break;
    rows = wanted;
    if (rows > m.max_running || rows * context > m.kv_tokens) return out;
  }
  out.ok = rows <= m.max_running && rows * context <= m.kv_tokens;
  // Few long prompts come beside an answer, some more or less by chance. It begins when a prompt
  // ends, where others may wait, and not at any moment.
  const double step = m.cost.StepMs({0, 0, rows, rows * context});
  const double each_ms = std::max(0.0, out.prompt_ms - chunks * step) / load.new_tokens;
  out.tpot_ms += out.busy * each_ms;
  const double beside = prompts_per_ms * load.new_tokens * out.tpot_ms + out.busy / (1 - out.busy);
  out.spread_ms = std::sqrt(beside) * each_ms;
  return out;
}

// The part of streams that miss their time per token.
double LateStreams(const Decoding& d, double limit_ms) {
  if (limit_ms <= 0) return 0;
  const double left_ms = limit_ms - kSlowStream * d.tpot_ms;
  if (d.spread_ms <= 0) return left_ms >= 0 ? 0 : 1;
  return 0.5 * std::erfc(left_ms / d.spread_ms / std::sqrt(2.0));
}

// The part of first tokens that are late: waits of `wait_ms` on average have the tail of an
// exponential distribution; `own_ms` is not waited.
double LatePrompts(double own_ms, double wait_ms, double limit_ms) {
  if (limit_ms <= 0) return 0;
  if (own_ms > limit_ms) return 1;
  return wait_ms > 0 ? std::exp((own_ms - limit_ms) / wait_ms) : 0;
}

bool Keeps(const Load& load, const Machine& m, const Split& split, const Objective& limits,
           double remote) {
  const double rate = load.requests_per_s;
  const Decoding d = Decode(load, m, rate / split.decode, 1 - remote);
  if (!d.ok) return false;
  double late = LateStreams(d, limits.tpot_ms);
  // The router sends to whoever is through first: with more that compute prompts a wait is shorter
  // than before one alone. Those that do it beside streams count as much as they get of them.
  const double computing = remote > 0 ? split.prefill / remote : split.decode;
  const double shorter = 1 / std::sqrt(computing);
  if (remote < 1) {
    const double wait_ms = shorter * QueueMs(load, d.busy, d.prompt_ms);
    late += (1 - remote) * LatePrompts(d.prompt_ms, wait_ms, limits.ttft_ms);
  }
  if (remote <= 0) return late <= kMisses;
  const PromptWork work =
      PromptWork::Of(static_cast<int64_t>(load.prompt_tokens - load.uncached_tokens),
                     static_cast<int64_t>(load.uncached_tokens));
  const double prompt_ms = m.cost.PromptMs(work, m.chunk_tokens, {});
  const double busy = rate * 1e-3 * remote * prompt_ms / split.prefill;
  if (busy >= kBusiest) return false;
  const double wait_ms = shorter * QueueMs(load, busy, prompt_ms);
  late += remote * LatePrompts(prompt_ms + m.handoff_ms + d.tpot_ms, wait_ms, limits.ttft_ms);
  return late <= kMisses;
}

bool Serves(const Load& load, const Machine& m, const Split& split, const Objective& limits,
            double factor) {
  Load more = load;
  more.requests_per_s *= factor;
  if (split.prefill == 0) return Keeps(more, m, split, limits, 0);
  for (const double remote : {1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0}) {
    if (Keeps(more, m, split, limits, remote)) return true;
  }
  return false;
}

}  // namespace

double Headroom(const Load& load, const Machine& machine, const Split& split,
                const Objective& limits) {
  if (split.decode <= 0) return 0;
  if (load.requests_per_s <= 0) return kPlenty;
  double low = std::log(kLeast);
  double high = std::log(kPlenty);
  if (Serves(load, machine, split, limits, kPlenty)) return kPlenty;
  for (int i = 0; i < 14; ++i) {
    const double middle = (low + high) / 2;
    (Serves(load, machine, split, limits, std::exp(middle)) ? low : high) = middle;
  }
  return std::exp(low);
}

Best BestSplit(const Load& load, const Machine& machine, int workers, const Objective& limits) {
  Best best{{0, workers}, Headroom(load, machine, {0, workers}, limits)};
  const int stride = std::max(1, workers / kMostSplits);
  for (int prefill = stride; prefill < workers; prefill += stride) {
    const Split split{prefill, workers - prefill};
    const double headroom = Headroom(load, machine, split, limits);
    if (headroom > best.headroom * 1.001) best = {split, headroom};
  }
  return best;
}

}  // namespace aisp::planner
