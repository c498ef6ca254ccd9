// PeerDeath: proof that another process is gone, so that nothing it started can still write into
// our pool.
//
// A name or a lost connection proves nothing: a stopped process may resume, and its writes with it.
// Production holds a pidfd, opened while the process was known to live (so its pid cannot have been
// reused); the simulation knows which processes it killed. Owned by the engine thread.
#pragma once

#include <cstdint>
#include <string>

#include "common/ids.h"

namespace aisp {

// Value 0: no watch; death will never be proven.
using DeathWatch = StrongId<struct DeathWatchTag, uint64_t>;

class PeerDeath {
 public:
  virtual ~PeerDeath() = default;
  // Watches the process behind a link that is up. `lane_token`: what our pool gave the writer; "":
  // its transport maps nothing, so there is nothing to prove.
  virtual DeathWatch Watch(const std::string& worker_id, uint64_t incarnation,
                           const std::string& lane_token) = 0;
  // True only with proof. Cheap; called a few times a second while a writer owes an
  // acknowledgement.
  virtual bool Dead(DeathWatch watch) = 0;
  virtual void Forget(DeathWatch watch) = 0;
};

// For workers whose peers cannot be watched (other hosts only).
class NoPeerDeath final : public PeerDeath {
 public:
  DeathWatch Watch(const std::string&, uint64_t, const std::string&) override { return {}; }
  bool Dead(DeathWatch) override { return false; }
  void Forget(DeathWatch) override {}
};

}  // namespace aisp
