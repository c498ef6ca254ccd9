// TierThreads: TierIo on two threads, one for copies between pool and host memory, one for all disk
// work, so that a slow disk does not delay the host tier.
//
// The host tier is one allocation of MemoryKind::kHost (pinned, on a GPU), made at start. Copies
// run on the thread's own stream and are awaited there. Blocks read from the pool are already
// computed, and blocks written are unused until the engine learns of completion, so streams need no
// ordering.
//
// Submit and TakeDone: any thread. The destructor finishes the running job and drops the rest. The
// pool and the device outlive it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kernels/device/device.h"
#include "kvcache/layout.h"
#include "kvcache/tiers/disk_store.h"
#include "kvcache/tiers/tier_io.h"

namespace aisp {

class TierThreads final : public TierIo {
 public:
  struct Options {
    KvLayout layout;
    std::byte* pool = nullptr;
    int32_t host_slots = 0;
    std::unique_ptr<DiskStore> disk = nullptr;  // null: none
    size_t max_jobs = 1024;                     // queued per thread
    std::function<void()> on_done = {};         // called on one of its threads after each job
  };
  // RESOURCE_EXHAUSTED: no memory for the host tier.
  static Result<std::unique_ptr<TierThreads>> Start(Options options, Device& device);
  ~TierThreads() override;

  bool Submit(const TierJob& job) override;
  void TakeDone(std::vector<TierDone>* done) override;

 private:
  class Lane;
  explicit TierThreads(Options options, Device& device);
  Status Begin();
  // A copy's stream and buffer. On a GPU a block is gathered in device memory and crosses the bus
  // in one piece: layer by layer, 256 KiB each, takes a third longer.
  struct Path {
    std::shared_ptr<Stream> stream;
    Buffer whole;  // one block; empty on the CPU
  };
  Result<std::shared_ptr<Path>> MakePath();
  Status CopyHost(const TierJob& job, Path& path);
  Status CopyDisk(const TierJob& job, Path& path);
  // Copies between a pool block, whose layers lie apart, and contiguous `bytes`.
  Status Gather(int32_t block, std::byte* bytes, Path& path);
  Status Scatter(const std::byte* bytes, int32_t block, Path& path);
  std::byte* HostSlot(int32_t slot) const;

  Options options_;
  Device& device_;
  Buffer host_;
  Buffer bounce_memory_;
  std::span<std::byte> bounce_;  // the disk thread's: one slot
  struct Shared;
  std::unique_ptr<Shared> shared_;
  std::unique_ptr<Lane> host_lane_;
  std::unique_ptr<Lane> disk_lane_;
};

}  // namespace aisp
