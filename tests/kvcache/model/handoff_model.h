// HandoffModel: the hand-off of KV blocks from a prefill worker to a decode worker, and between
// tiers, small enough to try every order of events. docs/kv-protocol.md names the transitions.
//
// Real: the block manager (pins, leases, prefix index, quarantine) and the lease book. Modelled:
// what the two roles do with a message, the wire, the writes, deaths and restarts, and one slot of
// host memory. A state is the path of events that led to it: it is made again by playing them,
// since the real parts cannot be copied. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "decode/lease_book.h"
#include "kvcache/block_manager.h"
#include "tests/kvcache/model/explore.h"

namespace aisp {

// Mistakes that the explorer must find, one at a time.
enum class ProtocolBug : uint8_t {
  kNone,
  kLeaseEndsWithItsTime,  // blocks are reused when the lease is over, not when it is acknowledged
  kAnyoneAcknowledges,    // the acknowledgement of a process that took the writer's name counts
  kAckBeforeWrite,        // the writer acknowledges while a write is under way
  kLostLinkIsDeath,       // blocks are reused when the link to their writer is lost
  kDoneUncounted,         // "done" counts although a layer is missing
  kCopyWithoutPin,        // a block is copied to host memory without being held
  kAckToSuccessor,        // what another process granted is acknowledged to who has its name now
  kPromotionUnfinished,   // a block is published before it has come from host memory
  kHalfConverted,         // a layer is converted while one of the two blocks it is made of is empty
  kStagingReused,         // what is converted lies in memory that the next write may have at once
};
inline constexpr ProtocolBug kAllBugs[] = {
    ProtocolBug::kLeaseEndsWithItsTime, ProtocolBug::kAnyoneAcknowledges,
    ProtocolBug::kAckBeforeWrite,       ProtocolBug::kLostLinkIsDeath,
    ProtocolBug::kDoneUncounted,        ProtocolBug::kCopyWithoutPin,
    ProtocolBug::kAckToSuccessor,       ProtocolBug::kPromotionUnfinished,
    ProtocolBug::kHalfConverted,        ProtocolBug::kStagingReused};
const char* BugName(ProtocolBug bug);

struct HandoffConfig {
  int32_t blocks = 2;   // of the decode worker's pool; a prompt takes one
  int requests = 2;     // each with a prompt of its own
  int attempts = 2;     // of a request at the prefill worker
  int writer_ends = 1;  // crashes and replacements of the prefill worker, in all
  int reader_ends = 1;  // crashes of the decode worker
  int link_breaks = 1;
  bool tiers = true;  // host memory, of one slot
  // A block of D's is made of two of P's, in other numbers: in memory of P for one layer.
  bool converts = false;
  ProtocolBug bug = ProtocolBug::kNone;
};

class HandoffModel {
 public:
  explicit HandoffModel(const HandoffConfig& config);

  struct Event {
    enum class Kind : uint8_t {
      kAsk,             // request: D asks P for its prompt
      kCancel,          // request: its client went away
      kExpire,          // request: the lease is over before all KV was there
      kFinish,          // request: its last token was drawn
      kLocal,           // request: D computes the prompt itself
      kToWriter,        // the oldest message to P arrives
      kToReader,        // the oldest message to D arrives
      kHalf,            // job of P that converts: half of the next layer is computed
      kWrite,           // job of P: a layer's write starts, converted where it has to be
      kLand,            // job of P: and lands
      kBreak,           // the link ends, both live
      kConnect,         // a link comes up again
      kWriterDies,      // P is killed, and started anew
      kWriterReplaced,  // P is taken for dead and another started under its name; it goes on
      kDeathProven,     // of a process that is dead: D learns it
      kReaderDies,      // D is killed, and started anew with an empty pool
      kStored,          // the copy to host memory ends
      kLoad,            // request: its prompt is fetched from host memory
      kLoaded,          // and is there
    };
    Kind kind;
    int which = 0;
  };
  std::vector<Event> Possible() const;
  void Do(const Event& event);

  // The first violated invariant; "" while all hold.
  const std::string& violation() const { return violation_; }
  // Everything that tells this state from others.
  std::string Digest() const;
  // From here without another fault: messages arrive, writes end, requests are cancelled, deaths
  // are proven. All blocks must have come back then, or violation() says so.
  void Quiesce();

  static std::string ToString(const Event& event);

 private:
  static constexpr Hash128 kRoot = {1, 2};
  static constexpr int kLayers = 2;
  enum class Phase : uint8_t { kIdle, kRequested, kGranted, kRunning, kGone };
  struct Request {
    Phase phase = Phase::kIdle;
    int attempts = 0;
    int rounds = 0;  // a prompt that was answered once comes again
    uint64_t transfer = 0;
    Epoch epoch;
    std::vector<BlockId> blocks;
    bool promoting = false;
  };
  struct Message {
    enum class Kind : uint8_t { kPrefill, kGrant, kRevoke, kNeed, kDone, kFence } kind;
    int request = 0;
    uint64_t transfer = 0;
    uint64_t epoch = 0;
    int32_t block = 0;
    int layers = 0;  // kDone
  };
  // A grant as its writer sees it.
  struct WriteJob {
    uint64_t pool = 0;  // of which decode process
    uint64_t epoch = 0;
    int request = 0;
    uint64_t transfer = 0;
    int32_t block = 0;
    int landed = 0;
    int halves = 0;  // computed of all layers, where they are converted
    bool writing = false;
    bool stopped = false;
    bool told = false;  // done was sent, or the fence
  };
  struct WriterProcess {
    uint64_t incarnation = 0;
    bool alive = true;
    bool linked = false;  // the one behind D's link
    std::vector<WriteJob> jobs;
    uint64_t staging = 0;  // of what is converted: a layer of one block
  };

  void Fail(const std::string& what) {
    if (violation_.empty()) violation_ = what;
  }
  uint64_t Tag(int request) const { return static_cast<uint64_t>(request) + 100; }
  std::vector<TokenId> Prompt(int request) const;
  // Each does its kinds of events; false: it is of another kind.
  bool DoRequest(const Event& event);
  bool DoWire(const Event& event);
  bool DoEnd(const Event& event);
  void Compute(int request);
  void Publish(Request& r, int request);
  void GiveUp(Request& r);
  void EndLease(Epoch epoch);
  void DropRequest(int request);
  void LoseLink();
  void OnWriter(const Message& m);
  void OnReader(const Message& m);
  void Grant(int request);
  bool MayWrite(const WriterProcess& p, const WriteJob& job) const;
  void StartWrite(WriterProcess& p, WriteJob& job) const;
  void Land(WriterProcess& p, WriteJob& job);
  void MaybeTell(WriterProcess& p, WriteJob& job);
  WriterProcess* Linked();
  const WriterProcess* Linked() const;
  void CheckContent();
  void StartReader();

  const HandoffConfig config_;
  std::unique_ptr<BlockManager> blocks_;
  LeaseBook leases_;
  uint64_t pool_ = 0;  // counts decode processes
  std::vector<std::array<uint64_t, kLayers>> memory_;
  std::vector<Request> requests_;
  std::vector<WriterProcess> writers_;
  bool link_ = true;
  std::deque<Message> to_writer_;
  std::deque<Message> to_reader_;
  uint64_t next_epoch_ = 1;
  uint64_t next_transfer_ = 1;
  uint64_t next_incarnation_ = 1;
  int writer_ends_ = 0;
  int reader_ends_ = 0;
  int link_breaks_ = 0;
  // Host memory: what it holds, and the copy under way.
  struct Store {
    int request = 0;
    BlockId block;
    bool pinned = false;
  };
  struct Load {
    int request = 0;
    BlockId block;
  };
  std::optional<Store> store_;
  std::optional<Load> load_;
  std::optional<std::pair<int, uint64_t>> host_;  // request, content of its layers folded
  bool quiescing_ = false;
  std::string violation_;
};

// Breadth first, at most `max_states`; each state is also brought to rest (Quiesce).
Exploration Explore(const HandoffConfig& config, uint64_t max_states);

}  // namespace aisp
