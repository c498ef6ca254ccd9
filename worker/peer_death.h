// PeerDeath: proof that another process is gone, so that nothing it had started can still write
// into our pool.
//
// A name or a lost connection proves nothing: a stopped process comes back and its writes with it.
// Production holds a pidfd, opened while the process was known to live (so its pid cannot have been
// given to another); the simulation knows whom it killed. Owned by the engine thread.
#pragma once

#include <cstdint>
#include <string>

#include "common/ids.h"

namespace aisp {

// Value 0: no watch, nothing will ever be proven.
using DeathWatch = StrongId<struct DeathWatchTag, uint64_t>;

class PeerDeath {
 public:
  virtual ~PeerDeath() = default;
  // Watches the process behind a link that is up. `lane_token` as our pool gave it to the writer;
  // "": its lane maps nothing, there is nothing to prove.
  virtual DeathWatch Watch(const std::string& worker_id, uint64_t incarnation,
                           const std::string& lane_token) = 0;
  // True only with proof. Cheap; asked a few times a second while a writer owes an acknowledgement.
  virtual bool Dead(DeathWatch watch) = 0;
  virtual void Forget(DeathWatch watch) = 0;
};

// Where no process can be watched (peers on other hosts only).
class NoPeerDeath final : public PeerDeath {
 public:
  DeathWatch Watch(const std::string&, uint64_t, const std::string&) override { return {}; }
  bool Dead(DeathWatch) override { return false; }
  void Forget(DeathWatch) override {}
};

}  // namespace aisp
