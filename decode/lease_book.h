// LeaseBook: every open grant of our blocks to a writer (a prefill worker), and who must end it.
//
// A lease is active while its writer may write, and revoked once we gave it up. A revoked lease
// ends only by its writer's acknowledgement, a transport that fences on our side, or proof of the
// writer's death; until then its blocks are in quarantine (kvcache/block_manager.h). A writer is
// one process: an address and an incarnation. Plain bookkeeping on the engine thread; the decode
// role acts on it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "kvcache/transport/kv_transport.h"
#include "worker/peer_death.h"

namespace aisp {

// Releases a watch when the last lease or session that needs it is gone.
class ScopedWatch {
 public:
  ScopedWatch(PeerDeath* oracle, DeathWatch watch) : oracle_(oracle), watch_(watch) {}
  ScopedWatch(const ScopedWatch&) = delete;
  ScopedWatch& operator=(const ScopedWatch&) = delete;
  ~ScopedWatch() { oracle_->Forget(watch_); }
  bool Dead() const { return oracle_->Dead(watch_); }
  bool CanProve() const { return watch_ != DeathWatch(); }

 private:
  PeerDeath* const oracle_;
  const DeathWatch watch_;
};

// The process that got the blocks.
struct Writer {
  std::string address;
  std::string worker_id;
  uint64_t incarnation = 0;
  KvTransport* transport = nullptr;  // the transport it writes over
  bool draws = false;                // first tokens, on request
  bool takes_grants = false;         // in a PrefillRequest
  std::string conversion;            // from its pool to ours; "": none
  std::shared_ptr<const ScopedWatch> watch;
};

struct Lease {
  Epoch epoch;
  Writer writer;
  int32_t blocks = 0;
  uint64_t transfer_id = 0;
  bool revoked = false;
  Instant revoked_at = kNever;
};

class LeaseBook {
 public:
  void Open(Lease lease) { leases_.emplace(lease.epoch, std::move(lease)); }
  void Close(Epoch epoch) { leases_.erase(epoch); }
  Lease* Find(Epoch epoch) {
    const auto it = leases_.find(epoch);
    return it == leases_.end() ? nullptr : &it->second;
  }

  // Blocks granted to any incarnation at `address`.
  int32_t BlocksOut(const std::string& address) const {
    int32_t blocks = 0;
    for (const auto& [epoch, lease] : leases_)
      blocks += lease.writer.address == address ? lease.blocks : 0;
    return blocks;
  }
  // Blocks of revoked leases, the quarantine, over all peers.
  int32_t BlocksRevoked() const {
    int32_t blocks = 0;
    for (const auto& [epoch, lease] : leases_) blocks += lease.revoked ? lease.blocks : 0;
    return blocks;
  }
  // Whether it owes an acknowledgement for longer than `grace` and gets no new grants.
  bool Silent(const std::string& address, Instant now, Duration grace) const {
    for (const auto& [epoch, lease] : leases_) {
      if (lease.writer.address == address && lease.revoked && now - lease.revoked_at > grace)
        return true;
    }
    return false;
  }
  // Whether an active writer may say in a note that it is done.
  bool AwaitsNotes() const {
    return std::any_of(leases_.begin(), leases_.end(), [](const auto& each) {
      const Lease& lease = each.second;
      return !lease.revoked && lease.writer.transport != nullptr &&
             lease.writer.transport->capabilities().notes;
    });
  }
  // Epochs of revoked leases, oldest first.
  std::vector<Epoch> Revoked() const {
    std::vector<Epoch> epochs;
    for (const auto& [epoch, lease] : leases_) {
      if (lease.revoked) epochs.push_back(epoch);
    }
    return epochs;
  }
  size_t size() const { return leases_.size(); }

 private:
  std::map<Epoch, Lease> leases_;
};

}  // namespace aisp
