#include "router/shortlist.h"

#include <algorithm>

#include "common/prefix_hash.h"
#include "router/prediction.h"
#include "router/prefix_pulls.h"

namespace aisp {
namespace {

// Penalty that puts workers behind all others.
constexpr double kNeverMs = 1e12;
// Penalty for workers without a free row or blocks.
constexpr double kFullMs = 1e6;

// Keeps the `count` workers of least `value`, in order; ties rotate by `first`.
template <typename Value>
void KeepLeast(size_t count, uint64_t first, std::vector<int>* workers, const Value& value) {
  const size_t n = workers->size();
  struct Valued {
    double value;
    size_t turn;
    int worker;
    bool operator<(const Valued& o) const {
      return value != o.value ? value < o.value : turn < o.turn;
    }
  };
  std::vector<Valued> valued;
  valued.reserve(n);
  for (size_t i = 0; i < n; ++i)
    valued.push_back({value((*workers)[i]), (i + n - first % n) % n, (*workers)[i]});
  const auto kept = static_cast<std::ptrdiff_t>(std::min(count, n));
  std::partial_sort(valued.begin(), valued.begin() + kept, valued.end());
  workers->clear();
  for (auto it = valued.begin(); it != valued.begin() + kept; ++it) workers->push_back(it->worker);
}

// Penalty for a missed limit. Of a request that is not refused, the weight of the miss in full
// predictions: computing much again to meet the limit may cost others more.
double MissedMs(const RequestSummary& request, double tpot_ms) {
  return request.refusable ? kNeverMs : WorthMs(request, 0, tpot_ms);
}

// Estimate for a decode worker, whoever prefills.
struct Estimate {
  double tpot_ms = 0;
  double penalty_ms = 0;
};

Estimate EstimateRow(const RequestSummary& request, const WorkerView& decode) {
  const double extra_ms = std::max(0.0, decode.tpot_extra.value);
  Estimate e;
  e.tpot_ms = BesidePromptsMs(request, StepWithMs(request, decode, false)) + extra_ms;
  const auto kept = [&] {
    return request.objective.MetBy(0, e.tpot_ms) && request.others.MetBy(0, e.tpot_ms);
  };
  const bool yields = decode.yielding_rows > 0;
  if (yields && !kept())
    e.tpot_ms = BesidePromptsMs(request, StepWithMs(request, decode, true)) + extra_ms;
  if (!kept()) e.penalty_ms += MissedMs(request, e.tpot_ms);
  const int32_t blocks = (request.tokens - KnownTokens(decode)) / std::max(1, decode.block_tokens);
  if (decode.rows - decode.yielding_rows >= decode.max_rows ||
      (decode.total_blocks > 0 && blocks >= decode.free_blocks))
    e.penalty_ms += kFullMs;
  return e;
}

double LocalMs(const RequestSummary& request, const WorkerView& decode,
               const CostPolicyOptions& options) {
  const Estimate row = EstimateRow(request, decode);
  const HeldPrefix own = OwnPrefix(request, decode);
  const PromptWork work = own.promote_ms > 0
                              ? PromptWork::Of(own.tokens - 1, request.tokens - own.tokens + 1)
                              : WorkFor(request, decode, 1);
  const double compute_ms = PromptMs(decode, work);
  const double ttft_ms = std::max(QueueMs(decode, work, compute_ms), own.promote_ms) + compute_ms;
  const double delay_ms = DelayMs(decode, work, compute_ms);
  const double disturbance_ms =
      options.disturbance_weight * delay_ms * std::min(decode.rows, decode.max_rows);
  const double late_ms = request.objective.MetBy(ttft_ms, 0) ? 0 : MissedMs(request, row.tpot_ms);
  return ttft_ms + request.expected_new_tokens * row.tpot_ms + disturbance_ms +
         ComputeCostMs(request, decode, compute_ms) + row.penalty_ms + late_ms;
}

// Cost on D of a remotely prefilled request: its row, and the transfer of its KV.
double RowMs(const RequestSummary& request, const WorkerView& decode, double bytes_per_s) {
  const Estimate row = EstimateRow(request, decode);
  const double bytes = UncachedTokens(request, decode) * decode.kv_bytes_per_token;
  return decode.busy_ms + request.expected_new_tokens * row.tpot_ms +
         bytes / std::max(1.0, bytes_per_s) * 1e3 + row.penalty_ms;
}

double PrefillMs(const RequestSummary& request, const WorkerView& prefill) {
  const double compute_ms = PromptMs(prefill, WorkFor(request, prefill, 0));
  return BusyMs(prefill) + compute_ms + ComputeCostMs(request, prefill, compute_ms);
}

}  // namespace

Shortlist MakeShortlist(const RequestSummary& request, std::span<const WorkerView> workers,
                        const CostPolicyOptions& options) {
  const auto at = [&](int i) -> const WorkerView& { return workers[static_cast<size_t>(i)]; };
  Shortlist list;
  list.locals.reserve(workers.size());
  for (size_t i = 0; i < workers.size(); ++i) {
    if (workers[i].available)
      (workers[i].prefill ? list.prefills : list.locals).push_back(static_cast<int>(i));
  }
  list.any_prefill = !list.prefills.empty();
  list.holders = PrefixHolders(request, workers);
  if (!list.holders.empty()) {
    list.pullers = list.locals;
    if (list.pullers.size() > Shortlist::kEach)
      KeepLeast(Shortlist::kEach, request.tie_break, &list.pullers,
                [&](int d) { return BusyMs(at(d)); });
  }
  if (list.any_prefill && request.preference != PrefillPreference::kLocal) {
    for (const int d : list.locals) {
      if (UncachedTokens(request, at(d)) >= kHashUnitTokens) list.decodes.push_back(d);
    }
    if (list.decodes.size() * list.prefills.size() > Shortlist::kPairs) {
      KeepLeast(Shortlist::kEach, request.tie_break, &list.prefills,
                [&](int p) { return PrefillMs(request, at(p)); });
      const double measured = at(list.prefills.front()).transfer_bytes_per_s;
      const double bytes_per_s = measured > 0 ? measured : options.bytes_per_s_same_host;
      KeepLeast(Shortlist::kEach, request.tie_break, &list.decodes,
                [&](int d) { return RowMs(request, at(d), bytes_per_s); });
    }
  }
  if (list.locals.size() > Shortlist::kLocals)
    KeepLeast(Shortlist::kLocals, request.tie_break, &list.locals,
              [&](int d) { return LocalMs(request, at(d), options); });
  return list;
}

}  // namespace aisp
