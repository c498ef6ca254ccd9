// PeerConnector: connects a prefill worker to a decode worker's KV pool over one of the transports
// that the decode worker offers. Connecting takes time and runs elsewhere; the result is delivered
// to the engine thread, which owns this object.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/result.h"
#include "kv.pb.h"
#include "kvcache/transport/kv_transport.h"
#include "kvcache/transport/select.h"

namespace aisp {

// A connected pool.
struct PeerPool {
  KvTransport* transport = nullptr;
  KvPeerId peer;
  double measured_bytes_per_s = 0;  // 0: not measured
  std::string token;                // by which the pool's owner watches this process; "": not
                                    // needed
  std::string warning;              // e.g. that a faster transport could not be used
};

class PeerConnector {
 public:
  virtual ~PeerConnector() = default;
  using Done = std::function<void(Result<PeerPool>)>;
  // Calls `done` once unless cancelled, possibly before it returns. UNAVAILABLE when no offer works
  // (with the reason for each), RESOURCE_EXHAUSTED when too many are waiting. Returns the handle
  // for Cancel.
  virtual uint64_t Connect(std::vector<v1::TransportOffer> offers, bool same_host, Done done) = 0;
  virtual void Cancel(uint64_t attempt) = 0;
  // All transports on which writes may complete.
  virtual std::span<KvTransport* const> transports() const = 0;
};

// Tries the transports that both sides have, fastest first, with a short measurement of each
// (kvcache/transport/select.h).
class RankedConnector final : public PeerConnector {
 public:
  // Runs `work` (any thread, may block), then `then` on the engine thread, unless this object is
  // gone. False: no room for it.
  using Runner = std::function<bool(std::function<void()> work, std::function<void()> then)>;
  // Runs both at once, for tests and the simulation.
  static bool RunHere(const std::function<void()>& work, const std::function<void()>& then) {
    work();
    then();
    return true;
  }

  // `timeout`: for connecting and for measuring, per transport.
  RankedConnector(std::vector<KvTransport*> transports, Duration timeout, Runner run = RunHere)
      : selector_(std::move(transports)), timeout_(timeout), run_(std::move(run)) {}
  uint64_t Connect(std::vector<v1::TransportOffer> offers, bool same_host, Done done) override;
  void Cancel(uint64_t attempt) override { waiting_.erase(attempt); }
  std::span<KvTransport* const> transports() const override { return selector_.transports(); }

 private:
  const TransportSelector selector_;
  const Duration timeout_;
  const Runner run_;
  // The attempt owns what it connected, so that it is released with this object at the latest.
  using Lane = std::optional<Result<ReachedLane>>;
  struct Attempt {
    Done done;
    std::shared_ptr<Lane> lane;
  };
  uint64_t last_ = 0;
  std::map<uint64_t, Attempt> waiting_;
};

}  // namespace aisp
