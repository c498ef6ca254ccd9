#include "prefill/peer_connector.h"

#include <utility>

namespace aisp {

uint64_t RankedConnector::Connect(std::vector<v1::TransportOffer> offers, bool same_host,
                                  Done done) {
  const uint64_t id = ++last_;
  auto lane = std::make_shared<Lane>();
  waiting_.emplace(id, Attempt{std::move(done), lane});
  auto work = [this, offers = std::move(offers), same_host, lane = std::move(lane)] {
    std::vector<LaneOffer> lanes;
    for (const v1::TransportOffer& offer : offers)
      lanes.push_back({offer.name(), offer.endpoint()});
    lane->emplace(selector_.Reach(lanes, same_host, timeout_));
  };
  auto then = [this, id] {
    const auto waiting = waiting_.extract(id);
    if (waiting.empty()) return;  // nobody waits for it any more
    Result<ReachedLane>& reached = **waiting.mapped().lane;
    const Done& tell = waiting.mapped().done;
    if (!reached) return tell(tl::unexpected(reached.error()));
    SelectedLane selected = TransportSelector::Add(std::move(*reached));
    tell(PeerPool{.transport = selected.transport,
                  .peer = selected.peer,
                  .measured_bytes_per_s = selected.bytes_per_s,
                  .token = std::move(selected.token),
                  .warning = std::move(selected.warning)});
  };
  if (!run_(std::move(work), std::move(then))) {
    const auto waiting = waiting_.extract(id);
    waiting.mapped().done(
        ResourceExhausted("too many pools are being connected at once; try again"));
  }
  return id;
}

}  // namespace aisp
