#include "router/policy.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/prefix_hash.h"
#include "router/prefix_pulls.h"

namespace aisp {

#define AISP_DECLARE_POLICY(name, factory) \
  std::unique_ptr<RoutingPolicy> factory(const PolicyOptions& options);
AISP_ROUTING_POLICIES(AISP_DECLARE_POLICY)
#undef AISP_DECLARE_POLICY

Result<std::unique_ptr<RoutingPolicy>> MakeRoutingPolicy(const PolicyOptions& options) {
#define AISP_MAKE_POLICY(known, factory) \
  if (options.name == (known)) return factory(options);
  AISP_ROUTING_POLICIES(AISP_MAKE_POLICY)
#undef AISP_MAKE_POLICY
  return InvalidArgument(fmt::format("'{}' is no routing policy; known: {}", options.name,
                                     fmt::join(kRoutingPolicies, ", ")));
}

int32_t KnownTokens(const WorkerView& worker) {
  return std::max(worker.cached_tokens, worker.promised_tokens);
}

int32_t UncachedTokens(const RequestSummary& request, const WorkerView& worker) {
  return std::max(0, request.tokens - 1 - KnownTokens(worker));
}

std::string_view LittleLeftReason(const WorkerView& decode) {
  return KnownTokens(decode) > 0 ? route_reason::kLocalCached : route_reason::kLocalShort;
}

OrderPolicy::OrderPolicy(std::string_view name)
    : reasons_{name,
               route_reason::kLocalCached,
               route_reason::kLocalShort,
               route_reason::kLocalNoPrefillWorker,
               route_reason::kLocalPull,
               route_reason::kTakeover,
               route_reason::kForcedRemote,
               route_reason::kForcedLocal} {}

std::vector<int> OrderPolicy::Ranked(const RequestSummary& request,
                                     std::span<const WorkerView> workers, bool prefill) const {
  std::vector<int> candidates;
  for (size_t i = 0; i < workers.size(); ++i) {
    if (workers[i].prefill == prefill && workers[i].available)
      candidates.push_back(static_cast<int>(i));
  }
  struct Scored {
    double order;
    uint64_t tie;
    int index;
  };
  std::vector<Scored> scored;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const WorkerView& worker = workers[static_cast<size_t>(candidates[i])];
    // Rotation by tie_break: ties go to different workers for different requests.
    scored.push_back({Order(request, worker, i, candidates.size()),
                      (i + request.tie_break) % candidates.size(), candidates[i]});
  }
  std::sort(scored.begin(), scored.end(), [](const Scored& a, const Scored& b) {
    return a.order != b.order ? a.order < b.order : a.tie < b.tie;
  });
  std::vector<int> out;
  out.reserve(scored.size());
  for (const Scored& s : scored) out.push_back(s.index);
  return out;
}

Result<Placement> OrderPolicy::Pick(const RequestSummary& request,
                                    std::span<const WorkerView> workers) const {
  const std::vector<int> decode = Ranked(request, workers, /*prefill=*/false);
  if (decode.empty()) return Unavailable("no decode worker is ready; retry later");
  const std::vector<int> prefill = Ranked(request, workers, /*prefill=*/true);
  Placement p;
  p.decode = decode.front();
  const WorkerView& worker = workers[static_cast<size_t>(p.decode)];
  const bool little = UncachedTokens(request, worker) < kHashUnitTokens;
  const bool local = little || prefill.empty() || request.preference == PrefillPreference::kLocal;
  if (!local) {
    p.prefill = prefill.front();
    const size_t others = std::min(kMaxFallbacks, prefill.size() - 1);
    p.fallbacks.assign(prefill.begin() + 1,
                       prefill.begin() + 1 + static_cast<std::ptrdiff_t>(others));
  }
  AddPull(request, workers, &p);
  if (request.takeover) {
    p.reason = route_reason::kTakeover;
  } else if (p.pull.holder >= 0 && p.prefill < 0) {
    p.reason = route_reason::kLocalPull;
  } else if (!local) {
    p.reason = request.preference == PrefillPreference::kRemote ? route_reason::kForcedRemote
                                                                : reasons_.front();
  } else if (little) {
    p.reason = LittleLeftReason(workers[static_cast<size_t>(p.decode)]);
  } else {
    p.reason = request.preference == PrefillPreference::kLocal
                   ? route_reason::kForcedLocal
                   : route_reason::kLocalNoPrefillWorker;
  }
  return p;
}

}  // namespace aisp
