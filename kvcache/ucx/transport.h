// The ucx transport: KvTransport over UCX (https://openucx.org), using whatever UCX has between the
// two hosts: RDMA, shared memory, tcp (UCX_TLS and its other variables choose).
//
// Descriptor: "ucx1 <address> <port> <cookie>". The cookie is random per owner, so that a successor
// on the same port refuses a stale descriptor. The owner fetches each piece from the writer's
// memory (owner_copies), so no proof of a writer's death is needed; but a fetch in flight cannot be
// stopped, so RevokeEpoch may be false for a moment (kv_transport.h).
//
// If both processes are on one host and the writer's pool is a memfd, the owner maps that pool and
// copies from it (mapped_memory.h); UCX then carries only messages.
//
// Threads: as in KvTransport. Owner, Writer and all of UCX belong to the thread kv-ucx; other
// threads post to it, except for epochs, which have their own lock (owner.h).
//
// Pieces of a pool in device memory pass through page-locked memory (pinned_ring.h). Payload is not
// encrypted: the KV network must be trusted.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/threads.h"
#include "kvcache/transport/completion_queue.h"
#include "kvcache/transport/kv_transport.h"
#include "kvcache/transport/ucx_open.h"
#include "kvcache/ucx/library.h"
#include "kvcache/ucx/mapped_memory.h"
#include "kvcache/ucx/owner.h"
#include "kvcache/ucx/writer.h"

namespace aisp::ucx {

class UcxTransport final : public KvTransport {
 public:
  static Result<std::unique_ptr<KvTransport>> Open(const UcxOptions& options);
  ~UcxTransport() override;

  const TransportCapabilities& capabilities() const override { return capabilities_; }
  Status Register(const KvRegion& region) override;
  Result<std::string> Descriptor() override;
  Result<std::unique_ptr<Reached>> Reach(std::string_view descriptor, Duration timeout) override;
  KvPeerId Add(std::unique_ptr<Reached> reached) override;
  void Disconnect(KvPeerId peer) override;
  Result<WriteId> Write(KvPeerId peer, std::span<const BlockCopy> copies, Epoch epoch) override;
  void CancelWrites(KvPeerId peer, Epoch epoch) override;
  void AllowEpoch(Epoch epoch, std::span<const BlockCopy> allowed) override;
  bool RevokeEpoch(Epoch epoch) override;
  void Progress() override {}
  size_t Poll(std::span<WriteCompletion> out) override { return completions_.Poll(out); }
  void SetWaker(std::function<void()> wake) override { completions_.SetWaker(std::move(wake)); }

 private:
  class ReachedPool;
  struct Connected {
    Writer::PeerPtr handle;
    uint64_t pool_bytes = 0;
  };
  UcxTransport(const UcxOptions& options, std::unique_ptr<Worker> worker, Waker waker);
  void SetHandler(MessageId id, ucp_am_recv_callback_t handler);
  void SetHandlers();
  void SetOwnersHandlers();
  void SetWritersHandlers();
  // Drops a new connection that is not wanted.
  void Forget(Writer::PeerPtr peer);
  // Runs `what` on the transport's thread, soon.
  void Post(std::function<void()> what);
  // The same, and waits for its end.
  void Call(const std::function<void()>& what);
  void Run();
  void RunPosted();
  void Sleep();
  void Shut();

  const TransportCapabilities capabilities_;
  const UcxOptions options_;
  const std::unique_ptr<Worker> worker_;
  const Waker waker_;
  const SteadyClock clock_;
  CompletionQueue completions_;
  KvRegion region_;
  std::unique_ptr<MemoryOffer> memory_;  // null: this pool cannot be mapped
  std::unique_ptr<Owner> owner_;         // this and the next: from Register on, used by the thread
  std::unique_ptr<Writer> writer_;
  std::string descriptor_;
  std::unordered_map<KvPeerId, Connected> peers_;
  uint64_t last_peer_ = 0;
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;
  std::atomic<bool> stop_{false};
  Thread thread_;  // from Register on
};

}  // namespace aisp::ucx
