// Maps the writer's pool into the owner's process, if both are on one host: the owner copies from
// it instead of receiving the bytes over a connection.
//
// The pool must be a sealed memfd, so that it cannot shrink under the mapping. A writer can only
// name its own bytes, and the owner's side copies: epochs, ranges and fences are as for fetched
// pieces.
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

// The writer's side: gives its pool, read-only, to owners of the same user that have the cookie.
class MemoryOffer {
 public:
  // FAILED_PRECONDITION: the pool is not a memfd.
  static Result<std::unique_ptr<MemoryOffer>> Open(const KvRegion& region, size_t max_owners);
  const Memory& message() const { return message_; }

 private:
  MemoryOffer(UniqueFd read_only, std::unique_ptr<PoolListener> listener);
  const UniqueFd read_only_;
  const std::unique_ptr<PoolListener> listener_;
  Memory message_;
};

// The owner's side: maps on a separate thread, since it waits for the other process.
class MemoryMapper {
 public:
  using Mapped = Result<std::shared_ptr<const PoolMapping>>;
  MemoryMapper();
  ~MemoryMapper();
  // `done` is called once, on this object's thread, unless this is destroyed first.
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
