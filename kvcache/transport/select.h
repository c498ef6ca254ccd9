// TransportSelector: connects a writer to a peer's pool by the fastest transport that works, and
// warns if a faster one should have.
//
// A lane is one transport as a peer offers it. It works if it connects and a short measurement
// outside the pools succeeds. Lanes are tried by rank; those that do not cross hosts only between
// peers of one host.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/transport/kv_transport.h"

namespace aisp {

// A peer's offer: a transport's name and its Descriptor().
struct LaneOffer {
  std::string_view name;
  std::string_view descriptor;
};

struct SelectedLane {
  KvTransport* transport = nullptr;
  KvPeerId peer;
  double bytes_per_s = 0;  // 0: not measurable
  std::string token;       // KvTransport::Reached::token
  // Not empty if a faster lane was offered and failed: which, and why.
  std::string warning;
};

// The same, before it is added.
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

  // UNAVAILABLE: no offer works; the message gives the reason for each. Any thread, also
  // concurrently; blocks at most twice `timeout` per lane.
  Result<ReachedLane> Reach(std::span<const LaneOffer> offers, bool same_host,
                            Duration timeout) const;
  // Engine thread: makes the reached lane writable.
  static SelectedLane Add(ReachedLane lane);

  // Fastest first.
  std::span<KvTransport* const> transports() const { return transports_; }

 private:
  std::vector<KvTransport*> transports_;
};

}  // namespace aisp
