// ProcessDeath: implements PeerDeath by watching the writers that have this process's pool mapped
// (kvcache/transport/peer_death.h). A writer that cannot be watched is never proven dead; its
// transport must do its own fencing. The engine thread.
#pragma once

#include <unordered_map>
#include <vector>

#include "kvcache/transport/peer_death.h"
#include "worker/peer_death.h"

namespace aisp {

class ProcessDeath final : public PeerDeath {
 public:
  // The watchers outlive this object.
  explicit ProcessDeath(std::vector<WriterWatcher*> watchers) : watchers_(std::move(watchers)) {}
  DeathWatch Watch(const std::string& worker_id, uint64_t incarnation,
                   const std::string& lane_token) override;
  bool Dead(DeathWatch watch) override;
  void Forget(DeathWatch watch) override;

 private:
  const std::vector<WriterWatcher*> watchers_;
  uint64_t last_ = 0;
  std::unordered_map<uint64_t, PeerWatch> watches_;
};

}  // namespace aisp
