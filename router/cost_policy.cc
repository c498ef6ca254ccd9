// The cost policy predicts, for every decode worker D and every prefill worker P or none:
//
//   TTFT = wait for a row and blocks on D
//        + remote: queue on P + pull of a prefix cached elsewhere (often on D) to P, if predicted
//                  faster + uncached prefill on P + exposed transfer
//                  + first decode step on D, if P does not draw the first token
//          local:  queue on D + uncached prefill on D (the last chunk draws the first token)
//          pull:   pull of a prefix to D, then as local
//   TPOT = one step of D with this request's row and context added
//
// Both are corrected by recent prediction errors. Placements that meet the request's objective and
// keep that of the running streams come first, unless another one computes clearly less of the
// prompt and the request is not refused. Among these, or among all if there are none, it picks the
// least of
//
//   TTFT + expected_new_tokens * TPOT + disturbance + cost of computing + risk
//
// Disturbance: delay of the streams that decode on D by a local prefill. Cost of computing: delay
// of later requests. Risk: the probability that the request and those streams miss their limits,
// times the worth of a request. There is no fixed threshold: local or remote follows from each
// worker's fitted costs.
#include <algorithm>
#include <cmath>
#include <limits>

#include "common/prefix_hash.h"
#include "router/policy.h"
#include "router/prediction.h"
#include "router/prefix_pulls.h"
#include "router/shortlist.h"

namespace aisp {
namespace {

constexpr std::string_view kRemotePrefill = "remote-prefill";  // predicted cheaper
constexpr std::string_view kLocalCheaper = "local-cheaper";    // local predicted cheaper
constexpr std::string_view kReasons[] = {kRemotePrefill,
                                         kLocalCheaper,
                                         route_reason::kLocalCached,
                                         route_reason::kLocalShort,
                                         route_reason::kLocalNoPrefillWorker,
                                         route_reason::kLocalPull,
                                         route_reason::kTakeover,
                                         route_reason::kForcedRemote,
                                         route_reason::kForcedLocal};

// A limit counts as met if the prediction plus this many mean errors meets it. Without a margin,
// half of the requests predicted at the limit would miss it.
constexpr double kMargin = 2.0;
// The error is capped at this part of the limit, or a bad hour would refuse everything.
constexpr double kMostSpread = 0.1;
// A placement computes clearly less than another if it computes less than this part.
constexpr double kClearlyLess = 0.9;
// Least error, as a part of the TPOT: few samples do not prove that predictions are exact.
constexpr double kLeastSpread = 0.025;

std::string_view ReasonOf(const RequestSummary& request, const WorkerView& decode, bool remote,
                          bool pulls, bool any_prefill) {
  if (request.takeover) return route_reason::kTakeover;
  if (pulls) return route_reason::kLocalPull;
  if (remote) {
    return request.preference == PrefillPreference::kRemote ? route_reason::kForcedRemote
                                                            : kRemotePrefill;
  }
  if (UncachedTokens(request, decode) < kHashUnitTokens) return LittleLeftReason(decode);
  if (request.preference == PrefillPreference::kLocal) return route_reason::kForcedLocal;
  return any_prefill ? kLocalCheaper : route_reason::kLocalNoPrefillWorker;
}

// What the prefilling worker waits for first: a prefix from another worker or from its own tiers.
// Queued prompts are computed meanwhile.
struct Fetch {
  double ms = 0;
  double extra_ms = 0;   // correction for such requests
  double holder_ms = 0;  // time for which the holder and the link from it are busy
};

class CostPolicy final : public RoutingPolicy {
 public:
  explicit CostPolicy(const CostPolicyOptions& options) : options_(options) {}
  Result<Placement> Pick(const RequestSummary& request,
                         std::span<const WorkerView> workers) const override;
  std::span<const std::string_view> Reasons() const override { return kReasons; }

 private:
  struct Cost {
    double ttft_ms = 0;
    double ttft_own_ms = 0;   // of it, uncorrected: the request's own part
    double ttft_wait_ms = 0;  // of it, uncorrected: the wait for others
    double ttft_fetch_ms = 0;
    double now_ms = 0;   // a decode-only step with this request
    double step_ms = 0;  // TPOT without correction
    double tpot_ms = 0;
    double tpot_high_ms = 0;  // upper bound, rarely exceeded
    double ttft_high_ms = 0;
    double score_ms = 0;
    int64_t computed = 0;       // tokens to prefill
    bool meets = false;         // meets the request's objective
    bool keeps_asked = false;   // meets what the request itself asks for
    bool spares_others = true;  // the running streams keep their objective
    bool displaces = false;     // after yielding rows have left
  };
  struct Candidate {
    int decode;
    int prefill;  // prefill worker; -1: local
    Cost cost;
    PullChoice pull = {};
  };
  static void PreferRemote(std::vector<Candidate>* candidates);
  static void KeepBest(const RequestSummary& request, std::vector<Candidate>* candidates);
  void KeepTies(std::vector<Candidate>* candidates) const;
  static double FirstDecodeMs(const WorkerView& decode, double ready_ms, double step_ms);
  static Cost Begin(const RequestSummary& request, const WorkerView& decode);
  static void SetStep(const RequestSummary& request, const WorkerView& decode, Cost* cost);
  static void SetFetch(const Fetch& fetch, double step_ms, Cost* cost);
  static void End(const RequestSummary& request, const WorkerView::LearntTtft& learnt, Cost* cost);
  static double MoreRisk(const RequestSummary& request, const WorkerView& decode, double tpot_ms,
                         double others_ms);
  double AdmissionMs(const RequestSummary& request, const WorkerView& decode, double tpot_ms) const;
  double ExposedTransferMs(const RequestSummary& request, const WorkerView& decode,
                           const WorkerView& prefill, double compute_ms) const;
  Cost Local(const RequestSummary& request, const WorkerView& decode,
             const Fetch& fetch = {}) const;
  void AddPulls(const RequestSummary& request, std::span<const WorkerView> workers,
                const Shortlist& list, std::vector<Candidate>* candidates) const;
  // `fetch`: what the prefill worker fetches first.
  Cost Remote(const RequestSummary& request, const WorkerView& decode, const WorkerView& prefill,
              const Fetch& fetch = {}) const;
  void AddRemotes(const RequestSummary& request, std::span<const WorkerView> workers,
                  const Shortlist& list, std::vector<Candidate>* candidates) const;
  std::vector<int> Fallbacks(const RequestSummary& request, std::span<const WorkerView> workers,
                             const Shortlist& list, const Placement& chosen) const;

  const CostPolicyOptions options_;
};

// Wait until D has a row and the blocks: both are freed as running requests end.
double CostPolicy::AdmissionMs(const RequestSummary& request, const WorkerView& decode,
                               double tpot_ms) const {
  const double lifetime_ms = request.expected_new_tokens * tpot_ms;
  double wait_ms = 0;
  const int32_t rows = decode.rows - decode.yielding_rows;
  if (rows >= decode.max_rows) {
    wait_ms = lifetime_ms * (rows - decode.max_rows + 1) / std::max(1, decode.max_rows);
  }
  const int32_t shared = std::min(KnownTokens(decode), request.tokens - 1);
  const int32_t cached_blocks = shared / std::max(1, decode.block_tokens);
  const int32_t wanted = request.tokens / std::max(1, decode.block_tokens) + 1 - cached_blocks;
  const int32_t missing = wanted - decode.free_blocks;
  if (missing > 0 && decode.total_blocks > 0) {
    const int32_t in_use = std::max(1, decode.total_blocks - decode.free_blocks);
    wait_ms = std::max(wait_ms, lifetime_ms * missing / in_use);
  }
  return wait_ms;
}

// Layers are transferred while the next ones compute. Exposed are the last layer, and what the link
// could not keep up with.
double CostPolicy::ExposedTransferMs(const RequestSummary& request, const WorkerView& decode,
                                     const WorkerView& prefill, double compute_ms) const {
  double bytes_per_s = prefill.transfer_bytes_per_s;
  if (bytes_per_s <= 0) {
    const bool same_host = !prefill.host_id.empty() && prefill.host_id == decode.host_id;
    bytes_per_s = same_host ? options_.bytes_per_s_same_host : options_.bytes_per_s_other_host;
  }
  const double total_ms =
      UncachedTokens(request, decode) * decode.kv_bytes_per_token / bytes_per_s * 1e3;
  const double last_layer_ms = total_ms / std::max(1, request.num_layers);
  return options_.handoff_ms + std::max(last_layer_ms, total_ms - compute_ms);
}

void CostPolicy::SetStep(const RequestSummary& request, const WorkerView& decode, Cost* cost) {
  cost->now_ms = StepWithMs(request, decode, cost->displaces);
  cost->step_ms = BesidePromptsMs(request, cost->now_ms);
  // A correction cannot take away most of a step's time.
  cost->tpot_ms = cost->step_ms + std::max(decode.tpot_extra.value, -0.3 * cost->step_ms);
  // Another row prolongs the step for all streams.
  cost->tpot_high_ms = cost->tpot_ms + decode.tpot_margin * std::clamp(decode.tpot_extra.spread,
                                                                       kLeastSpread * cost->tpot_ms,
                                                                       kMostSpread * cost->tpot_ms);
  cost->spares_others = request.others.MetBy(0, cost->tpot_high_ms);
}

CostPolicy::Cost CostPolicy::Begin(const RequestSummary& request, const WorkerView& decode) {
  Cost cost;
  SetStep(request, decode, &cost);
  const bool kept = cost.spares_others && request.objective.MetBy(0, cost.tpot_high_ms);
  if (!decode.known || kept || decode.yielding_rows <= 0) return cost;
  cost.displaces = true;
  SetStep(request, decode, &cost);
  return cost;
}

// The fetch overlaps with queued work. When it ends, the worker is inside a step.
void CostPolicy::SetFetch(const Fetch& fetch, double step_ms, Cost* cost) {
  if (fetch.ms <= 0) return;
  const double fetched_ms = fetch.ms + step_ms;
  cost->ttft_own_ms += fetched_ms;
  cost->ttft_wait_ms = std::max(0.0, cost->ttft_wait_ms - fetched_ms);
  cost->ttft_fetch_ms = std::max(fetch.extra_ms, -0.5 * fetched_ms);
  cost->score_ms += fetch.holder_ms;
}

void CostPolicy::End(const RequestSummary& request, const WorkerView::LearntTtft& learnt,
                     Cost* cost) {
  // A correction takes away at most half of the request's own part.
  cost->ttft_ms = cost->ttft_own_ms + std::max(learnt.offset.value, -0.5 * cost->ttft_own_ms) +
                  cost->ttft_wait_ms * learnt.wait_factor.value + cost->ttft_fetch_ms;
  cost->score_ms += cost->ttft_ms + request.expected_new_tokens * cost->tpot_ms;
  // The error of the wait grows with the wait.
  const double spread_ms = learnt.offset.spread + learnt.wait_factor.spread * cost->ttft_wait_ms;
  const double risk = MissRisk(cost->ttft_ms, request.objective.ttft_ms, spread_ms);
  cost->score_ms += risk * WorthMs(request, cost->ttft_ms, cost->tpot_ms);
  const double high_ms =
      cost->ttft_ms +
      std::max(kMargin * std::min(spread_ms, kMostSpread * request.objective.ttft_ms),
               kMostSpread * cost->ttft_ms);
  cost->ttft_high_ms = high_ms;
  cost->meets = request.objective.MetBy(high_ms, cost->tpot_high_ms);
  cost->keeps_asked = request.asked.MetBy(high_ms, cost->tpot_high_ms);
}

// By how much this request makes a running stream likelier to miss its TPOT, if its prompt prolongs
// the stream's from `tpot_ms` to `others_ms`. Where all workers compute prompts, taken at the
// limit: late streams have little to lose, so prompts went to the slowest workers. There the
// request's row counts, too, for the half of their tokens that the streams still have to come.
double CostPolicy::MoreRisk(const RequestSummary& request, const WorkerView& decode, double tpot_ms,
                            double others_ms) {
  constexpr double kToCome = 0.5;
  const double limit_ms = request.others.tpot_ms, spread_ms = decode.tpot_extra.spread;
  if (!request.aggregated)
    return MissRisk(others_ms, limit_ms, spread_ms) - MissRisk(tpot_ms, limit_ms, spread_ms);
  const double row_ms =
      StepWithMs(request, decode, false) - decode.cost.StepMs(decode.RunningBeside());
  const double more_ms =
      others_ms - tpot_ms + kToCome * BesidePromptsMs(request, std::max(0.0, row_ms));
  return MissRisk(limit_ms + more_ms, limit_ms, spread_ms) -
         MissRisk(limit_ms, limit_ms, spread_ms);
}

CostPolicy::Cost CostPolicy::Local(const RequestSummary& request, const WorkerView& decode,
                                   const Fetch& fetch) const {
  Cost cost = Begin(request, decode);
  const PromptWork work = WorkFor(request, decode, 1);
  cost.computed = work.tokens;
  const double compute_ms = PromptMs(decode, work);
  cost.score_ms = ComputeCostMs(request, decode, compute_ms);
  const double rows = decode.RunningBeside().decode_rows;
  if (rows > 0) {
    const double delay_ms = DelayMs(decode, work, compute_ms);
    cost.score_ms += options_.disturbance_weight * delay_ms * rows;
    // The delay is spread over the mean number of tokens of a stream.
    const double others_ms = cost.tpot_ms + delay_ms / std::max(1.0, request.expected_new_tokens);
    cost.spares_others = cost.spares_others && request.others.MetBy(0, others_ms);
    cost.score_ms += rows * MoreRisk(request, decode, cost.tpot_ms, others_ms) *
                     WorthMs(request, 0, cost.tpot_ms);
  }
  cost.ttft_own_ms = compute_ms;
  cost.ttft_wait_ms =
      AdmissionMs(request, decode, cost.tpot_ms) + QueueMs(decode, work, compute_ms);
  SetFetch(fetch, StepUnderWayMs(request, decode), &cost);
  End(request, decode.local_ttft, &cost);
  return cost;
}

// The few decode workers that would finish first if they pulled a prefix.
void CostPolicy::AddPulls(const RequestSummary& request, std::span<const WorkerView> workers,
                          const Shortlist& list, std::vector<Candidate>* candidates) const {
  for (const int d : list.pullers) {
    const PullChoice pull = BestPull(request, workers, list.holders, d);
    for (Candidate& local : *candidates) {
      if (local.decode == d) local.pull.verdict = std::min(pull.verdict, PullVerdict::kOutbid);
    }
    if (pull.holder < 0) continue;
    if (request.pull_whenever)
      std::erase_if(*candidates, [d](const Candidate& local) { return local.decode == d; });
    const WorkerView with = WithPrefix(workers[static_cast<size_t>(d)], pull.tokens);
    const Fetch fetch{pull.pull_ms, with.fetch_extra.value, pull.pull_ms};
    candidates->push_back({d, -1, Local(request, with, fetch), pull});
  }
}

// Time from now to the first token on D if the KV is there after `ready_ms`: the rest of the
// running step (half of one on average), the steps launched after it, and its own. While D computes
// prompts those are steps with prefill rows.
double CostPolicy::FirstDecodeMs(const WorkerView& decode, double ready_ms, double step_ms) {
  const double steps = decode.rows > 0 ? 1.5 + decode.launched_ahead : 1.0;
  const double plain_ms = steps * step_ms;
  const double left_ms = decode.backlog_ms - ready_ms;
  if (left_ms <= 0) return plain_ms;
  const double chunk_ms = PromptMs(decode, PromptWork::Of(0, decode.chunk_tokens));
  return std::min(left_ms + plain_ms, std::max(1.5 * chunk_ms, plain_ms));
}

CostPolicy::Cost CostPolicy::Remote(const RequestSummary& request, const WorkerView& decode,
                                    const WorkerView& prefill, const Fetch& fetch) const {
  Cost cost = Begin(request, decode);
  const bool drawn = request.first_token_anywhere && decode.first_tokens && prefill.first_tokens;
  const PromptWork work = WorkFor(request, prefill, drawn ? 1 : 0);
  cost.computed = work.tokens;
  const double compute_ms = PromptMs(prefill, work);
  const double transfer_ms = ExposedTransferMs(request, decode, prefill, compute_ms);
  // Waiting on D and prefill on P overlap: P requests D's blocks when it is about to run.
  cost.ttft_wait_ms = std::max(decode.busy_ms + AdmissionMs(request, decode, cost.tpot_ms),
                               QueueMs(prefill, work, compute_ms));
  cost.score_ms = ComputeCostMs(request, prefill, compute_ms);
  cost.ttft_own_ms = compute_ms + transfer_ms;
  SetFetch(fetch, /*step_ms=*/0, &cost);
  if (!drawn)
    cost.ttft_own_ms += FirstDecodeMs(decode, cost.ttft_wait_ms + cost.ttft_own_ms, cost.now_ms);
  End(request, decode.remote_ttft, &cost);
  return cost;
}

// Drops local candidates if there are remote ones.
void CostPolicy::PreferRemote(std::vector<Candidate>* candidates) {
  const auto local = [](const Candidate& c) { return c.prefill < 0; };
  if (!std::all_of(candidates->begin(), candidates->end(), local))
    std::erase_if(*candidates, local);
}

// Keeps candidates of the best rank: meets the request's objective and that of others; meets the
// request's; meets what the request itself asks for; all. If the request is not refused, also those
// that compute clearly less: whether its limits are worth computing a prefix again is for the score
// to say, since that may make several others late.
void CostPolicy::KeepBest(const RequestSummary& request, std::vector<Candidate>* candidates) {
  const auto rank = [](const Candidate& c) {
    if (!c.cost.meets) return c.cost.keeps_asked ? 2 : 3;
    return c.cost.spares_others ? 0 : 1;
  };
  int best = 3;
  for (const Candidate& c : *candidates) best = std::min(best, rank(c));
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Candidate& c : *candidates)
    if (rank(c) == best) least = std::min(least, c.cost.computed);
  const double less = request.refusable ? 0 : kClearlyLess * static_cast<double>(least);
  std::erase_if(*candidates, [&](const Candidate& c) {
    return rank(c) != best && static_cast<double>(c.cost.computed) >= less;
  });
}

// The best and its ties. A pull must be strictly the best, because it duplicates cached content.
void CostPolicy::KeepTies(std::vector<Candidate>* candidates) const {
  const auto best = std::min_element(
      candidates->begin(), candidates->end(),
      [](const Candidate& a, const Candidate& b) { return a.cost.score_ms < b.cost.score_ms; });
  const double best_ms = best->cost.score_ms;
  const bool pulls = best->pull.holder >= 0;
  const double limit_ms = best_ms + options_.tie_fraction * std::abs(best_ms);
  std::erase_if(*candidates, [&](const Candidate& c) {
    return c.cost.score_ms > limit_ms || (!pulls && c.pull.holder >= 0);
  });
}

// Adds pairs of a decode worker D and a prefill worker P.
void CostPolicy::AddRemotes(const RequestSummary& request, std::span<const WorkerView> workers,
                            const Shortlist& list, std::vector<Candidate>* candidates) const {
  if (list.decodes.empty()) return;
  for (const int p : list.prefills) {
    const WorkerView& prefill = workers[static_cast<size_t>(p)];
    const PullChoice pull = BestPull(request, workers, list.holders, p);
    const bool pulls = pull.holder >= 0;
    const WorkerView with = WithPrefix(prefill, pull.tokens);
    for (const int d : list.decodes) {
      const WorkerView& decode = workers[static_cast<size_t>(d)];
      if (!pulls || !request.pull_whenever)
        candidates->push_back({d, p, Remote(request, decode, prefill), {}});
      const Fetch fetch{pull.pull_ms, with.fetch_extra.value, pull.pull_ms};
      if (pulls) candidates->push_back({d, p, Remote(request, decode, with, fetch), pull});
    }
  }
}

Result<Placement> CostPolicy::Pick(const RequestSummary& request,
                                   std::span<const WorkerView> workers) const {
  const Shortlist list = MakeShortlist(request, workers, options_);
  std::vector<Candidate> candidates;
  candidates.reserve(Shortlist::kLocals + Shortlist::kEach + 2 * Shortlist::kPairs);
  for (const int d : list.locals) {
    const WorkerView& worker = workers[static_cast<size_t>(d)];
    const HeldPrefix own = OwnPrefix(request, worker);
    const Cost cost = own.promote_ms > 0
                          ? Local(request, WithPrefix(worker, own.tokens), {own.promote_ms})
                          : Local(request, worker);
    candidates.push_back({d, -1, cost, {}});
  }
  AddPulls(request, workers, list, &candidates);
  AddRemotes(request, workers, list, &candidates);
  if (candidates.empty()) return Unavailable("no decode worker is ready; retry later");
  if (request.preference == PrefillPreference::kRemote) PreferRemote(&candidates);
  KeepBest(request, &candidates);
  KeepTies(&candidates);
  const Candidate& chosen = candidates[request.tie_break % candidates.size()];

  Placement placement;
  placement.decode = chosen.decode;
  placement.prefill = chosen.prefill;
  placement.pull = chosen.pull;
  placement.ttft_ms = chosen.cost.ttft_ms;
  placement.ttft_high_ms = chosen.cost.ttft_high_ms;
  placement.tpot_ms = chosen.cost.tpot_ms;
  placement.ttft_own_ms = chosen.cost.ttft_own_ms;
  placement.ttft_wait_ms = chosen.cost.ttft_wait_ms;
  placement.ttft_fetch_ms = chosen.cost.ttft_fetch_ms;
  placement.step_ms = chosen.cost.step_ms;
  placement.tpot_high_ms = chosen.cost.tpot_high_ms;
  // With few steps seen, a prediction does not refuse the request.
  const bool known = workers[static_cast<size_t>(chosen.decode)].known;
  placement.known = known;
  placement.meets = !known || chosen.cost.meets;
  placement.keeps_asked = !known || chosen.cost.keeps_asked;
  placement.spares_others = !known || chosen.cost.spares_others;
  placement.displaces = chosen.cost.displaces;
  const bool remote = chosen.prefill >= 0;
  placement.reason = ReasonOf(request, workers[chosen.decode], remote,
                              chosen.pull.holder >= 0 && !remote, list.any_prefill);
  if (placement.prefill >= 0) placement.fallbacks = Fallbacks(request, workers, list, placement);
  return placement;
}

std::vector<int> CostPolicy::Fallbacks(const RequestSummary& request,
                                       std::span<const WorkerView> workers, const Shortlist& list,
                                       const Placement& chosen) const {
  const WorkerView& decode = workers[static_cast<size_t>(chosen.decode)];
  std::vector<std::pair<double, int>> others;
  for (const int p : list.prefills) {
    if (p == chosen.prefill) continue;
    others.emplace_back(Remote(request, decode, workers[static_cast<size_t>(p)]).score_ms, p);
  }
  const size_t kept = std::min(kMaxFallbacks, others.size());
  std::partial_sort(others.begin(), others.begin() + static_cast<std::ptrdiff_t>(kept),
                    others.end());
  std::vector<int> out;
  out.reserve(kept);
  for (size_t i = 0; i < kept; ++i) out.push_back(others[i].second);
  return out;
}

}  // namespace

std::unique_ptr<RoutingPolicy> MakeCostPolicy(const PolicyOptions& options) {
  return std::make_unique<CostPolicy>(options.cost);
}

}  // namespace aisp
