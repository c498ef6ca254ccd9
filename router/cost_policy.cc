// The cost policy predicts, for every decode worker D and every prefill worker P or none:
//
//   TTFT = wait for a row and blocks on D
//        + remote: queue on P + uncached prefill on P + exposed transfer + first decode step on D
//          local:  queue on D + uncached prefill on D (the last chunk draws the first token)
//   TPOT = one step of D with this request's row and context among the others
//
// and takes the least of  TTFT + expected_new_tokens * TPOT + disturbance,  where disturbance is
// the delay that a local prefill puts on the streams that already decode on D. There is no fixed
// threshold: local or remote follows from the costs fitted to each worker.
#include <algorithm>
#include <cmath>

#include "common/prefix_hash.h"
#include "router/policy.h"

namespace aisp {
namespace {

constexpr std::string_view kRemotePrefill = "remote-prefill";  // predicted cheaper
constexpr std::string_view kLocalCheaper = "local-cheaper";    // the other way round
constexpr std::string_view kReasons[] = {kRemotePrefill,
                                         kLocalCheaper,
                                         route_reason::kLocalCached,
                                         route_reason::kLocalShort,
                                         route_reason::kLocalNoPrefillWorker,
                                         route_reason::kTakeover,
                                         route_reason::kForcedRemote,
                                         route_reason::kForcedLocal};

double TpotMs(const RequestSummary& request, const WorkerView& decode) {
  const int32_t rows = std::min(decode.rows + 1, std::max(1, decode.max_rows));
  return decode.cost.StepMs(0, rows, static_cast<double>(decode.context_tokens + request.tokens));
}

std::string_view ReasonOf(const RequestSummary& request, const WorkerView& decode, bool remote,
                          bool any_prefill) {
  if (request.takeover) return route_reason::kTakeover;
  if (remote) {
    return request.preference == PrefillPreference::kRemote ? route_reason::kForcedRemote
                                                            : kRemotePrefill;
  }
  if (UncachedTokens(request, decode) < kHashUnitTokens) return LittleLeftReason(decode);
  if (request.preference == PrefillPreference::kLocal) return route_reason::kForcedLocal;
  return any_prefill ? kLocalCheaper : route_reason::kLocalNoPrefillWorker;
}

class CostPolicy final : public RoutingPolicy {
 public:
  explicit CostPolicy(const CostPolicyOptions& options) : options_(options) {}
  Result<Placement> Pick(const RequestSummary& request,
                         std::span<const WorkerView> workers) const override;
  std::span<const std::string_view> Reasons() const override { return kReasons; }

 private:
  struct Cost {
    double ttft_ms = 0;
    double tpot_ms = 0;
    double score_ms = 0;
  };
  struct Candidate {
    int decode;
    int prefill;  // -1: local
    Cost cost;
  };
  static void PreferRemote(std::vector<Candidate>* candidates, double* best_ms);
  double PrefillMs(const WorkerView& worker, double tokens) const;
  double AdmissionMs(const RequestSummary& request, const WorkerView& decode, double tpot_ms) const;
  double ExposedTransferMs(const RequestSummary& request, const WorkerView& decode,
                           const WorkerView& prefill, double compute_ms) const;
  Cost Local(const RequestSummary& request, const WorkerView& decode) const;
  Cost Remote(const RequestSummary& request, const WorkerView& decode,
              const WorkerView& prefill) const;
  std::vector<int> Fallbacks(const RequestSummary& request, std::span<const WorkerView> workers,
                             const Placement& chosen) const;

  const CostPolicyOptions options_;
};

// Chunked prefill of `tokens` beside the worker's decodes.
double CostPolicy::PrefillMs(const WorkerView& worker, double tokens) const {
  const double steps = std::ceil(tokens / std::max(1, worker.chunk_tokens));
  const double rows = worker.prefill ? 0 : std::min(worker.rows, worker.max_rows);
  const double context = worker.prefill ? 0 : static_cast<double>(worker.context_tokens);
  return steps * worker.cost.StepMs(0, rows, context) + tokens * worker.cost.per_prefill_token_ms;
}

// Until D has a row and the blocks for it: both come back as running requests end, at the rate at
// which they end.
double CostPolicy::AdmissionMs(const RequestSummary& request, const WorkerView& decode,
                               double tpot_ms) const {
  const double lifetime_ms = request.expected_new_tokens * tpot_ms;
  double wait_ms = 0;
  if (decode.rows >= decode.max_rows) {
    wait_ms = lifetime_ms * (decode.rows - decode.max_rows + 1) / std::max(1, decode.max_rows);
  }
  const int32_t cached_blocks = decode.cached_tokens / std::max(1, request.block_tokens);
  const int32_t wanted = request.tokens / std::max(1, request.block_tokens) + 1 - cached_blocks;
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
      UncachedTokens(request, decode) * request.kv_bytes_per_token / bytes_per_s * 1e3;
  const double last_layer_ms = total_ms / std::max(1, request.num_layers);
  return options_.handoff_ms + std::max(last_layer_ms, total_ms - compute_ms);
}

CostPolicy::Cost CostPolicy::Local(const RequestSummary& request, const WorkerView& decode) const {
  Cost cost;
  cost.tpot_ms = TpotMs(request, decode);
  const double queue_ms =
      decode.busy_ms + PrefillMs(decode, static_cast<double>(decode.queued_prefill_tokens));
  const double compute_ms = PrefillMs(decode, UncachedTokens(request, decode) + 1);
  cost.ttft_ms = AdmissionMs(request, decode, cost.tpot_ms) + queue_ms + compute_ms;
  const double streams = std::min(decode.rows, decode.max_rows);
  const double disturbance_ms =
      UncachedTokens(request, decode) * decode.cost.per_prefill_token_ms * streams;
  cost.score_ms = cost.ttft_ms + request.expected_new_tokens * cost.tpot_ms +
                  options_.disturbance_weight * disturbance_ms;
  return cost;
}

CostPolicy::Cost CostPolicy::Remote(const RequestSummary& request, const WorkerView& decode,
                                    const WorkerView& prefill) const {
  Cost cost;
  cost.tpot_ms = TpotMs(request, decode);
  const double queue_ms =
      prefill.busy_ms + PrefillMs(prefill, static_cast<double>(prefill.queued_prefill_tokens));
  const double compute_ms = PrefillMs(prefill, UncachedTokens(request, prefill));
  const double transfer_ms = ExposedTransferMs(request, decode, prefill, compute_ms);
  // The step of D that is under way when the KV arrives is, on average, half done.
  const double first_decode_ms = 1.5 * cost.tpot_ms;
  // Waiting on D and prefilling on P overlap: P asks for D's blocks when it is about to run.
  const double before_ms =
      std::max(decode.busy_ms + AdmissionMs(request, decode, cost.tpot_ms), queue_ms);
  cost.ttft_ms = before_ms + compute_ms + transfer_ms + first_decode_ms;
  cost.score_ms = cost.ttft_ms + request.expected_new_tokens * cost.tpot_ms;
  return cost;
}

// Drops the local candidates where there are remote ones.
void CostPolicy::PreferRemote(std::vector<Candidate>* candidates, double* best_ms) {
  double best_remote_ms = INFINITY;
  for (const Candidate& c : *candidates) {
    if (c.prefill >= 0) best_remote_ms = std::min(best_remote_ms, c.cost.score_ms);
  }
  if (best_remote_ms == INFINITY) return;
  std::erase_if(*candidates, [](const Candidate& c) { return c.prefill < 0; });
  *best_ms = best_remote_ms;
}

Result<Placement> CostPolicy::Pick(const RequestSummary& request,
                                   std::span<const WorkerView> workers) const {
  std::vector<Candidate> candidates;
  bool any_prefill = false;
  for (const WorkerView& w : workers) any_prefill = any_prefill || (w.prefill && w.available);
  double best_ms = INFINITY;
  const auto consider = [&](size_t d, int p, const Cost& cost) {
    candidates.push_back({static_cast<int>(d), p, cost});
    best_ms = std::min(best_ms, cost.score_ms);
  };
  for (size_t d = 0; d < workers.size(); ++d) {
    if (workers[d].prefill || !workers[d].available) continue;
    consider(d, -1, Local(request, workers[d]));
    if (UncachedTokens(request, workers[d]) < kHashUnitTokens) continue;
    if (request.preference == PrefillPreference::kLocal) continue;
    for (size_t p = 0; p < workers.size(); ++p) {
      if (!workers[p].prefill || !workers[p].available) continue;
      consider(d, static_cast<int>(p), Remote(request, workers[d], workers[p]));
    }
  }
  if (candidates.empty()) return Unavailable("no decode worker is ready; retry later");
  if (request.preference == PrefillPreference::kRemote) PreferRemote(&candidates, &best_ms);

  const double limit_ms = best_ms + options_.tie_fraction * std::abs(best_ms);
  std::erase_if(candidates, [&](const Candidate& c) { return c.cost.score_ms > limit_ms; });
  const Candidate& chosen = candidates[request.tie_break % candidates.size()];

  Placement placement;
  placement.decode = chosen.decode;
  placement.prefill = chosen.prefill;
  placement.ttft_ms = chosen.cost.ttft_ms;
  placement.tpot_ms = chosen.cost.tpot_ms;
  placement.reason = ReasonOf(request, workers[chosen.decode], chosen.prefill >= 0, any_prefill);
  if (placement.prefill >= 0) placement.fallbacks = Fallbacks(request, workers, placement);
  return placement;
}

std::vector<int> CostPolicy::Fallbacks(const RequestSummary& request,
                                       std::span<const WorkerView> workers,
                                       const Placement& chosen) const {
  std::vector<std::pair<double, int>> others;
  for (size_t p = 0; p < workers.size(); ++p) {
    if (!workers[p].prefill || !workers[p].available || static_cast<int>(p) == chosen.prefill)
      continue;
    others.emplace_back(Remote(request, workers[chosen.decode], workers[p]).score_ms,
                        static_cast<int>(p));
  }
  const size_t kept = std::min(kMaxFallbacks, others.size());
  std::partial_sort(others.begin(), others.begin() + static_cast<std::ptrdiff_t>(kept),
                    others.end());
  std::vector<int> out;
  for (size_t i = 0; i < kept; ++i) out.push_back(others[i].second);
  return out;
}

}  // namespace

std::unique_ptr<RoutingPolicy> MakeCostPolicy(const PolicyOptions& options) {
  return std::make_unique<CostPolicy>(options.cost);
}

}  // namespace aisp
