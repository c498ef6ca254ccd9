#include "router/prefix_pulls.h"

#include <algorithm>
#include <array>

#include "common/prefix_hash.h"
#include "router/prediction.h"
#include "router/pull_rates.h"

namespace aisp {
namespace {

constexpr size_t kMostHolders = 4;

// Loading from a tier must save this part of the computing time, as on the worker itself.
constexpr double kLeastGain = 0.1;

// Its prefix with the pool alone, then with each further tier.
std::array<HeldPrefix, 3> HeldBy(const WorkerView& worker) {
  const auto below = [&worker](const HeldPrefix& above, int32_t tokens, double block_ms) {
    if (tokens <= above.tokens || block_ms <= 0) return above;
    const int32_t blocks = (tokens - above.tokens) / worker.block_tokens;
    return HeldPrefix{tokens, above.promote_ms + blocks * block_ms};
  };
  const HeldPrefix pool{worker.cached_tokens, 0};
  const HeldPrefix host = below(pool, worker.host_tokens, worker.host_block_ms);
  return {pool, host, below(host, worker.disk_tokens, worker.disk_block_ms)};
}

double LeftMs(const RequestSummary& request, const WorkerView& decode, int32_t known) {
  const int32_t left = std::max(0, request.tokens - 1 - known);
  return PromptMs(decode, PromptWork::Of(request.tokens - 1 - left, left + 1));
}

}  // namespace

HeldPrefix OwnPrefix(const RequestSummary& request, const WorkerView& worker) {
  const int32_t known = KnownTokens(worker);
  HeldPrefix best{known, 0};
  if (worker.host_tokens <= known && worker.disk_tokens <= known) return best;
  const double computed_ms = LeftMs(request, worker, known);
  double best_ms = computed_ms;
  for (const HeldPrefix& held : HeldBy(worker)) {
    const int32_t most = std::min(held.tokens, request.tokens);
    const int32_t tokens = most / worker.block_tokens * worker.block_tokens;
    if (tokens < known + worker.block_tokens) continue;
    const double left_ms = LeftMs(request, worker, tokens);
    const double ms = held.promote_ms + left_ms;
    if (ms >= best_ms || ms > computed_ms - kLeastGain * (computed_ms - left_ms)) continue;
    best_ms = ms;
    best = {tokens, held.promote_ms};
  }
  return best;
}

std::vector<int> PrefixHolders(const RequestSummary& request, std::span<const WorkerView> workers) {
  std::vector<std::pair<int32_t, int>> held;
  if (request.pulls == nullptr) return {};
  for (size_t i = 0; i < workers.size(); ++i) {
    const WorkerView& worker = workers[i];
    const int32_t most = std::max({worker.cached_tokens, worker.host_tokens, worker.disk_tokens});
    if (!worker.gives || most < kHashUnitTokens) continue;
    const int32_t tokens = HeldBy(worker).back().tokens;
    if (tokens >= kHashUnitTokens) held.emplace_back(-tokens, static_cast<int>(i));
  }
  const size_t kept = std::min(kMostHolders, held.size());
  std::partial_sort(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(kept), held.end());
  std::vector<int> out;
  out.reserve(kept);
  for (size_t i = 0; i < kept; ++i) out.push_back(held[i].second);
  return out;
}

WorkerView WithPrefix(const WorkerView& worker, int32_t tokens) {
  WorkerView with = worker;
  with.cached_tokens = std::max(with.cached_tokens, tokens);
  return with;
}

PullChoice BestPull(const RequestSummary& request, std::span<const WorkerView> workers,
                    std::span<const int> holders, int computes) {
  const WorkerView& to = workers[static_cast<size_t>(computes)];
  const HeldPrefix own = OwnPrefix(request, to);
  const double alone_ms = own.promote_ms + LeftMs(request, to, own.tokens);
  PullChoice best;
  for (const int index : holders) {
    const WorkerView& holder = workers[static_cast<size_t>(index)];
    if (index == computes) continue;
    for (const HeldPrefix& has : HeldBy(holder)) {
      const int32_t most = std::min(has.tokens, request.tokens);
      // Whole blocks of the holder, then whole blocks of the puller.
      const int32_t held = most / holder.block_tokens * holder.block_tokens;
      const int32_t tokens = held / to.block_tokens * to.block_tokens;
      if (tokens < own.tokens + to.block_tokens) continue;
      const auto moved_ms = request.pulls->PredictMs(
          holder, to, (tokens - to.cached_tokens) * to.kv_bytes_per_token, request.now);
      if (!moved_ms) {
        best.verdict = std::max(best.verdict, PullVerdict::kLeftAlone);
        continue;
      }
      const double pull_ms = has.promote_ms + *moved_ms;
      const double saved_ms = alone_ms - LeftMs(request, to, tokens);
      if (!request.pull_whenever && saved_ms <= pull_ms + StepUnderWayMs(request, to)) {
        best.verdict = std::max(best.verdict, PullVerdict::kSlower);
        continue;
      }
      if (best.holder >= 0 && saved_ms - pull_ms <= best.saved_ms - best.pull_ms) continue;
      best = {index, tokens, pull_ms, saved_ms, PullVerdict::kChosen};
    }
  }
  return best;
}

void AddPull(const RequestSummary& request, std::span<const WorkerView> workers,
             Placement* placement) {
  const std::vector<int> holders = PrefixHolders(request, workers);
  const int computes = placement->prefill >= 0 ? placement->prefill : placement->decode;
  placement->pull = BestPull(request, workers, holders, computes);
}

}  // namespace aisp
