#include "server/process_death.h"

#include <utility>

#include "common/log.h"

namespace aisp {

DeathWatch ProcessDeath::Watch(const std::string& worker_id, uint64_t /*incarnation*/,
                               const std::string& lane_token) {
  if (lane_token.empty()) return {};
  std::string why = "no lane maps this pool";
  for (WriterWatcher* watcher : watchers_) {
    auto watch = watcher->WatchWriter(lane_token);
    if (watch) {
      watches_.emplace(++last_, std::move(*watch));
      return DeathWatch(last_);
    }
    why = watch.error().message;
  }
  LogDebug("no proof of death can be had", {{"worker", worker_id}, {"why", why}});
  return {};
}

bool ProcessDeath::Dead(DeathWatch watch) {
  const auto it = watches_.find(watch.value);
  return it != watches_.end() && it->second.Dead();
}

void ProcessDeath::Forget(DeathWatch watch) { watches_.erase(watch.value); }

}  // namespace aisp
