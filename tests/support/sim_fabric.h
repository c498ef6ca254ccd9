// SimFabric: KvTransports between simulated processes, with the faults of real ones.
//
// Three kinds, two of them with TransportCapabilities::owner_copies:
// - like shm and CUDA IPC (false): the writer's process copies into a mapping that nobody can
// revoke.
//   A writer that is stopped in the middle finishes its copy when it resumes, however late. Pieces
//   land until its death, never after. A pool whose owner died stays mapped: writes into it have no
//   effect.
// - like tcp (true): bytes travel, then the owner's side checks the epoch and copies; what was sent
//   before the writer died may still arrive. A stopped owner copies when it resumes.
// - like ucx (true, and `fetches`): the owner fetches a piece that it has admitted, directly from
// the
//   writer's memory. Revoking the epoch does not stop a running fetch; the owner knows its end.
//
// A write is split into pieces that land one after the other, each read from the source only in its
// turn, so that torn, stale and foreign content shows. The queue to a peer is bounded. Everything
// is seeded; one thread.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kvcache/transport/kv_transport.h"
#include "tests/support/sim_world.h"

namespace aisp {

struct SimFabricOptions {
  bool owner_copies = false;
  bool fetches = false;  // with owner_copies
  int rank = 1;
  double bytes_per_ms = 1000;
  size_t max_queued_writes = 16;
};

class SimFabric {
 public:
  SimFabric(SimWorld* world, const SimFabricOptions& options) : world_(world), options_(options) {}

  // One per process, named like the process. Call Kill before the transport is destroyed.
  std::unique_ptr<KvTransport> MakeTransport(const std::string& process);
  void Pause(const std::string& process);
  void Resume(const std::string& process);
  // The process has died. Its pool may be freed after the call.
  void Kill(const std::string& process);
  // From now on Connect fails with this probability.
  void set_connect_fail_chance(double p) { connect_fail_chance_ = p; }
  // Ends a write in flight with an error, after some of it landed; false when there is none.
  bool FailOneWrite();
  // Breaks a lane with writes in flight until its writer connects anew; false when there is none.
  // The piece in flight still lands.
  bool FallOneLane();
  // Whether some writer keeps using a lane after it was told that the lane broke.
  bool AnyFallen() const;
  // Flips one bit of the next piece on some lane; false when nothing is in flight.
  bool SpoilOneWrite();
  // The number of pieces that landed after their epoch was revoked (with owner_copies: fetches).
  uint64_t late_pieces() const { return late_pieces_; }
  uint64_t fenced_pieces() const { return fenced_pieces_; }
  // The number of pools that writers connected to.
  uint64_t connections() const { return connections_; }
  // Left by writers.
  uint64_t notes() const { return notes_; }

 private:
  class Transport;
  struct PendingWrite {
    WriteId id;
    Epoch epoch;
    std::deque<BlockCopy> pieces;
    bool started = false;
    bool cancelled = false;
    Status status;
  };
  // The lane from one writer to one pool.
  struct Lane {
    std::string writer;
    std::string owner;
    std::string token;
    std::deque<PendingWrite> queue;
    bool moving = false;   // a piece is in flight
    bool arrived = false;  // it waits for a stopped process
    bool spoil = false;    // corrupt the next piece
    bool fallen = false;
    bool told = false;            // its writer tried to write again
    std::vector<std::byte> wire;  // owner_copies: the bytes of the piece in flight
    bool closed = false;
    Epoch fetching;   // of the piece that the owner fetches; value 0: none
    BlockCopy piece;  // and the piece
  };
  using LanePtr = std::shared_ptr<Lane>;

  Transport* Find(const std::string& process);
  // A lane with writes in flight; null: there is none.
  LanePtr RandomBusyLane();
  void Kick(const LanePtr& lane);
  void Arrive(const LanePtr& lane);
  void Land(const LanePtr& lane);
  void BeginFetch(const LanePtr& lane);
  // Writes the bytes from where they are now. True if the owner fetched this piece.
  bool EndFetch(const LanePtr& lane);
  void Copy(Lane& lane, std::byte* to, const std::byte* from, uint64_t bytes);
  void CompleteFront(const LanePtr& lane);

  SimWorld* const world_;
  const SimFabricOptions options_;
  std::map<std::string, Transport*> transports_;
  std::vector<LanePtr> lanes_;
  double connect_fail_chance_ = 0;
  uint64_t late_pieces_ = 0;
  uint64_t fenced_pieces_ = 0;
  uint64_t connections_ = 0;
  uint64_t reached_ = 0;
  uint64_t notes_ = 0;
};

}  // namespace aisp
