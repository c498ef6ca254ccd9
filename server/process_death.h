// ProcessDeath: PeerDeath by pidfds of writers that are connected to this process's shared memory. A writer that cannot be
// watched (another host, another transport) is never proven dead; its transport must fence by itself.
// The engine thread.
#pragma once

#include <unordered_map>

#include "kvcache/transport/peer_death.h"
#include "worker/peer_death.h"

namespace aisp {

class ShmTransport;

class ProcessDeath final : public PeerDeath {
 public:
  // `shm` may be null; it outlives this.
  explicit ProcessDeath(ShmTransport* shm) : shm_(shm) {}
  DeathWatch Watch(const std::string& worker_id, uint64_t incarnation, int64_t pid) override;
  bool Dead(DeathWatch watch) override;
  void Forget(DeathWatch watch) override;

 private:
  ShmTransport* const shm_;
  uint64_t last_ = 0;
  std::unordered_map<uint64_t, PeerWatch> watches_;
};

}  // namespace aisp
