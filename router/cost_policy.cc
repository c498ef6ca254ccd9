// The cost policy predicts, for every decode worker D and every prefill worker P or none:
//
//   TTFT = wait for a row and blocks on D
//        + remote: queue on P + what another worker (often D) has cached of it to P, where that is
//                  predicted faster + uncached prefill on P + exposed transfer
//                  + first decode step on D, where P does not draw the first token
//          local:  queue on D + uncached prefill on D (the last chunk draws the first token)
//          pull:   what of the prompt another worker has cached to D, then local
//   TPOT = one step of D with this request's row and context among the others
//
// both corrected by what the last predictions were wrong by. Placements that meet the request's
// objective and keep the running streams' come first; among them, and where there are none, it
// takes the least of
//
//   TTFT + expected_new_tokens * TPOT + disturbance + cost of computing + risk
//
// where disturbance is the delay that a local prefill puts on the streams that already decode on D,
// the next term what it costs the requests that come meanwhile, and the last one how likely the
// request and those streams are to miss their limits, times what a request is worth. There is no
// fixed threshold: local or remote follows from the costs fitted to each worker.
#include <algorithm>
#include <cmath>

#include "common/prefix_hash.h"
#include "router/policy.h"
#include "router/prediction.h"
#include "router/prefix_pulls.h"
#include "router/shortlist.h"

namespace aisp {
namespace {

constexpr std::string_view kRemotePrefill = "remote-prefill";  // predicted cheaper
constexpr std::string_view kLocalCheaper = "local-cheaper";    // the other way round
constexpr std::string_view kReasons[] = {kRemotePrefill,
                                         kLocalCheaper,
                                         route_reason::kLocalCached,
                                         route_reason::kLocalShort,
                                         route_reason::kLocalNoPrefillWorker,
                                         route_reason::kLocalPull,
                                         route_reason::kTakeover,
                                         route_reason::kForcedRemote,
                                         route_reason::kForcedLocal};

// A prediction counts as kept when it is with so many mean errors on top: at exactly the limit half
// of all requests would miss it.
constexpr double kMargin = 2.0;
// An error counts at most as this part of the limit, or a bad hour would have everything refused.
constexpr double kMostSpread = 0.1;
// Of a TPOT: what nobody has been wrong about yet is not certain.
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

// What whoever computes the prompt waits for first: its beginning, from another worker or from its
// own tiers. What is queued there is computed meanwhile.
struct Fetch {
  double ms = 0;
  double extra_ms = 0;   // by which such requests took longer lately
  double holder_ms = 0;  // for which another worker and the way from there are busy
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
    double ttft_own_ms = 0;   // of it without corrections
    double ttft_wait_ms = 0;  // likewise
    double ttft_fetch_ms = 0;
    double now_ms = 0;   // a step of decodes with this request
    double step_ms = 0;  // the time for a token without correction
    double tpot_ms = 0;
    double tpot_high_ms = 0;  // what it rarely exceeds
    double ttft_high_ms = 0;
    double score_ms = 0;
    bool meets = false;         // the request's objective
    bool keeps_asked = false;   // what of it the request asks for
    bool spares_others = true;  // the running streams keep theirs
    bool displaces = false;     // with the rows gone that yield
  };
  struct Candidate {
    int decode;
    int prefill;  // -1: local
    Cost cost;
    PullChoice pull = {};
  };
  static void PreferRemote(std::vector<Candidate>* candidates);
  static void KeepBest(std::vector<Candidate>* candidates);
  void KeepTies(std::vector<Candidate>* candidates) const;
  static double FirstDecodeMs(const WorkerView& decode, double ready_ms, double step_ms);
  static Cost Begin(const RequestSummary& request, const WorkerView& decode);
  static void SetStep(const RequestSummary& request, const WorkerView& decode, Cost* cost);
  static void SetFetch(const Fetch& fetch, double step_ms, Cost* cost);
  static void End(const RequestSummary& request, const WorkerView::LearntTtft& learnt, Cost* cost);
  double AdmissionMs(const RequestSummary& request, const WorkerView& decode, double tpot_ms) const;
  double ExposedTransferMs(const RequestSummary& request, const WorkerView& decode,
                           const WorkerView& prefill, double compute_ms) const;
  Cost Local(const RequestSummary& request, const WorkerView& decode,
             const Fetch& fetch = {}) const;
  void AddPulls(const RequestSummary& request, std::span<const WorkerView> workers,
                const Shortlist& list, std::vector<Candidate>* candidates) const;
  // `fetch`: of the prefill worker.
  Cost Remote(const RequestSummary& request, const WorkerView& decode, const WorkerView& prefill,
              const Fetch& fetch = {}) const;
  void AddRemotes(const RequestSummary& request, std::span<const WorkerView> workers,
                  const Shortlist& list, std::vector<Candidate>* candidates) const;
  std::vector<int> Fallbacks(const RequestSummary& request, std::span<const WorkerView> workers,
                             const Shortlist& list, const Placement& chosen) const;

  const CostPolicyOptions options_;
};

// Until D has a row and the blocks for it: both come back as running requests end, at the rate at
// which they end.
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

// Layers are pushed while the next ones compute: what shows is the last layer, or what the link
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
  // However short answers were: a step takes its time.
  cost->tpot_ms = cost->step_ms + std::max(decode.tpot_extra.value, -0.3 * cost->step_ms);
  // A row more is a longer step for all of them.
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

// It is fetched while what is queued is computed. When it is there the worker is inside a step.
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
  // However wrong earlier predictions were: what has to be computed takes its time.
  cost->ttft_ms = cost->ttft_own_ms + std::max(learnt.offset.value, -0.5 * cost->ttft_own_ms) +
                  cost->ttft_wait_ms * learnt.wait_factor.value + cost->ttft_fetch_ms;
  cost->score_ms += cost->ttft_ms + request.expected_new_tokens * cost->tpot_ms;
  // What waits behind much is off by a part of it.
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

CostPolicy::Cost CostPolicy::Local(const RequestSummary& request, const WorkerView& decode,
                                   const Fetch& fetch) const {
  Cost cost = Begin(request, decode);
  const PromptWork work = WorkFor(request, decode, 1);
  const double compute_ms = PromptMs(decode, work);
  cost.score_ms = ComputeCostMs(request, compute_ms);
  const double rows = decode.RunningBeside().decode_rows;
  if (rows > 0) {
    const double delay_ms = DelayMs(decode, work, compute_ms);
    cost.score_ms += options_.disturbance_weight * delay_ms * rows;
    // Spread over as many tokens as a stream has, on average.
    const double others_ms = cost.tpot_ms + delay_ms / std::max(1.0, request.expected_new_tokens);
    cost.spares_others = cost.spares_others && request.others.MetBy(0, others_ms);
    const double limit_ms = request.others.tpot_ms, spread_ms = decode.tpot_extra.spread;
    const double more_risk =
        MissRisk(others_ms, limit_ms, spread_ms) - MissRisk(cost.tpot_ms, limit_ms, spread_ms);
    cost.score_ms += rows * more_risk * WorthMs(request, 0, cost.tpot_ms);
  }
  cost.ttft_own_ms = compute_ms;
  cost.ttft_wait_ms =
      AdmissionMs(request, decode, cost.tpot_ms) + QueueMs(decode, work, compute_ms);
  SetFetch(fetch, StepUnderWayMs(request, decode), &cost);
  End(request, decode.local_ttft, &cost);
  return cost;
}

// Decode workers that would have it done soonest once they had what another one holds: a few.
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

// From `ready_ms` from now, when its KV is there, to its first token: the rest of the step under
// way, half of one on average, those launched behind it, and its own. While D still computes
// prompts those are steps of prompts.
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
  const double compute_ms = PromptMs(prefill, work);
  const double transfer_ms = ExposedTransferMs(request, decode, prefill, compute_ms);
  // Waiting on D and prefilling on P overlap: P asks for D's blocks when it is about to run.
  cost.ttft_wait_ms = std::max(decode.busy_ms + AdmissionMs(request, decode, cost.tpot_ms),
                               QueueMs(prefill, work, compute_ms));
  cost.score_ms = ComputeCostMs(request, compute_ms);
  cost.ttft_own_ms = compute_ms + transfer_ms;
  SetFetch(fetch, /*step_ms=*/0, &cost);
  if (!drawn)
    cost.ttft_own_ms += FirstDecodeMs(decode, cost.ttft_wait_ms + cost.ttft_own_ms, cost.now_ms);
  End(request, decode.remote_ttft, &cost);
  return cost;
}

// Drops the local candidates where there are remote ones.
void CostPolicy::PreferRemote(std::vector<Candidate>* candidates) {
  const auto local = [](const Candidate& c) { return c.prefill < 0; };
  if (!std::all_of(candidates->begin(), candidates->end(), local))
    std::erase_if(*candidates, local);
}

// Those that meet the request's objective and spare the others, else that meet it, else that keep
// what the request asks for itself, else all.
void CostPolicy::KeepBest(std::vector<Candidate>* candidates) {
  const auto rank = [](const Candidate& c) {
    if (!c.cost.meets) return c.cost.keeps_asked ? 2 : 3;
    return c.cost.spares_others ? 0 : 1;
  };
  int best = 3;
  for (const Candidate& c : *candidates) best = std::min(best, rank(c));
  std::erase_if(*candidates, [&](const Candidate& c) { return rank(c) != best; });
}

// The best and what is as good. A pull is taken where it is the best, not where it is as good: it
// fills another worker's cache with what is there already.
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

// Pairs of a decode worker D and a prefill worker P.
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
  KeepBest(&candidates);

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
  // A prediction of a worker that has hardly run is not held against the request.
  const bool known = workers[static_cast<size_t>(chosen.decode)].known;
  placement.known = known;
  placement.meets = !known || chosen.cost.meets;
  placement.keeps_asked = !known || chosen.cost.keeps_asked;
  placement.spares_others = !known || chosen.cost.spares_others;
  placement.displaces = chosen.cost.displaces;
  if (chosen.prefill < 0) {
    const WorkerView& worker = workers[static_cast<size_t>(chosen.decode)];
    const WorkerView with = WithPrefix(worker, chosen.pull.tokens);
    const Pacing pacing = Paces(worker, worker.backlog_ms, WorkFor(request, with, 1));
    // Streams are spared at prompts' cost as long as these have time: of a load that is too much
    // prompts would wait ever longer, and nothing be in time.
    if (pacing.now || (pacing.lasting && request.objective.MetBy(placement.ttft_ms, 0)))
      placement.pace = worker.pace;
  }
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
