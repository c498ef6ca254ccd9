#include "router/policy.h"

#include <algorithm>
#include <cmath>

#include "common/prefix_hash.h"

namespace aisp {
namespace {

// The last token is always computed, by the step that draws the first new one.
double Uncached(const RequestSummary& request, const WorkerView& worker) {
  return std::max(0, request.tokens - 1 - worker.cached_tokens);
}

double TpotMs(const RequestSummary& request, const WorkerView& decode) {
  const int32_t rows = std::min(decode.rows + 1, std::max(1, decode.max_rows));
  return decode.cost.StepMs(0, rows, static_cast<double>(decode.context_tokens + request.tokens));
}

}  // namespace

std::string_view RouteReasonName(RouteReason reason) {
  switch (reason) {
    case RouteReason::kRemotePrefill:
      return "remote-prefill";
    case RouteReason::kLocalCheaper:
      return "local-cheaper";
    case RouteReason::kLocalCached:
      return "local-cached";
    case RouteReason::kLocalNoPrefillWorker:
      return "local-no-prefill-worker";
    case RouteReason::kTakeover:
      return "takeover";
    case RouteReason::kForcedRemote:
      return "forced-remote";
    case RouteReason::kForcedLocal:
      return "forced-local";
  }
  return "unknown";
}

// Chunked prefill of `tokens` beside the worker's decodes.
double CostPolicy::PrefillMs(const WorkerView& worker, double tokens) const {
  const double steps = std::ceil(tokens / options_.chunk_tokens);
  const double rows = worker.prefill ? 0 : std::min(worker.rows, worker.max_rows);
  const double context = worker.prefill ? 0 : static_cast<double>(worker.context_tokens);
  return steps * worker.cost.StepMs(0, rows, context) + tokens * worker.cost.per_prefill_token_ms;
}

// Until D has a row and the blocks for it: both come back as running requests end, at the rate at which they end.
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

// Layers are pushed while the next ones compute: what shows is the last layer, or what the link could not keep up with.
double CostPolicy::ExposedTransferMs(const RequestSummary& request, const WorkerView& decode,
                                     const WorkerView& prefill, double compute_ms) const {
  double bytes_per_s = prefill.transfer_bytes_per_s;
  if (bytes_per_s <= 0) {
    const bool same_host = !prefill.host_id.empty() && prefill.host_id == decode.host_id;
    bytes_per_s = same_host ? options_.bytes_per_s_same_host : options_.bytes_per_s_other_host;
  }
  const double total_ms =
      Uncached(request, decode) * request.kv_bytes_per_token / bytes_per_s * 1e3;
  const double last_layer_ms = total_ms / std::max(1, request.num_layers);
  return options_.handoff_ms + std::max(last_layer_ms, total_ms - compute_ms);
}

CostPolicy::Cost CostPolicy::Local(const RequestSummary& request, const WorkerView& decode) const {
  Cost cost;
  cost.tpot_ms = TpotMs(request, decode);
  const double queue_ms = PrefillMs(decode, static_cast<double>(decode.queued_prefill_tokens));
  const double compute_ms = PrefillMs(decode, Uncached(request, decode) + 1);
  cost.ttft_ms = AdmissionMs(request, decode, cost.tpot_ms) + queue_ms + compute_ms;
  const double streams = std::min(decode.rows, decode.max_rows);
  const double disturbance_ms =
      Uncached(request, decode) * decode.cost.per_prefill_token_ms * streams;
  cost.score_ms = cost.ttft_ms + request.expected_new_tokens * cost.tpot_ms +
                  options_.disturbance_weight * disturbance_ms;
  return cost;
}

CostPolicy::Cost CostPolicy::Remote(const RequestSummary& request, const WorkerView& decode,
                                    const WorkerView& prefill) const {
  Cost cost;
  cost.tpot_ms = TpotMs(request, decode);
  const double queue_ms = PrefillMs(prefill, static_cast<double>(prefill.queued_prefill_tokens));
  const double compute_ms = PrefillMs(prefill, Uncached(request, prefill));
  const double transfer_ms = ExposedTransferMs(request, decode, prefill, compute_ms);
  // The step of D that is under way when the KV arrives is, on average, half done.
  const double first_decode_ms = 1.5 * cost.tpot_ms;
  // Waiting on D and prefilling on P overlap: P asks for D's blocks when it is about to run.
  const double before_ms = std::max(AdmissionMs(request, decode, cost.tpot_ms), queue_ms);
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
    if (Uncached(request, workers[d]) < kHashUnitTokens) continue;
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
  if (request.takeover) {
    placement.reason = RouteReason::kTakeover;
  } else if (request.preference == PrefillPreference::kRemote && chosen.prefill >= 0) {
    placement.reason = RouteReason::kForcedRemote;
  } else if (chosen.prefill >= 0) {
    placement.reason = RouteReason::kRemotePrefill;
  } else if (Uncached(request, workers[chosen.decode]) < kHashUnitTokens) {
    placement.reason = RouteReason::kLocalCached;
  } else if (request.preference == PrefillPreference::kLocal) {
    placement.reason = RouteReason::kForcedLocal;
  } else if (!any_prefill) {
    placement.reason = RouteReason::kLocalNoPrefillWorker;
  } else {
    placement.reason = RouteReason::kLocalCheaper;
  }
  if (placement.prefill >= 0) placement.fallbacks = Fallbacks(request, workers, placement);
  return placement;
}

std::vector<int> CostPolicy::Fallbacks(const RequestSummary& request,
                                       std::span<const WorkerView> workers,
                                       const Placement& chosen) const {
  constexpr size_t kMaxFallbacks = 2;
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

}  // namespace aisp
