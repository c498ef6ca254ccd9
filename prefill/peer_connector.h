// PeerConnector: how a prefill worker reaches a decode worker's KV pool: picks one of the ways that
// the decode worker offers. Owned by the engine thread; Connect is bounded by the transports' own
// time limits.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/result.h"
#include "kv.pb.h"
#include "kvcache/transport/kv_transport.h"
#include "kvcache/transport/select.h"

namespace aisp {

// A pool that can be written now.
struct PeerPool {
  KvTransport* transport = nullptr;
  KvPeerId peer;
  double measured_bytes_per_s = 0;  // 0: not measured
  std::string warning;              // e.g. a faster lane exists than the one in use
};

class PeerConnector {
 public:
  virtual ~PeerConnector() = default;
  // UNAVAILABLE when no offer works; the message says why for each.
  virtual Result<PeerPool> Connect(std::span<const v1::TransportOffer* const> offers,
                                   bool same_host) = 0;
  // Every transport on which writes may complete.
  virtual std::span<KvTransport* const> transports() const = 0;
};

// Tries the transports that both sides have, fastest first, with a short measurement over each
// (kvcache/transport/select.h).
class RankedConnector final : public PeerConnector {
 public:
  RankedConnector(std::vector<KvTransport*> transports, Duration timeout)
      : selector_(std::move(transports)), timeout_(timeout) {}
  Result<PeerPool> Connect(std::span<const v1::TransportOffer* const> offers,
                           bool same_host) override;
  std::span<KvTransport* const> transports() const override { return selector_.transports(); }

 private:
  TransportSelector selector_;
  const Duration timeout_;
};

}  // namespace aisp
