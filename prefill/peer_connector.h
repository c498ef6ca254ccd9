// PeerConnector: how a prefill worker reaches a decode worker's KV pool: picks one of the ways that
// the decode worker offers. Reaching takes time, so it happens elsewhere; what was reached comes
// back to the engine thread, which owns this.
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

// A pool that can be written now.
struct PeerPool {
  KvTransport* transport = nullptr;
  KvPeerId peer;
  double measured_bytes_per_s = 0;  // 0: not measured
  std::string token;                // by which its owner watches this process; "": it need not
  std::string warning;              // e.g. a faster lane exists than the one in use
};

class PeerConnector {
 public:
  virtual ~PeerConnector() = default;
  using Done = std::function<void(Result<PeerPool>)>;
  // Ends in `done`, once, unless it was cancelled; perhaps before this returns. UNAVAILABLE when no
  // offer works (the message says why for each), RESOURCE_EXHAUSTED when too many wait already.
  // Returns what Cancel takes.
  virtual uint64_t Connect(std::vector<v1::TransportOffer> offers, bool same_host, Done done) = 0;
  virtual void Cancel(uint64_t attempt) = 0;
  // Every transport on which writes may complete.
  virtual std::span<KvTransport* const> transports() const = 0;
};

// Tries the transports that both sides have, fastest first, with a short measurement over each
// (kvcache/transport/select.h).
class RankedConnector final : public PeerConnector {
 public:
  // Runs `work` (any thread, it may block) and then `then` on the engine thread, not after this
  // connector is gone. False: there is no room for it.
  using Runner = std::function<bool(std::function<void()> work, std::function<void()> then)>;
  // Both at once, for tests and the simulation.
  static bool RunHere(const std::function<void()>& work, const std::function<void()>& then) {
    work();
    then();
    return true;
  }

  // `timeout`: of one lane, for reaching and for measuring it.
  RankedConnector(std::vector<KvTransport*> transports, Duration timeout, Runner run = RunHere)
      : selector_(std::move(transports)), timeout_(timeout), run_(std::move(run)) {}
  uint64_t Connect(std::vector<v1::TransportOffer> offers, bool same_host, Done done) override;
  void Cancel(uint64_t attempt) override { waiting_.erase(attempt); }
  std::span<KvTransport* const> transports() const override { return selector_.transports(); }

 private:
  const TransportSelector selector_;
  const Duration timeout_;
  const Runner run_;
  // What is reached belongs to the attempt, so that it goes with this connector at the latest.
  using Lane = std::optional<Result<ReachedLane>>;
  struct Attempt {
    Done done;
    std::shared_ptr<Lane> lane;
  };
  uint64_t last_ = 0;
  std::map<uint64_t, Attempt> waiting_;
};

}  // namespace aisp
