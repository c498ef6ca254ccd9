#include <utility>

#include "net/rpc_reactor.h"

namespace aisp {

Error LiveRpcs::Admit(std::shared_ptr<LiveRpc> rpc, bool bounded, size_t limit) {
  const std::lock_guard lock(mutex_);
  auto& set = bounded ? bounded_ : watching_;
  set.insert(std::move(rpc));
  if (stopped_ || draining_ || (watching_ended_ && !bounded)) {
    return {Code::kUnavailable, "this router is draining; use another one"};
  }
  if (set.size() > limit) {
    return {Code::kResourceExhausted, "the server has all the calls that it allows (" +
                                          std::to_string(limit) + "); try again soon"};
  }
  return {Code::kOk, ""};
}

void LiveRpcs::Remove(const std::shared_ptr<LiveRpc>& rpc) {
  std::function<void()> idle;
  {
    const std::lock_guard lock(mutex_);
    watching_.erase(rpc);
    if (bounded_.erase(rpc) == 0 || !bounded_.empty()) return;
    idle = std::exchange(idle_, nullptr);
  }
  if (idle) idle();
}

std::vector<std::shared_ptr<LiveRpc>> LiveRpcs::All() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<LiveRpc>> all(bounded_.begin(), bounded_.end());
  all.insert(all.end(), watching_.begin(), watching_.end());
  return all;
}

void LiveRpcs::Stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  idle_ = nullptr;
}

void LiveRpcs::EndWatching() {
  std::vector<std::shared_ptr<LiveRpc>> watching;
  {
    const std::lock_guard lock(mutex_);
    watching_ended_ = true;
    watching.assign(watching_.begin(), watching_.end());
  }
  for (const auto& rpc : watching)
    rpc->Abort({Code::kUnavailable, "this router is draining; use another one"});
}

void LiveRpcs::Drain(std::function<void()> idle) {
  {
    const std::lock_guard lock(mutex_);
    draining_ = true;
    if (!bounded_.empty()) {
      idle_ = std::move(idle);
      return;
    }
  }
  idle();
}

}  // namespace aisp
