// Owner: the owner's side of the ucx transport. It accepts writers, fetches what they offer into
// the pool, and acknowledges each write once all of it is there.
//
// A piece is fetched only while its epoch is allowed, and UCX writes only where this side asked it
// to. So an epoch that was revoked is fenced once the fetches of it that are under way have ended;
// Revoke says whether they have. Whoever breaks the protocol, has the wrong cookie or lets a fetch
// stand for `stall_timeout` is disconnected, which ends its fetches.
//
// Of a writer of this host whose pool it has mapped it copies instead; those copies have ended when
// the message has been handled.
//
// Allow and Revoke: any thread. All else: the transport's thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "kvcache/transport/epoch_gate.h"
#include "kvcache/transport/kv_transport.h"
#include "kvcache/ucx/library.h"
#include "kvcache/ucx/mapped_memory.h"
#include "kvcache/ucx/wire.h"

namespace aisp::ucx {

class Owner {
 public:
  struct Options {
    Duration stall_timeout = std::chrono::seconds(10);
    size_t max_writers = 256;
    bool map_memory = true;  // of writers of this host
    // Runs it on the transport's thread.
    std::function<void(std::function<void()>)> post;
  };
  Owner(Worker* worker, const KvRegion& region, const Options& options);
  ~Owner();

  // Accepts writers from now on; the port that it got.
  Result<uint16_t> Listen(const std::string& address, uint16_t port);
  const Hash128& cookie() const { return cookie_; }

  void Allow(Epoch epoch, std::span<const BlockCopy> allowed);
  // True: nothing of it can land any more.
  bool Revoke(Epoch epoch);

  // Messages, as UCX hands them over.
  void OnHello(ucp_ep_h from, const void* header, size_t bytes);
  ucs_status_t OnPiece(ucp_ep_h from, const void* header, size_t header_bytes, void* data,
                       size_t bytes, bool rendezvous);
  ucs_status_t OnProbe(ucp_ep_h from, const void* header, size_t header_bytes, void* data,
                       size_t bytes, bool rendezvous);
  void OnMemory(ucp_ep_h from, const void* header, size_t bytes);
  void OnBatch(ucp_ep_h from, const void* header, size_t header_bytes, const void* data,
               size_t bytes, bool rendezvous);
  void OnBroken(ucp_ep_h endpoint);

  // Closes what has to be closed. Not from within UCX's callbacks.
  void Serve();
  // When Serve has something to do though nothing happens.
  Instant deadline() const;
  bool empty() const { return connections_.empty(); }
  // Disconnects everybody.
  void CloseAll();
  // Fetches whose callbacks are still to come.
  size_t fetching() const { return fetching_; }

 private:
  struct OpenWrite {
    uint32_t unbegun = 0;  // pieces that are still to come
    uint32_t pieces = 0;   // that have neither landed nor been refused
    Code code = Code::kOk;
  };
  struct Connection {
    ucp_ep_h endpoint = nullptr;
    bool greeted = false;
    bool broken = false;                        // to be closed, or closed already
    bool asked = false;                         // to map its memory
    std::shared_ptr<const PoolMapping> memory;  // the writer's pool, once it is mapped
    std::unordered_map<uint64_t, OpenWrite> writes;
    uint32_t fetching = 0;
    Instant deadline = kNever;
  };
  struct Fetch;

  static void OnConnection(ucp_conn_request_h request, void* self);
  size_t Writers() const;
  // Those that have not greeted keep no writer out: the oldest goes where they are many.
  void MakeRoomForAStranger();
  // Null once it is broken.
  std::shared_ptr<Connection> Find(ucp_ep_h endpoint);
  // False: the piece breaks the protocol.
  static bool Admit(Connection& connection, const Piece& piece, size_t bytes);
  ucs_status_t Start(std::unique_ptr<Fetch> fetch, void* data);
  void Ended(std::unique_ptr<Fetch> fetch, ucs_status_t status);
  static Code Verdict(const Fetch& fetch, ucs_status_t status);
  static void PieceEnded(Connection& connection, const Piece& piece, Code code);
  // The ranges of a batch; empty: it breaks the protocol.
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
  std::vector<std::byte> waste_;  // where probes go
  size_t fetching_ = 0;
  std::mutex mutex_;  // of the two below
  EpochGate gate_;
  std::unordered_map<Epoch, uint32_t> under_way_;  // fetches into the pool, and copies
  std::unique_ptr<MemoryMapper> mapper_;           // from the first memory on
};

}  // namespace aisp::ucx
