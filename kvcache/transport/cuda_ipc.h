// CudaIpcTransport: KV between pools in GPU memory, by processes of one host: on one GPU, or on two
// that reach each other (NVLink, PCIe). The writer maps the owner's pool (Device::Export and
// Import) and copies into it on a stream of its own; a write completes when the stream has done it,
// so its bytes lie in the owner's memory before anybody hears of them.
//
// Descriptors, sockets and the check of user and incarnation are those of shm. Nothing here knows
// CUDA: any Device will do, and the tests run it over the CPU's.
//
// What dies how: the owner's death shows on the socket; Write then fails with UNAVAILABLE, and
// Disconnect releases the mapping. A dead writer is proven dead by WatchWriter: the driver ends
// what a process had enqueued before the process is gone. A stopped one can still write:
// owner_copies is false and RevokeEpoch returns false.
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

  // FAILED_PRECONDITION unless the region is a device's, with its buffer.
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
  Buffer scratch_;  // the owner's: begins with the cookie
  std::unique_ptr<PoolListener> listener_;
};

}  // namespace aisp
