// KvTransport: one-sided writes of KV blocks from one process's pool into another's.
//
// The owner of a pool (decode) registers it once and gives Descriptor() to its peers; the writer
// (prefill) connects and writes. Implementations: inproc (same process), shm (same host), cuda_ipc
// (GPUs of one host), tcp (any host), ucx (whatever UCX supports between the two).
//
// Threads: all methods but Reach are called by one engine thread; an implementation may own a
// progress thread. Nothing blocks longer than a memcpy of its input, except Reach and Reached,
// whose waits are bounded by a timeout: call them on another thread, so that an unreachable peer
// does not delay others.
//
// Completion means remote completion: when Poll reports a write, its bytes are in the peer's pool
// and no later write of that id can land. Writes to one peer complete in order.
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

// Memory that peers may write. `handle` gives other processes access (a memfd on Linux), -1: none.
// `device` is set if only that device can copy it; `buffer` is then exported to other processes.
// Both outlive the transport.
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
  Status status;  // on error, none, some or all of the bytes may have landed
};

struct TransportCapabilities {
  std::string name;  // "inproc", "shm", "tcp", ...
  bool crosses_process = false;
  bool crosses_host = false;
  // True: the owner's side copies and checks the epoch, so RevokeEpoch alone fences, at once or
  // soon. False: a started write can land until the writer acknowledges or is dead.
  bool owner_copies = false;
  bool notes = false;  // supports Leave and TakeNote
  int rank = 0;        // greater is faster; select.h tries higher ranks first
};

class KvTransport {
 public:
  virtual ~KvTransport() = default;
  virtual const TransportCapabilities& capabilities() const = 0;

  // The pool that this process owns: source of Write and target of peers. Once, before Descriptor
  // or Connect.
  virtual Status Register(const KvRegion& region) = 0;
  // What a writer needs to reach this pool; opaque bytes for TransportOffer. Starts listening if
  // needed.
  virtual Result<std::string> Descriptor() = 0;

  // Writer: a peer's pool that was reached (mapped, or its owner replied) but not yet added.
  class Reached {
   public:
    virtual ~Reached() = default;
    // Bytes per second to the peer's host, measured outside the pools; 0: not measurable. Blocks at
    // most `timeout`; an error means that the transport does not work.
    virtual Result<double> Measure(Duration /*timeout*/) { return 0.0; }
    // The owner's name for this connection, if it maps memory (WriterWatcher); else "".
    virtual std::string token() const { return ""; }
  };
  // Writer: fails within `timeout` with the reason (another host, no permission, gone). Does not
  // change this object: any thread, also concurrently, while this lives.
  virtual Result<std::unique_ptr<Reached>> Reach(std::string_view descriptor, Duration timeout) = 0;
  // Writer: adds a reached pool, which can then be written.
  virtual KvPeerId Add(std::unique_ptr<Reached> reached) = 0;
  // Reach and Add; blocks.
  Result<KvPeerId> Connect(std::string_view descriptor, Duration timeout) {
    AISP_ASSIGN_OR_RETURN(std::unique_ptr<Reached> reached, Reach(descriptor, timeout));
    return Add(std::move(reached));
  }
  // Writer: removes the peer; its uncompleted writes complete with an error first.
  virtual void Disconnect(KvPeerId peer) = 0;

  // Writer: queues the copies, whose targets must not overlap, as one write of `epoch`; completes
  // in Poll. Source bytes must not change until then. RESOURCE_EXHAUSTED: the bounded queue is full
  // (retry after Poll); OUT_OF_RANGE: outside either region; UNAVAILABLE: the peer is gone.
  virtual Result<WriteId> Write(KvPeerId peer, std::span<const BlockCopy> copies, Epoch epoch) = 0;
  // Writer: a write to `peer` follows within microseconds, so that a sleeping thread, and a link
  // that has been idle, can wake meanwhile.
  virtual void Rouse(KvPeerId /*peer*/) {}
  // Writer: drops the epoch's queued writes; running copies finish. Each write completes in Poll.
  virtual void CancelWrites(KvPeerId peer, Epoch epoch) = 0;

  // Owner with owner_copies: only writes of allowed epochs inside `allowed` (offset, bytes) are
  // copied.
  virtual void AllowEpoch(Epoch epoch, std::span<const BlockCopy> allowed) = 0;
  // Owner: called when a grant is revoked, and when the writer reports completion, before the bytes
  // are read (it also makes a transport thread's copies visible to this thread). True: no write of
  // `epoch` can land any more. False with owner_copies: a copy is running, ask again soon; without:
  // wait for the writer's acknowledgement or death.
  virtual bool RevokeEpoch(Epoch epoch) = 0;

  // Writer: leaves a short message where the peer's owner finds it when it looks, sooner than by
  // any link, or never: only for what a link carries too. False: not possible now, or ever.
  virtual bool Leave(KvPeerId /*peer*/, std::string_view /*note*/) { return false; }
  // Owner: whether TakeNote may have something; cheap enough for a spinning thread.
  virtual bool HasNotes() { return false; }
  // Owner: the oldest note of some writer, and the writer's Reached::token. False: none now.
  virtual bool TakeNote(std::string* /*token*/, std::string* /*note*/) { return false; }

  // Makes progress on the calling thread if the implementation has no thread of its own.
  virtual void Progress() = 0;
  // Returns finished writes, at most out.size(), and their number.
  virtual size_t Poll(std::span<WriteCompletion> out) = 0;
  // Called (from any thread) when Poll has something; wakes the engine thread. Set once, before
  // Connect.
  virtual void SetWaker(std::function<void()> wake) = 0;
};

}  // namespace aisp
