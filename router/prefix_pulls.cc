#include "router/prefix_pulls.h"

#include <algorithm>

#include "common/prefix_hash.h"
#include "router/pull_rates.h"

namespace aisp {
namespace {

constexpr size_t kMostHolders = 4;

double PromptMs(const RequestSummary& request, const WorkerView& decode, int32_t known) {
  const int32_t left = std::max(0, request.tokens - 1 - known);
  return decode.cost.PromptMs(PromptWork::Of(request.tokens - 1 - left, left + 1),
                              decode.chunk_tokens, decode.RunningBeside());
}

}  // namespace

std::vector<int> PrefixHolders(const RequestSummary& request, std::span<const WorkerView> workers) {
  std::vector<std::pair<int32_t, int>> held;
  if (request.pulls == nullptr) return {};
  for (size_t i = 0; i < workers.size(); ++i) {
    if (workers[i].gives && workers[i].cached_tokens >= kHashUnitTokens)
      held.emplace_back(-workers[i].cached_tokens, static_cast<int>(i));
  }
  const size_t kept = std::min(kMostHolders, held.size());
  std::partial_sort(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(kept), held.end());
  std::vector<int> out;
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
  const int32_t known = KnownTokens(to);
  PullChoice best;
  for (const int index : holders) {
    const WorkerView& holder = workers[static_cast<size_t>(index)];
    const int32_t most = std::min(holder.cached_tokens, request.tokens - 1);
    // What arrives are whole blocks of the one that pulls, of whole ones that its holder has.
    const int32_t held = most / holder.block_tokens * holder.block_tokens;
    const int32_t tokens = held / to.block_tokens * to.block_tokens;
    if (index == computes || tokens < known + to.block_tokens) continue;
    const auto pull_ms = request.pulls->PredictMs(
        holder, to, (tokens - to.cached_tokens) * to.kv_bytes_per_token, request.now);
    if (!pull_ms) continue;
    const double saved_ms = PromptMs(request, to, known) - PromptMs(request, to, tokens);
    if (!request.pull_whenever && saved_ms <= *pull_ms) continue;
    if (best.holder >= 0 && saved_ms - *pull_ms <= best.saved_ms - best.pull_ms) continue;
    best = {index, tokens, *pull_ms, saved_ms};
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
