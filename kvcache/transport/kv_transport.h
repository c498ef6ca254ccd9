// KvTransport: moving KV blocks from one process's pool into another's, one-sided.
//
// The owner of a pool (decode) registers it once and offers Descriptor() to its peers; the writer
// (prefill) connects and writes. Implementations: inproc (same process), shm (same host), cuda_ipc
// (GPUs of one host), tcp (any host), ucx (what UCX has between the two).
//
// Threads: all methods but Reach are called by the one engine thread of the process side that uses
// the object; an implementation may own a progress thread. Nothing blocks longer than a memcpy of
// what it was given, except Reach and what it gives (bounded, see below), which belong elsewhere: a
// peer that cannot be reached must not hold up the others.
//
// Completion means remote completion: when Poll reports a write, its bytes lie in the peer's pool
// and no later write of that id can land. Writes of one peer complete in order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/result.h"
#include "kernels/device/device.h"

namespace aisp {

// Memory that peers may write. `handle` is how another process can get at it (a memfd on Linux), -1
// when it cannot. `device` is set where the host cannot touch it: only that device's copies reach
// it, and `buffer` is what it exports to other processes; both outlive the transport.
struct KvRegion {
  std::byte* base = nullptr;
  size_t bytes = 0;
  int handle = -1;
  Device* device = nullptr;
  const Buffer* buffer = nullptr;
};

// One contiguous copy: local pool offset -> peer pool offset.
struct BlockCopy {
  uint64_t src_offset = 0;
  uint64_t dst_offset = 0;
  uint64_t bytes = 0;
};

using KvPeerId = StrongId<struct KvPeerTag, uint64_t>;
using WriteId = StrongId<struct WriteTag, uint64_t>;

struct WriteCompletion {
  WriteId id;
  Epoch epoch;
  Status status;  // error: none, some or all of the bytes may have landed
};

struct TransportCapabilities {
  std::string name;  // "inproc", "shm", "tcp", ...
  bool crosses_process = false;
  bool crosses_host = false;
  // True when the owner's side performs the copy and checks the epoch, so that RevokeEpoch alone
  // fences, at once or soon, whatever the writer does. False: a write that was started can land
  // until the writer acknowledges or is dead.
  bool owner_copies = false;
  int rank = 0;  // greater is faster by design; select.h tries them in this order
};

class KvTransport {
 public:
  virtual ~KvTransport() = default;
  virtual const TransportCapabilities& capabilities() const = 0;

  // The pool that this process owns. Once, before Descriptor or Connect. It is the source of Write
  // and the target of peers.
  virtual Status Register(const KvRegion& region) = 0;
  // What a writer needs to reach this pool; opaque bytes for TransportOffer. Starts listening where
  // that is needed.
  virtual Result<std::string> Descriptor() = 0;

  // Writer: a peer's pool that was reached (mapped, or its owner greeted) and belongs to nobody
  // yet.
  class Reached {
   public:
    virtual ~Reached() = default;
    // Bytes per second towards the peer's host, measured with memory that is no pool; 0 where a
    // transport cannot tell. Blocks at most `timeout`; an error means that the lane does not work.
    virtual Result<double> Measure(Duration /*timeout*/) { return 0.0; }
    // What the owner called this connection, where it maps memory (WriterWatcher); else "".
    virtual std::string token() const { return ""; }
  };
  // Writer: fails within `timeout` with the reason (another host, no permission, gone). Changes
  // nothing of this object: any thread, several at a time, as long as this lives.
  virtual Result<std::unique_ptr<Reached>> Reach(std::string_view descriptor, Duration timeout) = 0;
  // Writer: takes in what this transport reached; it can be written from now on.
  virtual KvPeerId Add(std::unique_ptr<Reached> reached) = 0;
  // Both; blocks.
  Result<KvPeerId> Connect(std::string_view descriptor, Duration timeout) {
    AISP_ASSIGN_OR_RETURN(std::unique_ptr<Reached> reached, Reach(descriptor, timeout));
    return Add(std::move(reached));
  }
  // Writer: forgets the peer; its uncompleted writes complete with an error first.
  virtual void Disconnect(KvPeerId peer) = 0;

  // Writer: queues the copies, whose targets must not overlap, as one write of `epoch`; completes
  // in Poll. The source bytes must not change until then. RESOURCE_EXHAUSTED when the bounded queue
  // is full (retry after Poll), OUT_OF_RANGE for offsets outside either region, UNAVAILABLE once
  // the peer is known to be gone.
  virtual Result<WriteId> Write(KvPeerId peer, std::span<const BlockCopy> copies, Epoch epoch) = 0;
  // Writer: drops the epoch's queued writes; what is being copied right now completes. Each ends in
  // Poll.
  virtual void CancelWrites(KvPeerId peer, Epoch epoch) = 0;

  // Owner with owner_copies: only writes of allowed epochs, and only inside `allowed` (offset,
  // bytes), are copied.
  virtual void AllowEpoch(Epoch epoch, std::span<const BlockCopy> allowed) = 0;
  // Owner: when the grant is given up, and when the writer has said that all is written, before the
  // bytes are read (it also makes what a thread of the transport copied visible to this one).
  // Returns true when no write of `epoch` can land after the call. False with owner_copies: a copy
  // is under way on this side, ask again soon; without: await the writer's word or its death.
  virtual bool RevokeEpoch(Epoch epoch) = 0;

  // Makes progress on the calling thread where an implementation has no thread of its own.
  virtual void Progress() = 0;
  // Takes finished writes, at most out.size(); returns how many.
  virtual size_t Poll(std::span<WriteCompletion> out) = 0;
  // Called (from any thread) when Poll has something; wakes the engine thread. Set once, before
  // Connect.
  virtual void SetWaker(std::function<void()> wake) = 0;
};

}  // namespace aisp
