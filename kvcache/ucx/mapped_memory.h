// The writer's pool as memory of the owner's process, where both are on one host: the owner copies
// out of it what a connection over tcp would carry.
//
// The pool must be a sealed memfd, so that nobody can take it away under the mapping. What a writer
// says of its memory reaches its own bytes only, and the owner's side copies: epochs, ranges and
// fences are as for pieces that are fetched.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "common/result.h"
#include "common/threads.h"
#include "kvcache/transport/kv_transport.h"
#include "kvcache/transport/pool_listener.h"
#include "kvcache/transport/pool_memory.h"
#include "kvcache/ucx/wire.h"

namespace aisp::ucx {

// The writer's side: gives its pool, to be read, to owners of the same user who know the cookie.
class MemoryOffer {
 public:
  // FAILED_PRECONDITION: the pool is no memfd.
  static Result<std::unique_ptr<MemoryOffer>> Open(const KvRegion& region, size_t max_owners);
  const Memory& message() const { return message_; }

 private:
  MemoryOffer(UniqueFd read_only, std::unique_ptr<PoolListener> listener);
  const UniqueFd read_only_;
  const std::unique_ptr<PoolListener> listener_;
  Memory message_;
};

// The owner's side: maps on a thread of its own, since the other process has to answer.
class MemoryMapper {
 public:
  using Mapped = Result<std::shared_ptr<const PoolMapping>>;
  MemoryMapper();
  ~MemoryMapper();
  // `done` is called once, by this object's thread, unless this ends before.
  void Map(const Memory& memory, std::function<void(Mapped)> done);

 private:
  struct Job {
    Memory memory;
    std::function<void(Mapped)> done;
  };
  void Run();

  std::mutex mutex_;
  std::condition_variable there_;
  std::deque<Job> jobs_;
  bool stop_ = false;
  Thread thread_;
};

}  // namespace aisp::ucx
