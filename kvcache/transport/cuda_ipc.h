// CudaIpcTransport: KV between pools in GPU memory of processes on one host: on one GPU, or on two
// that reach each other (NVLink, PCIe). The writer maps the owner's pool (Device::Export and
// Import) and copies into it on its own stream; a write completes when the stream has finished, so
// its bytes are in the owner's memory before the completion is reported.
//
// Besides its pool an owner gives each writer a NoteBox.
//
// Descriptors, sockets and the checks of user and incarnation are those of shm. Nothing here
// depends on CUDA: any Device works, and the tests use the CPU's.
//
// Failures: the owner's death closes the socket; Write then fails with UNAVAILABLE, and Disconnect
// releases the mapping. WatchWriter proves a writer's death: the driver ends a process's enqueued
// work before the process is gone. A stopped writer can still write: owner_copies is false and
// RevokeEpoch returns false.
#pragma once

#include <memory>
#include <string>

#include "kvcache/transport/memory_transport.h"
#include "kvcache/transport/peer_death.h"

namespace aisp {

class PoolListener;

class CudaIpcTransport final : public MemoryTransport, public WriterWatcher {
 public:
  struct Options {
    size_t max_writes = 4096;
    size_t max_writers = 64;           // connections that the owner keeps
    size_t scratch_bytes = 16u << 20;  // device memory for measuring, at each end
  };
  explicit CudaIpcTransport(const Options& options);
  ~CudaIpcTransport() override;

  // FAILED_PRECONDITION unless the region is in a device's memory, with its buffer.
  Status Register(const KvRegion& region) override;
  Result<std::string> Descriptor() override;
  // A mapped pool cannot be fenced from here.
  void AllowEpoch(Epoch, std::span<const BlockCopy>) override {}
  bool RevokeEpoch(Epoch) override { return false; }
  Result<PeerWatch> WatchWriter(std::string_view token) override;
  bool HasNotes() override;
  bool TakeNote(std::string* token, std::string* note) override;

 protected:
  Result<std::shared_ptr<Peer>> Open(std::string_view descriptor, Duration timeout) override;

 private:
  const Options options_;
  Buffer scratch_;  // the owner's: starts with the cookie
  std::unique_ptr<PoolListener> listener_;
};

}  // namespace aisp
