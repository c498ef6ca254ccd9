#include "server/process_death.h"

#include <utility>

#include "common/log.h"
#include "kvcache/transport/shm.h"

namespace aisp {

DeathWatch ProcessDeath::Watch(const std::string& worker_id, uint64_t /*incarnation*/,
                               int64_t pid) {
  if (shm_ == nullptr || pid <= 0) return {};
  auto watch = shm_->WatchWriter(static_cast<pid_t>(pid));
  if (!watch) {
    LogDebug("no proof of death can be had",
             {{"worker", worker_id}, {"pid", pid}, {"why", watch.error().message}});
    return {};
  }
  watches_.emplace(++last_, std::move(*watch));
  return DeathWatch(last_);
}

bool ProcessDeath::Dead(DeathWatch watch) {
  const auto it = watches_.find(watch.value);
  return it != watches_.end() && it->second.Dead();
}

void ProcessDeath::Forget(DeathWatch watch) { watches_.erase(watch.value); }

}  // namespace aisp
