#include "kvcache/transport/select.h"

#include <algorithm>
#include <utility>

namespace aisp {
namespace {

Result<ReachedLane> TryLane(KvTransport* transport, std::string_view descriptor, Duration timeout) {
  AISP_ASSIGN_OR_RETURN(auto pool, transport->Reach(descriptor, timeout));
  AISP_ASSIGN_OR_RETURN(const double rate, pool->Measure(timeout));
  return ReachedLane{transport, std::move(pool), rate, {}};
}

}  // namespace

TransportSelector::TransportSelector(std::vector<KvTransport*> transports)
    : transports_(std::move(transports)) {
  std::ranges::stable_sort(transports_, std::ranges::greater(),
                           [](const KvTransport* t) { return t->capabilities().rank; });
}

SelectedLane TransportSelector::Add(ReachedLane lane) {
  std::string token = lane.pool->token();
  return {lane.transport, lane.transport->Add(std::move(lane.pool)), lane.bytes_per_s,
          std::move(token), std::move(lane.warning)};
}

Result<ReachedLane> TransportSelector::Reach(std::span<const LaneOffer> offers, bool same_host,
                                             Duration timeout) const {
  std::string troubles;
  for (KvTransport* transport : transports_) {
    const TransportCapabilities& lane = transport->capabilities();
    const auto offer = std::ranges::find(offers, lane.name, &LaneOffer::name);
    if (offer == offers.end() || (!same_host && !lane.crosses_host)) continue;
    Result<ReachedLane> selected = TryLane(transport, offer->descriptor, timeout);
    if (!selected) {
      troubles += (troubles.empty() ? "" : "; ") + lane.name + ": " + selected.error().message;
      continue;
    }
    if (!troubles.empty())
      selected->warning = "a faster lane than " + lane.name + " failed (" + troubles + ")";
    return selected;
  }
  if (troubles.empty()) {
    return Unavailable("the two workers have no KV transport in common; enable one on both that " +
                       std::string(same_host ? "works on one host" : "crosses hosts"));
  }
  return Unavailable("no KV transport reaches the peer (" + troubles + ")");
}

}  // namespace aisp
