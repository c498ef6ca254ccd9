#include "kvcache/transport/select.h"

#include <algorithm>
#include <utility>

namespace aisp {
namespace {

Result<SelectedLane> TryLane(KvTransport* transport, std::string_view descriptor,
                             Duration timeout) {
  AISP_ASSIGN_OR_RETURN(const KvPeerId peer, transport->Connect(descriptor, timeout));
  const Result<double> rate = transport->Measure(peer, timeout);
  if (!rate) {
    transport->Disconnect(peer);
    return tl::unexpected(rate.error());
  }
  return SelectedLane{transport, peer, *rate, {}};
}

}  // namespace

TransportSelector::TransportSelector(std::vector<KvTransport*> transports)
    : transports_(std::move(transports)) {
  std::ranges::stable_sort(transports_, std::ranges::greater(),
                           [](const KvTransport* t) { return t->capabilities().rank; });
}

Result<SelectedLane> TransportSelector::Connect(std::span<const LaneOffer> offers, bool same_host,
                                                Duration timeout) {
  std::string troubles;
  for (KvTransport* transport : transports_) {
    const TransportCapabilities& lane = transport->capabilities();
    const auto offer = std::ranges::find(offers, lane.name, &LaneOffer::name);
    if (offer == offers.end() || (!same_host && !lane.crosses_host)) continue;
    Result<SelectedLane> selected = TryLane(transport, offer->descriptor, timeout);
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
