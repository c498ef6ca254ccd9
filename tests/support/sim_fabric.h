// SimFabric: KvTransports between simulated processes, with the ways in which real ones go wrong.
//
// Three kinds, two of them with TransportCapabilities::owner_copies:
//  - like shm and CUDA IPC (false): the writer's process copies into a mapping that nobody can
//  revoke. A writer that is
//    stopped in the middle finishes its copy when it goes on, however late. Pieces land until its
//    death, never after. A pool whose owner died stays mapped: writes into it succeed and mean
//    nothing.
//  - like tcp (true): bytes travel, then the owner's side checks the epoch and copies; what was
//  sent before the writer died
//    may still arrive. A stopped owner copies when it goes on.
//  - like ucx (true, and `fetches`): the owner fetches a piece that it has admitted, straight from
//  the writer's memory. Revoking the epoch does not stop a fetch under way; the owner knows when it
//  has ended.
// A write is split into pieces that land one after the other, read from the source only when their
// turn comes, so that torn, stale and foreign content shows. The queue to a peer is bounded.
// Everything is seeded; one thread.
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

  // One per process, named as the process. Must outlive no call of the fabric: Kill comes before
  // its destruction.
  std::unique_ptr<KvTransport> MakeTransport(const std::string& process);
  void Pause(const std::string& process);
  void Resume(const std::string& process);
  // The process is gone. Its pool may be freed after the call.
  void Kill(const std::string& process);
  // Connect fails with this probability from now on.
  void set_connect_fail_chance(double p) { connect_fail_chance_ = p; }
  // A write under way ends with an error, some of it landed; false when there is none.
  bool FailOneWrite();
  // A lane with writes under way carries nothing any more, until its writer connects anew; false
  // when there is none. The piece under way still lands.
  bool FallOneLane();
  // Some writer keeps to a lane of which it was told that it fell.
  bool AnyFallen() const;
  // One bit of the piece that lands next on some lane is turned; false when nothing is under way.
  bool SpoilOneWrite();
  // Pieces that landed although their epoch had been revoked before (with owner_copies: fetches).
  uint64_t late_pieces() const { return late_pieces_; }
  uint64_t fenced_pieces() const { return fenced_pieces_; }
  // Pools that writers connected to.
  uint64_t connections() const { return connections_; }

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
  // The way from one writer to one pool.
  struct Lane {
    std::string writer;
    std::string owner;
    std::deque<PendingWrite> queue;
    bool moving = false;   // a piece is under way
    bool arrived = false;  // it waits for a stopped process
    bool spoil = false;    // its next piece
    bool fallen = false;
    bool told = false;            // its writer wanted to write again
    std::vector<std::byte> wire;  // owner_copies: the bytes of the piece under way
    bool closed = false;
    Epoch fetching;   // of the piece that the owner fetches; value 0: none
    BlockCopy piece;  // and the piece
  };
  using LanePtr = std::shared_ptr<Lane>;

  Transport* Find(const std::string& process);
  // One with writes under way; null: there is none.
  LanePtr RandomBusyLane();
  void Kick(const LanePtr& lane);
  void Arrive(const LanePtr& lane);
  void Land(const LanePtr& lane);
  void BeginFetch(const LanePtr& lane);
  // The bytes land, from wherever they are now. True when the owner fetched this piece.
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
};

}  // namespace aisp
