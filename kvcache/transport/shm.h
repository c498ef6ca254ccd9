// The shm transport: processes of one host and one user. The pool is a memfd; a writer obtains it
// over a Unix socket, maps it and copies on its own progress thread.
//
// Descriptor: "shm1 <abstract socket name> <cookie>". The socket name is random and vanishes with
// its owner, so a descriptor of a dead process never reaches a successor. Both ends check the
// other's user id. Nothing is left in any file system.
//
// Failures: the owner's death does not crash writers (their mapping keeps the memory until
// Disconnect); Write then fails with UNAVAILABLE. WatchWriter proves a writer's death. A stopped
// writer can still write, since a mapping cannot be revoked: owner_copies is false and RevokeEpoch
// returns false.
#pragma once

#include <memory>
#include <string>

#include "kvcache/transport/memory_transport.h"
#include "kvcache/transport/peer_death.h"
#include "kvcache/transport/pool_memory.h"

namespace aisp {

class PoolListener;

class ShmTransport final : public MemoryTransport, public WriterWatcher {
 public:
  struct Options {
    size_t max_writes = 4096;
    size_t max_writers = 256;  // connections that the owner keeps
  };
  explicit ShmTransport(const Options& options);
  ~ShmTransport() override;

  // The region's handle must be a memfd of at least its size, mapped shared at its base.
  Status Register(const KvRegion& region) override;
  Result<std::string> Descriptor() override;
  // A mapped pool cannot be fenced from here.
  void AllowEpoch(Epoch, std::span<const BlockCopy>) override {}
  bool RevokeEpoch(Epoch) override { return false; }

  Result<PeerWatch> WatchWriter(std::string_view token) override;

 protected:
  Result<std::shared_ptr<Peer>> Open(std::string_view descriptor, Duration timeout) override;

 private:
  const Options options_;
  UniqueFd scratch_;  // the owner's
  std::unique_ptr<PoolListener> listener_;
};

// A pool for ShmTransport: a sealed memfd (its size cannot change under a mapping) and its mapping.
// Move-only.
class SharedPool {
 public:
  // A pool of zeros. Fails with the system's error, e.g. out of memory.
  static Result<SharedPool> Create(size_t bytes);
  KvRegion region() const { return {mapping_.bytes().data(), mapping_.bytes().size(), fd_.get()}; }

 private:
  SharedPool(UniqueFd fd, PoolMapping mapping) : fd_(std::move(fd)), mapping_(std::move(mapping)) {}
  UniqueFd fd_;
  PoolMapping mapping_;
};

}  // namespace aisp
