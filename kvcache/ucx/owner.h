// Owner: the owner's side of the ucx transport. It accepts writers, fetches what they offer into
// the pool, and acknowledges each write once it is complete.
//
// A piece is fetched only while its epoch is allowed, and UCX writes only where this side asked it
// to. So a revoked epoch is fenced once its fetches in flight have ended; Revoke reports whether
// they have. A connection that violates the protocol, has the wrong cookie or stalls a fetch for
// `stall_timeout` is closed, which ends its fetches.
//
// Pieces for a pool in device memory are received in a PinnedRing and copied from there by the
// device; they count as fetches until that copy has ended.
//
// If it has mapped the pool of a writer on this host, it copies instead; such a copy ends within
// the handling of its message.
//
// Allow and Revoke: any thread. All else: the transport's thread.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "kvcache/transport/epoch_gate.h"
#include "kvcache/transport/kv_transport.h"
#include "kvcache/ucx/library.h"
#include "kvcache/ucx/mapped_memory.h"
#include "kvcache/ucx/pinned_ring.h"
#include "kvcache/ucx/wire.h"

namespace aisp::ucx {

class Owner {
 public:
  struct Options {
    Duration stall_timeout = std::chrono::seconds(10);
    size_t max_writers = 256;
    bool map_memory = true;  // of writers on this host
    // Runs a function on the transport's thread.
    std::function<void(std::function<void()>)> post;
  };
  Owner(Worker* worker, const KvRegion& region, const Options& options);
  ~Owner();

  // Starts accepting writers; returns the port.
  Result<uint16_t> Listen(const std::string& address, uint16_t port);
  const Hash128& cookie() const { return cookie_; }

  void Allow(Epoch epoch, std::span<const BlockCopy> allowed);
  // True: nothing of the epoch can land any more.
  bool Revoke(Epoch epoch);

  // Handlers of UCX messages.
  void OnHello(ucp_ep_h from, const void* header, size_t bytes);
  ucs_status_t OnPiece(ucp_ep_h from, const void* header, size_t header_bytes, void* data,
                       size_t bytes, bool rendezvous);
  ucs_status_t OnProbe(ucp_ep_h from, const void* header, size_t header_bytes, void* data,
                       size_t bytes, bool rendezvous);
  void OnMemory(ucp_ep_h from, const void* header, size_t bytes);
  void OnBatch(ucp_ep_h from, const void* header, size_t header_bytes, const void* data,
               size_t bytes, bool rendezvous);
  void OnBroken(ucp_ep_h endpoint);

  // Closes connections marked for closing, and moves pieces between ring and pool. Not from within
  // UCX's callbacks.
  void Serve();
  // Serve has work soon that wakes nobody: the device is copying.
  bool copying() const { return !storing_.empty(); }
  // When Serve has work even without events.
  Instant deadline() const;
  bool empty() const { return connections_.empty(); }
  // Closes all connections.
  void CloseAll();
  // Fetches whose callbacks are pending.
  size_t fetching() const { return fetching_; }

 private:
  struct OpenWrite {
    uint32_t unbegun = 0;  // pieces not yet received
    uint32_t pieces = 0;   // neither landed nor refused
    Code code = Code::kOk;
  };
  struct Connection {
    ucp_ep_h endpoint = nullptr;
    bool greeted = false;
    bool broken = false;                        // to be closed, or closed already
    bool asked = false;                         // its memory mapping was requested
    std::shared_ptr<const PoolMapping> memory;  // the writer's pool, once mapped
    std::unordered_map<uint64_t, OpenWrite> writes;
    uint32_t fetching = 0;
    Instant deadline = kNever;
  };
  struct Fetch;

  static void OnConnection(ucp_conn_request_h request, void* self);
  size_t Writers() const;
  // Ungreeted connections keep no writer out: beyond a limit the oldest is closed.
  void MakeRoomForAStranger();
  // Null once it is broken.
  std::shared_ptr<Connection> Find(ucp_ep_h endpoint);
  // False: the piece violates the protocol.
  static bool Admit(Connection& connection, const Piece& piece, size_t bytes);
  void Count(const Fetch& fetch);
  // Starts a counted fetch.
  ucs_status_t Start(std::unique_ptr<Fetch> fetch);
  // Starts fetches that wait for room in the ring.
  void StartWaiting();
  void Ended(std::unique_ptr<Fetch> fetch, ucs_status_t status);
  // Has the device copy a fetched piece from the ring to the pool.
  void Store(std::unique_ptr<Fetch> fetch);
  void EndStored();
  void Settle(const Fetch& fetch, Code code);
  static Code Verdict(const Fetch& fetch, ucs_status_t status);
  static void PieceEnded(Connection& connection, const Piece& piece, Code code);
  // The ranges of a batch; empty: it violates the protocol.
  static std::vector<Range> Unpack(const Connection& connection, const Batch& batch,
                                   const void* data, size_t bytes);
  Code CopyRange(const PoolMapping& from, const Range& range, const Batch& batch);

  Worker* const worker_;
  const KvRegion region_;
  const Options options_;
  const Hash128 cookie_;
  const SteadyClock clock_;
  ucp_listener_h listener_ = nullptr;
  std::unordered_map<ucp_ep_h, std::shared_ptr<Connection>> connections_;
  std::vector<std::byte> waste_;                // sink for probes
  std::optional<PinnedRing> ring_;              // for a pool in device memory
  std::deque<std::unique_ptr<Fetch>> waiting_;  // for room in the ring
  std::deque<std::unique_ptr<Fetch>> storing_;  // being copied to the pool
  size_t fetching_ = 0;
  std::mutex mutex_;  // guards the next two
  EpochGate gate_;
  std::unordered_map<Epoch, uint32_t> under_way_;  // fetches into the pool, and copies, in flight
  std::unique_ptr<MemoryMapper> mapper_;           // created with the first Memory message
};

}  // namespace aisp::ucx
