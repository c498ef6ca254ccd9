#include "planner/capacity.h"

#include <algorithm>
#include <cmath>

#include "router/prediction.h"

namespace aisp::planner {
namespace {

// Nine of ten requests must meet both limits; misses of the two are assumed not to coincide.
constexpr double kMisses = 0.1;
// A stream's TPOT relative to the mean, for differences between workers and moments. The effect of
// prefill rows is modelled apart, as a normal deviation.
constexpr double kSlowStream = 1.05;
// Utilisation above this counts as an endless queue.
constexpr double kBusiest = 0.95;
constexpr double kLeast = 1.0 / 64;
// Part of the TPOT limit that streams take while prefill waits for them.
constexpr double kKeptOfTpot = 0.9;
// Part of the streams for which prefill waits that are late all the same: prompts have limits, too,
// and nobody knows when an answer ends. From simulated capacities of aggregated workers.
constexpr double kStillLate = 0.4;
// With more splits, only some are tried.
constexpr int kMostSplits = 33;

// Mean wait before `servers` workers with deterministic `service` time, of which each request gets
// the one that is free first: M/D/c by Sakasegawa's approximation, scaled by the arrivals'
// dispersion (Kingman's bound, which is close for long queues).
double QueueMs(const Load& load, double busy, double service, double servers) {
  const double waits = std::pow(busy, std::sqrt(2 * (servers + 1)) - 1);
  return service * waits / (2 * servers * (1 - busy)) * std::max(1.0, load.dispersion);
}

struct Decoding {
  bool ok = false;
  double tpot_ms = 0;
  double spread_ms = 0;  // of TPOT between streams, due to prefill rows in their steps
  double busy = 0;       // fraction of time with prefill
  double prompt_ms = 0;  // time of one prompt, computed together with the streams
  double late = 0;       // fraction of streams for which prefill has to wait
  double pauses_ms = 0;  // such a wait; its mean is in prompt_ms
};

// A decode worker that gets `rate` requests a second and prefills the fraction `local` of their
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
  // Fixed point: rows determine the step time, and the step time how many run.
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
  // An answer overlaps with few long prompts, a random number. It also starts when a prompt ends,
  // when others may be queued, and not at a random moment; hence the last term.
  const double step = m.cost.StepMs({0, 0, rows, rows * context});
  const double each_ms = std::max(0.0, out.prompt_ms - chunks * step) / load.new_tokens;
  out.tpot_ms += out.busy * each_ms;
  const double beside = prompts_per_ms * load.new_tokens * out.tpot_ms + out.busy / (1 - out.busy);
  out.spread_ms = std::sqrt(beside) * each_ms;
  return out;
}

// The same where prefill waits beside streams that would miss their TPOT (common/token_limits.h):
// between its steps there are then as many without as those need. `late`: the fraction of streams
// that would miss it otherwise, which is also the fraction of the prompts that wait. Not ok if
// prompts would wait ever longer.
Decoding DecodeInTurns(const Load& load, const Machine& m, double rate, double local,
                       double limit_ms, double late) {
  const double context = load.prompt_tokens + load.new_tokens / 2;
  const PromptWork work =
      PromptWork::Of(static_cast<int64_t>(load.prompt_tokens - load.uncached_tokens),
                     static_cast<int64_t>(load.uncached_tokens));
  Decoding out;
  if (limit_ms <= 0 || local <= 0 || work.tokens <= 0) return out;
  const double most_ms = kKeptOfTpot * limit_ms;
  const double rows = std::max(1.0, rate * 1e-3 * load.new_tokens * most_ms);
  if (rows > m.max_running || rows * context > m.kv_tokens) return out;
  const StepShape decodes{0, 0, rows, rows * context};
  const double plain_ms = m.cost.StepMs(decodes);
  if (plain_ms >= most_ms) return out;
  const double chunks = std::ceil(static_cast<double>(work.tokens) / m.chunk_tokens);
  const double compute_ms = m.cost.PromptMs(work, m.chunk_tokens, decodes);
  const double pauses = std::max(0.0, compute_ms - chunks * most_ms) / (most_ms - plain_ms);
  out.prompt_ms = compute_ms + late * pauses * plain_ms;
  out.busy = rate * local * 1e-3 * out.prompt_ms;
  if (out.busy >= kBusiest) return out;
  out.ok = true;
  out.tpot_ms = out.busy * most_ms + (1 - out.busy) * plain_ms;
  out.late = late;
  out.pauses_ms = pauses * plain_ms;
  return out;
}

// Fraction of streams that miss their TPOT limit.
double LateStreams(const Decoding& d, double limit_ms) {
  if (limit_ms <= 0) return 0;
  const double left_ms = limit_ms - kSlowStream * d.tpot_ms;
  if (d.spread_ms <= 0) return left_ms >= 0 ? 0 : 1;
  return 0.5 * std::erfc(left_ms / d.spread_ms / std::sqrt(2.0));
}

// Fraction of first tokens that miss the limit: waits with mean `wait_ms` have an exponential tail;
// `own_ms` is no wait.
double LatePrompts(double own_ms, double wait_ms, double limit_ms) {
  if (limit_ms <= 0) return 0;
  if (own_ms > limit_ms) return 1;
  return wait_ms > 0 ? std::exp((own_ms - limit_ms) / wait_ms) : 0;
}

// Fractions that are late if the fraction `remote` of all prompts goes to prefill workers.
struct Lateness {
  double streams = 1;    // fraction of streams that miss their TPOT
  double prompts = 1;    // fraction of first tokens that miss their TTFT
  bool lasting = false;  // stable: queues do not grow without limit
};

Lateness LateWith(const Load& load, const Machine& m, const Split& split, const Objective& limits,
                  double remote) {
  const double rate = load.requests_per_s;
  const PromptWork work =
      PromptWork::Of(static_cast<int64_t>(load.prompt_tokens - load.uncached_tokens),
                     static_cast<int64_t>(load.uncached_tokens));
  const double prompt_ms = remote > 0 ? m.cost.PromptMs(work, m.chunk_tokens, {}) : 0;
  const double busy = remote > 0 ? rate * 1e-3 * remote * prompt_ms / split.prefill : 0;
  Lateness late;
  late.lasting = busy < kBusiest;
  // Decode workers get only the requests that pass the prefill workers.
  const double through = late.lasting ? 1 : kBusiest / busy;
  const double computed = rate * (1 - remote);
  const double decoded = computed + rate * remote * through;
  // Decode workers that also prefill count by their part of the prompts.
  const double computing = std::max(1.0, remote > 0 ? split.prefill / remote : split.decode);
  const auto with = [&](const Decoding& d) -> Lateness {
    if (!d.ok) return {};
    const double streams = LateStreams(d, limits.tpot_ms) + kStillLate * d.late;
    Lateness all{streams, 0, late.lasting};
    if (remote < 1) {
      const double wait_ms = QueueMs(load, d.busy, d.prompt_ms, computing);
      const double own_ms = d.prompt_ms - d.late * d.pauses_ms;
      const double at_once = LatePrompts(own_ms, wait_ms, limits.ttft_ms);
      const double paused = LatePrompts(own_ms + d.pauses_ms, wait_ms, limits.ttft_ms);
      all.prompts += (1 - remote) * (at_once + d.late * (paused - at_once));
    }
    if (remote <= 0) return all;
    const double wait_ms = late.lasting ? QueueMs(load, busy, prompt_ms, computing) : 0;
    const double own_ms = prompt_ms + m.handoff_ms + d.tpot_ms;
    all.prompts += remote * (late.lasting ? LatePrompts(own_ms, wait_ms, limits.ttft_ms) : 1);
    return all;
  };
  // Prefill waits if more streams would be late than prompts.
  const double each = decoded / split.decode, local = computed / decoded;
  const Lateness whole = with(Decode(load, m, each, local));
  if (remote >= 1 || whole.streams <= 0) return whole;
  const Lateness turns =
      with(DecodeInTurns(load, m, each, local, limits.tpot_ms, whole.lasting ? whole.streams : 1));
  return turns.streams + turns.prompts < whole.streams + whole.prompts ? turns : whole;
}

// In the worst case different requests miss the two limits.
bool Keeps(const Lateness& late) { return late.lasting && late.streams + late.prompts <= kMisses; }

// The fraction of remote prompts is tried in twentieths.
constexpr int kRemoteParts = 20;

bool Serves(const Load& load, const Machine& m, const Split& split, const Objective& limits,
            double factor) {
  Load more = load;
  more.requests_per_s *= factor;
  for (int i = split.prefill > 0 ? kRemoteParts : 0; i >= 0; --i) {
    if (Keeps(LateWith(more, m, split, limits, static_cast<double>(i) / kRemoteParts))) return true;
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
