#include "prefill/peer_connector.h"

#include <utility>

namespace aisp {

Result<PeerPool> RankedConnector::Connect(std::span<const v1::TransportOffer* const> offers,
                                          bool same_host) {
  std::vector<LaneOffer> lanes;
  for (const v1::TransportOffer* offer : offers)
    lanes.push_back({offer->name(), offer->endpoint()});
  AISP_ASSIGN_OR_RETURN(SelectedLane lane, selector_.Connect(lanes, same_host, timeout_));
  return PeerPool{.transport = lane.transport,
                  .peer = lane.peer,
                  .measured_bytes_per_s = lane.bytes_per_s,
                  .warning = std::move(lane.warning)};
}

}  // namespace aisp
