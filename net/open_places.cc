#include "net/open_places.h"

#include <unordered_map>

namespace aisp {

std::shared_ptr<LiveRpc> OpenPlaces::Take(std::shared_ptr<LiveRpc> rpc, std::string address) {
  std::shared_ptr<LiveRpc> leaves;
  const std::lock_guard lock(mutex_);
  if (places_.size() >= most_) {
    std::unordered_map<std::string, size_t> held;
    for (const Place& place : places_) ++held[place.address];
    auto first = places_.begin();
    for (auto it = places_.begin(); it != places_.end(); ++it) {
      if (held[it->address] > held[first->address]) first = it;
    }
    leaves = std::move(first->rpc);
    places_.erase(first);
  }
  places_.push_back({std::move(rpc), std::move(address)});
  return leaves;
}

void OpenPlaces::Leave(const LiveRpc* rpc) {
  std::shared_ptr<LiveRpc> last;  // destroyed outside the lock
  const std::lock_guard lock(mutex_);
  for (auto it = places_.begin(); it != places_.end(); ++it) {
    if (it->rpc.get() != rpc) continue;
    last = std::move(it->rpc);
    places_.erase(it);
    return;
  }
}

}  // namespace aisp
