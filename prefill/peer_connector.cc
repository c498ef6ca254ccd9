#include "prefill/peer_connector.h"

#include <algorithm>

namespace aisp {

RankedConnector::RankedConnector(std::vector<KvTransport*> transports, Duration timeout)
    : transports_(std::move(transports)), timeout_(timeout) {
  std::stable_sort(transports_.begin(), transports_.end(), [](const KvTransport* a, const KvTransport* b) {
    return a->capabilities().rank > b->capabilities().rank;
  });
}

Result<PeerPool> RankedConnector::Connect(std::span<const v1::TransportOffer* const> offers, bool same_host) {
  std::string troubles;
  for (KvTransport* transport : transports_) {
    const TransportCapabilities& lane = transport->capabilities();
    const auto offer = std::find_if(offers.begin(), offers.end(),
                                    [&lane](const v1::TransportOffer* o) { return o->name() == lane.name; });
    if (offer == offers.end()) continue;
    if (!same_host && !lane.crosses_host) continue;
    Result<KvPeerId> peer = transport->Connect((*offer)->endpoint(), timeout_);
    if (!peer) {
      troubles += "; " + lane.name + ": " + peer.error().message;
      continue;
    }
    PeerPool pool{.transport = transport, .peer = *peer, .measured_bytes_per_s = 0, .warning = {}};
    if (!troubles.empty()) pool.warning = "a faster lane than " + lane.name + " failed" + troubles;
    return pool;
  }
  if (troubles.empty()) troubles = "; the two workers have no transport in common; enable one on both";
  return Unavailable("no KV lane to the decode worker" + troubles);
}

}  // namespace aisp
