// The tcp transport: any reachable host. The owner listens, copies what writers send into its pool
// and checks the epoch of every byte (owner_copies), so RevokeEpoch fences at once; its
// acknowledgement is the remote completion.
//
// Descriptor: "tcp1 <address> <port> <cookie>". The cookie is random per owner, so that a successor
// on the same port refuses a stale descriptor. Payload is not encrypted: the KV network must be
// trusted.
#pragma once

#include <memory>
#include <string>

#include "kvcache/transport/completion_queue.h"
#include "kvcache/transport/kv_transport.h"
#include "kvcache/transport/tcp_owner.h"
#include "kvcache/transport/tcp_writer.h"

namespace aisp {

class TcpTransport final : public KvTransport {
 public:
  struct Options {
    std::string bind_address = "127.0.0.1";  // numeric; "0.0.0.0" or "::" for all interfaces
    uint16_t port = 0;                       // 0: any free one
    std::string advertise_address;           // what peers connect to; empty: bind_address
    size_t max_writes = 4096;
    size_t max_writers = 256;
    // Silence with a write in flight after which a peer counts as gone.
    Duration stall_timeout = std::chrono::seconds(10);
    TcpChecksums checksums = TcpChecksums::kBetweenMachines;
  };
  explicit TcpTransport(const Options& options);
  ~TcpTransport() override;

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
  const TransportCapabilities capabilities_;
  const Options options_;
  KvRegion region_;
  CompletionQueue completions_;
  std::unordered_map<KvPeerId, uint64_t> pool_bytes_;  // of connected peers
  uint64_t last_peer_ = 0;
  std::unique_ptr<TcpOwner> owner_;    // from the first Descriptor on
  std::unique_ptr<TcpWriter> writer_;  // from Register on
};

}  // namespace aisp
