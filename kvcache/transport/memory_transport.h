// MemoryTransport: the writer's side of transports that map a peer's pool (inproc, shm, cuda_ipc).
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "kvcache/transport/completion_queue.h"
#include "kvcache/transport/copy_worker.h"
#include "kvcache/transport/kv_transport.h"

namespace aisp {

class MemoryTransport : public KvTransport {
 public:
  // A peer as its transport sees it.
  class Peer : public CopyTarget {
   public:
    // An error if writes can no longer be queued, e.g. the owner is gone.
    virtual Status Alive() = 0;
    // Bytes per second into the peer's memory outside its pool, within `limit` or one copy; 0:
    // unknown.
    virtual Result<double> Measure(Duration limit) = 0;
    // As KvTransport::Reached.
    virtual std::string token() const { return ""; }
    // As KvTransport.
    virtual bool Leave(std::string_view /*note*/) { return false; }

   protected:
    // Measures memcpy into `scratch`; the best of several rounds.
    static double MeasureMemcpy(std::span<std::byte> scratch, Duration limit);
  };

  const TransportCapabilities& capabilities() const override { return capabilities_; }
  Status Register(const KvRegion& region) override;
  Result<std::unique_ptr<Reached>> Reach(std::string_view descriptor, Duration timeout) override;
  KvPeerId Add(std::unique_ptr<Reached> reached) override;
  void Disconnect(KvPeerId peer) override;
  Result<WriteId> Write(KvPeerId peer, std::span<const BlockCopy> copies, Epoch epoch) override;
  void Rouse(KvPeerId peer) override;
  void CancelWrites(KvPeerId peer, Epoch epoch) override;
  bool Leave(KvPeerId peer, std::string_view note) override;
  void Progress() override {}
  size_t Poll(std::span<WriteCompletion> out) override { return completions_.Poll(out); }
  void SetWaker(std::function<void()> wake) override { completions_.SetWaker(std::move(wake)); }

 protected:
  MemoryTransport(TransportCapabilities capabilities, size_t max_writes);
  // Any thread, as Reach.
  virtual Result<std::shared_ptr<Peer>> Open(std::string_view descriptor, Duration timeout) = 0;
  const KvRegion& region() const { return region_; }
  // Ends the progress thread; for the destructors of derived classes.
  void StopWriting() { worker_.reset(); }

 private:
  class ReachedPeer;
  Result<std::shared_ptr<Peer>> Find(KvPeerId peer) const;

  const TransportCapabilities capabilities_;
  KvRegion region_;
  std::unordered_map<KvPeerId, std::shared_ptr<Peer>> peers_;
  uint64_t last_peer_ = 0;
  CompletionQueue completions_;
  std::unique_ptr<CopyWorker> worker_;  // from the first Connect on
};

}  // namespace aisp
