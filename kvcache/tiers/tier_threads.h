// TierThreads: TierIo on two threads of its own, one for copies between pool and host memory, one
// for everything that touches the disk, so that a slow disk does not delay the host tier.
//
// The host tier is one allocation of MemoryKind::kHost (pinned, on a GPU), made at start. Copies
// run on a stream of the thread's and are awaited there. What is read from the pool was computed,
// and what is written into it is not used, before the engine hears of the end: no order between
// streams is needed.
//
// Submit and TakeDone: any thread. The destructor ends what is under way and forgets the rest. The
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
    size_t max_jobs = 1024;                     // that wait for each thread
    std::function<void()> on_done = {};         // on a thread of this, after each job
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
  // What a copy goes through. On a GPU a block is collected in device memory and crosses the bus in
  // one piece: layer by layer, 256 KiB each, it takes a third longer.
  struct Path {
    std::shared_ptr<Stream> stream;
    Buffer whole;  // of a block; nothing on the CPU
  };
  Result<std::shared_ptr<Path>> MakePath();
  Status CopyHost(const TierJob& job, Path& path);
  Status CopyDisk(const TierJob& job, Path& path);
  // Between a block of the pool, which lies layer by layer, and `bytes` in one piece.
  Status Gather(int32_t block, std::byte* bytes, Path& path);
  Status Scatter(const std::byte* bytes, int32_t block, Path& path);
  std::byte* HostSlot(int32_t slot) const;

  Options options_;
  Device& device_;
  Buffer host_;
  Buffer bounce_memory_;
  std::span<std::byte> bounce_;  // of the disk's thread: one slot
  struct Shared;
  std::unique_ptr<Shared> shared_;
  std::unique_ptr<Lane> host_lane_;
  std::unique_ptr<Lane> disk_lane_;
};

}  // namespace aisp
