#include "kvcache/transport/memory_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace aisp {

MemoryTransport::MemoryTransport(TransportCapabilities capabilities, size_t max_writes)
    : capabilities_(std::move(capabilities)), completions_(max_writes) {}

Status MemoryTransport::Register(const KvRegion& region) {
  if (region_.base != nullptr)
    return FailedPrecondition("a pool is already registered with this transport");
  if (region.base == nullptr || region.bytes == 0)
    return InvalidArgument("the pool to register is empty");
  region_ = region;
  return {};
}

class MemoryTransport::ReachedPeer final : public KvTransport::Reached {
 public:
  explicit ReachedPeer(std::shared_ptr<Peer> of) : peer(std::move(of)) {}
  Result<double> Measure(Duration timeout) override {
    return peer->Measure(std::min<Duration>(timeout, std::chrono::milliseconds(2)));
  }
  std::string token() const override { return peer->token(); }
  const std::shared_ptr<Peer> peer;
};

Result<std::unique_ptr<KvTransport::Reached>> MemoryTransport::Reach(std::string_view descriptor,
                                                                     Duration timeout) {
  if (region_.base == nullptr)
    return FailedPrecondition("register a pool before connecting: writes come from it");
  AISP_ASSIGN_OR_RETURN(std::shared_ptr<Peer> peer, Open(descriptor, timeout));
  return std::make_unique<ReachedPeer>(std::move(peer));
}

KvPeerId MemoryTransport::Add(std::unique_ptr<Reached> reached) {
  if (worker_ == nullptr) {
    worker_ = std::make_unique<CopyWorker>("kv-" + capabilities_.name, region_.base, &completions_);
  }
  const KvPeerId id(++last_peer_);
  peers_.emplace(id, static_cast<ReachedPeer&>(*reached).peer);
  return id;
}

void MemoryTransport::Disconnect(KvPeerId peer) {
  if (peers_.erase(peer) == 0) return;
  worker_->Remove(peer, Error{Code::kUnavailable, "the peer was disconnected before this write"});
}

Result<std::shared_ptr<MemoryTransport::Peer>> MemoryTransport::Find(KvPeerId peer) const {
  const auto it = peers_.find(peer);
  if (it == peers_.end())
    return NotFound(fmt::format("{} peer {} is not connected", capabilities_.name, peer.value));
  return it->second;
}

Result<WriteId> MemoryTransport::Write(KvPeerId peer, std::span<const BlockCopy> copies,
                                       Epoch epoch) {
  AISP_ASSIGN_OR_RETURN(const std::shared_ptr<Peer> target, Find(peer));
  AISP_RETURN_IF_ERROR(CheckCopies(copies, region_.bytes, target->bytes()));
  AISP_RETURN_IF_ERROR(target->Alive());
  AISP_ASSIGN_OR_RETURN(const WriteId id, completions_.Admit(peer));
  worker_->Push(id, peer, epoch, copies, target);
  return id;
}

// Waking early is for GPUs: on a CPU a spinning thread takes time from what computes.
void MemoryTransport::Rouse(KvPeerId peer) {
  const auto it = peers_.find(peer);
  if (it != peers_.end() && capabilities_.notes) worker_->Rouse(it->second);
}

void MemoryTransport::CancelWrites(KvPeerId peer, Epoch epoch) {
  if (worker_ != nullptr) worker_->Cancel(peer, epoch);
}

bool MemoryTransport::Leave(KvPeerId peer, std::string_view note) {
  const auto it = peers_.find(peer);
  return it != peers_.end() && it->second->Leave(note);
}

double MemoryTransport::Peer::MeasureMemcpy(std::span<std::byte> scratch, Duration limit) {
  const std::vector<std::byte> source(scratch.size(), std::byte{0x5a});
  const auto start = std::chrono::steady_clock::now();
  Duration best = Duration::max();
  // The first rounds fault pages in.
  for (auto now = start; now - start < limit;) {
    std::memcpy(scratch.data(), source.data(), source.size());
    const auto then = std::chrono::steady_clock::now();
    best = std::min<Duration>(best, std::max<Duration>(then - now, Duration(1)));
    now = then;
  }
  return static_cast<double>(source.size()) / ToSeconds(best);
}

}  // namespace aisp
