// Writer: the writer's side of the ucx transport. It offers queued writes to their owners, piece by
// piece, and completes each when its owner has acknowledged it and UCX no longer needs the source
// bytes. Pieces of a pool in device memory pass through a PinnedRing.
//
// A peer without progress for `stall_timeout` while something is in flight has failed: all its
// writes complete with an error and its connection is closed. The same holds for one that violates
// the protocol or closes the connection. The transport's thread, except Peer::Alive.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "kvcache/transport/completion_queue.h"
#include "kvcache/transport/kv_transport.h"
#include "kvcache/ucx/address.h"
#include "kvcache/ucx/library.h"
#include "kvcache/ucx/mapped_memory.h"
#include "kvcache/ucx/pinned_ring.h"
#include "kvcache/ucx/wire.h"

namespace aisp::ucx {

struct WriteJob {
  WriteId id;
  Epoch epoch;
  std::vector<BlockCopy> copies;
};

class Writer {
 public:
  struct Options {
    Duration stall_timeout = std::chrono::seconds(10);
    bool checksum = true;
    const MemoryOffer* memory = nullptr;  // for owners on this host; may be null
  };
  class Peer;
  using PeerPtr = std::shared_ptr<Peer>;

  Writer(Worker* worker, const KvRegion& source, CompletionQueue* completions,
         const Options& options);
  ~Writer();

  // `greeted` is called once: with the size of the peer's pool, or an error.
  PeerPtr Connect(const SocketAddress& address, const Hash128& cookie,
                  std::function<void(Result<uint64_t>)> greeted);
  // Sends bytes that the owner drops; `done` is called once. One at a time, before any write.
  void Measure(const PeerPtr& peer, uint64_t bytes, std::function<void(Status)> done);
  void Enqueue(const PeerPtr& peer, const WriteJob& job);
  // Writes of the epoch that were not offered yet complete in order with CANCELLED.
  void Cancel(const PeerPtr& peer, Epoch epoch);
  // All its writes complete with `why`; then `done` is called.
  void Remove(const PeerPtr& peer, const Error& why, std::function<void()> done);

  void OnHelloReply(ucp_ep_h from, const void* header, size_t bytes);
  void OnAck(ucp_ep_h from, const void* header, size_t bytes);
  void OnProbeReply(ucp_ep_h from);
  void OnMemoryReply(ucp_ep_h from, const void* header, size_t bytes);
  void OnLanded(ucp_ep_h from, const void* header, size_t bytes);
  void OnBroken(ucp_ep_h endpoint, ucs_status_t status);

  // Offers, completes and closes what it can. Not from within UCX's callbacks.
  void Serve();
  Instant deadline() const;
  // Serve has work soon that wakes nobody: the device is copying.
  bool copying() const { return !copying_.empty(); }
  void RemoveAll(const Error& why);
  bool empty() const { return peers_.empty(); }

 private:
  struct Entry {
    WriteId id;
    Epoch epoch;
    std::vector<BlockCopy> pieces;
    size_t offered = 0;
    size_t landed = 0;  // of batches
    uint32_t under_way = 0;
    bool over = false;  // acknowledged, cancelled, or nothing to write
    Status verdict;
  };
  struct Sending;
  struct Batched {
    WriteId write;  // value 0: a measurement
    uint32_t count = 0;
    uint64_t bytes = 0;
  };

  PeerPtr Find(ucp_ep_h endpoint) const;
  void Moved(Peer& peer) const;
  void Offer(const PeerPtr& peer);
  // False: the ring has no room now.
  Result<bool> OfferPiece(const PeerPtr& peer, Entry& entry);
  // Sends the pieces that the device has copied.
  void SendCopied();
  Status OfferBatch(Peer& peer, Entry& entry);
  uint64_t Checksum(const std::byte* payload, uint64_t bytes) const;
  Status SendPiece(std::unique_ptr<Sending> sending, const std::byte* payload);
  Status SendPayload(std::unique_ptr<Sending> sending, unsigned id, const void* header,
                     size_t header_bytes, const std::byte* payload, uint64_t bytes);
  void Sent(Sending& sending, ucs_status_t status);
  void CompleteFinished(Peer& peer);
  // True: nothing of the peer is left.
  bool Finish(Peer& peer);

  Worker* const worker_;
  const KvRegion source_;
  CompletionQueue* const completions_;
  const Options options_;
  const SteadyClock clock_;
  std::vector<PeerPtr> peers_;
  std::optional<PinnedRing> ring_;  // for a pool in device memory
  std::deque<std::unique_ptr<Sending>> copying_;
};

// A connected owner. The engine thread keeps it as a handle and calls only Alive.
class Writer::Peer {
 public:
  // UNAVAILABLE: it has failed.
  Status Alive() const {
    std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  friend class Writer;
  void Break(const Error& why) {
    std::lock_guard lock(mutex_);
    if (failure_) failure_ = tl::unexpected(why);
  }

  ucp_ep_h endpoint = nullptr;  // null once closed
  std::function<void(Result<uint64_t>)> greeted;
  std::function<void(Status)> measured;
  std::deque<Entry> entries;  // in order of Write
  uint32_t under_way = 0;     // sends that UCX has not completed
  std::vector<std::byte> probe;
  uint64_t pool_bytes = 0;      // the owner's
  Instant map_by = kNever;      // deadline of the owner's reply to Memory
  bool mapped = false;          // the owner has mapped our pool: writes are sent in batches
  std::deque<Batched> batches;  // not landed yet, in order
  uint64_t batched_bytes = 0;
  Instant deadline = kNever;
  bool removed = false;
  std::function<void()> done;
  mutable std::mutex mutex_;
  Status failure_;
};

}  // namespace aisp::ucx
