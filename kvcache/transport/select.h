// TransportSelector: connects a writer to a peer's pool by the fastest lane that works, and says
// when a faster one should have.
//
// A lane works when it connects and a short measurement over it succeeds; the measurement uses
// memory that is no pool. Lanes are tried by rank; those that do not cross
// hosts only between peers of one host.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/transport/kv_transport.h"

namespace aisp {

// One way in which a peer's pool can be written, as the peer says: a transport's name and its
// Descriptor().
struct LaneOffer {
  std::string_view name;
  std::string_view descriptor;
};

struct SelectedLane {
  KvTransport* transport = nullptr;
  KvPeerId peer;
  double bytes_per_s = 0;  // 0: the transport cannot measure
  std::string token;       // KvTransport::Reached::token
  // Not empty when a faster lane than this one was offered and failed: which, and why.
  std::string warning;
};

// The same, before it is somebody's.
struct ReachedLane {
  KvTransport* transport = nullptr;
  std::unique_ptr<KvTransport::Reached> pool;
  double bytes_per_s = 0;
  std::string warning;
};

class TransportSelector {
 public:
  // `transports` are not owned; any order.
  explicit TransportSelector(std::vector<KvTransport*> transports);

  // UNAVAILABLE when no offer works; the message says why for each. Any thread, several at a time;
  // blocks for twice `timeout` a lane at most.
  Result<ReachedLane> Reach(std::span<const LaneOffer> offers, bool same_host,
                            Duration timeout) const;
  // The engine thread: the lane that was reached can be written.
  static SelectedLane Add(ReachedLane lane);

  // Fastest first.
  std::span<KvTransport* const> transports() const { return transports_; }

 private:
  std::vector<KvTransport*> transports_;
};

}  // namespace aisp
