#include "kvcache/transport/inproc.h"

#include <cstring>
#include <utility>
#include <vector>

#include "kvcache/transport/cookie.h"
#include "kvcache/transport/epoch_gate.h"

namespace aisp {
namespace {
constexpr size_t kScratchBytes = 1 << 20;
}

class InprocHub::Pool {
 public:
  explicit Pool(const KvRegion& region) : region_(region) {}

  uint64_t bytes() const { return region_.bytes; }

  // Copied by the host, one copy per lock, so that the owner's thread waits no longer than that.
  Status Copy(const std::byte* source, const BlockCopy& copy, Epoch epoch) {
    std::lock_guard lock(mutex_);
    AISP_RETURN_IF_ERROR(Check(copy, epoch));
    std::memcpy(region_.base + copy.dst_offset, source + copy.src_offset, copy.bytes);
    return {};
  }
  // Both pools are in GPU memory: separate copies would take longer to start than to run.
  // Synchronous, since the caller reports completion to the peer.
  Status CopyOnDevice(const std::byte* source, std::span<const BlockCopy> copies, Epoch epoch) {
    std::lock_guard lock(mutex_);
    ranges_.clear();
    for (const BlockCopy& copy : copies) {
      AISP_RETURN_IF_ERROR(Check(copy, epoch));
      if (copy.bytes > 0) ranges_.push_back({copy.src_offset, copy.dst_offset, copy.bytes});
    }
    if (stream_ == nullptr) {
      AISP_ASSIGN_OR_RETURN(stream_, region_.device->CreateStream());
    }
    AISP_RETURN_IF_ERROR(region_.device->CopyRanges(region_.base, source, ranges_, *stream_));
    return region_.device->Synchronize(*stream_);
  }
  bool on_device() const { return region_.device != nullptr; }
  void Allow(Epoch epoch, std::span<const BlockCopy> allowed) {
    std::lock_guard lock(mutex_);
    gate_.Allow(epoch, allowed);
  }
  void Revoke(Epoch epoch) {
    std::lock_guard lock(mutex_);
    gate_.Revoke(epoch);
  }
  // After this no byte lands in the region.
  void Close() {
    std::lock_guard lock(mutex_);
    gone_ = true;
  }
  bool gone() {
    std::lock_guard lock(mutex_);
    return gone_;
  }

 private:
  Status Check(const BlockCopy& copy, Epoch epoch) const {
    if (gone_) return Unavailable("the pool's owner is gone");
    return gate_.Check(epoch, copy.dst_offset, copy.bytes);
  }

  const KvRegion region_;
  std::mutex mutex_;
  std::unique_ptr<Stream> stream_;
  std::vector<CopyRange> ranges_;  // scratch memory
  EpochGate gate_;
  bool gone_ = false;
};

InprocHub::InprocHub() : nonce_(NewCookie().ToHex()) {}
InprocHub::~InprocHub() = default;

std::string InprocHub::Add(const std::shared_ptr<Pool>& pool) {
  std::lock_guard lock(mutex_);
  std::string descriptor = nonce_ + "/" + std::to_string(++last_);
  pools_.emplace(descriptor, pool);
  return descriptor;
}

void InprocHub::Remove(const std::string& descriptor) {
  std::lock_guard lock(mutex_);
  pools_.erase(descriptor);
}

std::shared_ptr<InprocHub::Pool> InprocHub::Find(std::string_view descriptor) {
  std::lock_guard lock(mutex_);
  const auto it = pools_.find(descriptor);
  return it == pools_.end() ? nullptr : it->second;
}

class InprocTransport::HubPeer final : public MemoryTransport::Peer {
 public:
  explicit HubPeer(std::shared_ptr<InprocHub::Pool> pool)
      : pool_(std::move(pool)), scratch_(kScratchBytes) {}
  uint64_t bytes() const override { return pool_->bytes(); }
  Status Copy(const std::byte* source, std::span<const BlockCopy> copies, Epoch epoch) override {
    if (pool_->on_device()) return pool_->CopyOnDevice(source, copies, epoch);
    for (const BlockCopy& copy : copies) AISP_RETURN_IF_ERROR(pool_->Copy(source, copy, epoch));
    return {};
  }
  Status Alive() override {
    if (pool_->gone()) return Unavailable("the pool's owner is gone; connect to its successor");
    return {};
  }
  Result<double> Measure(Duration limit) override { return MeasureMemcpy(scratch_, limit); }

 private:
  const std::shared_ptr<InprocHub::Pool> pool_;
  std::vector<std::byte> scratch_;
};

InprocTransport::InprocTransport(InprocHub* hub, const Options& options)
    : MemoryTransport({.name = "inproc",
                       .crosses_process = false,
                       .crosses_host = false,
                       .owner_copies = true,
                       .rank = 100},
                      options.max_writes),
      hub_(hub) {}

InprocTransport::~InprocTransport() {
  StopWriting();
  if (!descriptor_.empty()) hub_->Remove(descriptor_);
  if (pool_ != nullptr) pool_->Close();
}

Status InprocTransport::Register(const KvRegion& region) {
  AISP_RETURN_IF_ERROR(MemoryTransport::Register(region));
  pool_ = std::make_shared<InprocHub::Pool>(region);
  return {};
}

Result<std::string> InprocTransport::Descriptor() {
  if (pool_ == nullptr) return FailedPrecondition("register a pool before offering it");
  if (descriptor_.empty()) descriptor_ = hub_->Add(pool_);
  return descriptor_;
}

Result<std::shared_ptr<MemoryTransport::Peer>> InprocTransport::Open(std::string_view descriptor,
                                                                     Duration) {
  std::shared_ptr<InprocHub::Pool> pool = hub_->Find(descriptor);
  if (pool == nullptr)
    return Unavailable("no such pool in this process: its owner is gone or is another process");
  return std::make_shared<HubPeer>(std::move(pool));
}

void InprocTransport::AllowEpoch(Epoch epoch, std::span<const BlockCopy> allowed) {
  if (pool_ != nullptr) pool_->Allow(epoch, allowed);
}

bool InprocTransport::RevokeEpoch(Epoch epoch) {
  if (pool_ != nullptr) pool_->Revoke(epoch);
  return true;
}

}  // namespace aisp
