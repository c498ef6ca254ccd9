// HandoffModel: the hand-off of KV blocks from a prefill worker (P) to a decode worker (D), and
// between tiers, small enough to try every order of events. docs/kv-protocol.md names the
// transitions.
//
// Real: the block manager (pins, leases, prefix index, quarantine) and the lease book. Modelled:
// the two roles' handling of messages, the wire, the writes, deaths and restarts, and one slot of
// host memory. A state is the path of events that led to it, and is rebuilt by replaying them,
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
  kLeaseEndsWithItsTime,  // blocks are reused when the lease expires, not when it is acknowledged
  kAnyoneAcknowledges,   // the acknowledgement of a process that took over the writer's name counts
  kAckBeforeWrite,       // the writer acknowledges while a write is in flight
  kLostLinkIsDeath,      // blocks are reused when the link to their writer is lost
  kDoneUncounted,        // "done" counts although a layer is missing
  kCopyWithoutPin,       // a block is copied to host memory without a pin
  kAckToSuccessor,       // another process's grant is acknowledged to its successor
  kPromotionUnfinished,  // a block is published before its promotion from host memory has finished
  kHalfConverted,        // a layer is converted while one of its two source blocks is empty
  kStagingReused,        // converted data is in memory that the next write may reuse at once
  kGivenBackInUse,       // a grant that came with its request is given back, and written
};
inline constexpr ProtocolBug kAllBugs[] = {
    ProtocolBug::kLeaseEndsWithItsTime, ProtocolBug::kAnyoneAcknowledges,
    ProtocolBug::kAckBeforeWrite,       ProtocolBug::kLostLinkIsDeath,
    ProtocolBug::kDoneUncounted,        ProtocolBug::kCopyWithoutPin,
    ProtocolBug::kAckToSuccessor,       ProtocolBug::kPromotionUnfinished,
    ProtocolBug::kHalfConverted,        ProtocolBug::kStagingReused,
    ProtocolBug::kGivenBackInUse};
const char* BugName(ProtocolBug bug);

struct HandoffConfig {
  int32_t blocks = 2;   // of the decode worker's pool; a prompt needs one
  int requests = 2;     // each with its own prompt
  int attempts = 2;     // of a request at the prefill worker
  int writer_ends = 1;  // crashes and replacements of the prefill worker, in all
  int reader_ends = 1;  // crashes of the decode worker
  int link_breaks = 1;
  bool tiers = true;  // host memory, of one slot
  // A block of D is made of two of P, in another number format: in memory of P for one layer.
  bool converts = false;
  // D may grant its block with the request; P uses it, or gives it back and asks later.
  bool early = false;
  bool notes = false;  // "done" is also left as a note, which D reads at any time
  ProtocolBug bug = ProtocolBug::kNone;
};

class HandoffModel {
 public:
  explicit HandoffModel(const HandoffConfig& config);

  struct Event {
    enum class Kind : uint8_t {
      kAsk,             // request: D asks P for its prompt
      kAskGranted,      // request: the same, with the grant
      kCancel,          // request: its client has left
      kExpire,          // request: the lease expires before all KV has arrived
      kFinish,          // request: its last token was drawn
      kLocal,           // request: D computes the prompt itself
      kToWriter,        // the oldest message to P arrives
      kToBusyWriter,    // the same, a request with its grant; P runs others first
      kToReader,        // the oldest message to D arrives
      kNote,            // D reads the oldest note
      kHalf,            // job of P that converts: half of the next layer is computed
      kWrite,           // job of P: a layer's write starts, converted if needed
      kLand,            // job of P: and lands
      kBreak,           // the link is lost, both live
      kConnect,         // a link comes up again
      kWriterDies,      // P is killed and restarted
      kWriterReplaced,  // P is considered dead and another is started under its name; P continues
      kDeathProven,     // of a dead process: D receives the proof
      kReaderDies,      // D is killed and restarted with an empty pool
      kStored,          // the copy to host memory ends
      kLoad,            // request: its prompt is fetched from host memory
      kLoaded,          // and has arrived
    };
    Kind kind;
    int which = 0;
  };
  std::vector<Event> Possible() const;
  void Do(const Event& event);

  // The first violated invariant; "" while all hold.
  const std::string& violation() const { return violation_; }
  // Everything that distinguishes this state from others.
  std::string Digest() const;
  // Continues without another fault: messages arrive, writes end, requests are cancelled, deaths
  // are proven. All blocks must have been returned then, or violation() is set.
  void Quiesce();

  static std::string ToString(const Event& event);

 private:
  static constexpr Hash128 kRoot = {1, 2};
  static constexpr int kLayers = 2;
  enum class Phase : uint8_t { kIdle, kRequested, kGranted, kRunning, kGone };
  struct Request {
    Phase phase = Phase::kIdle;
    int attempts = 0;
    int rounds = 0;  // an answered prompt may be asked again
    uint64_t transfer = 0;
    bool early = false;  // kGranted: with the request
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
    int halves = 0;  // computed of all layers, if converted
    bool writing = false;
    bool stopped = false;
    bool told = false;  // done or the fence was sent
  };
  struct WriterProcess {
    uint64_t incarnation = 0;
    bool alive = true;
    bool linked = false;  // the one behind D's link
    std::vector<WriteJob> jobs;
    uint64_t staging = 0;  // of converted data: a layer of one block
  };

  void Fail(const std::string& what) {
    if (violation_.empty()) violation_ = what;
  }
  uint64_t Tag(int request) const { return static_cast<uint64_t>(request) + 100; }
  std::vector<TokenId> Prompt(int request) const;
  // Each handles its kinds of events; false: another kind.
  bool DoRequest(const Event& event);
  bool DoWire(const Event& event);
  bool DoEnd(const Event& event);
  void Compute(int request);
  void Publish(Request& r, int request);
  void GiveUp(Request& r);
  void EndLease(Epoch epoch);
  void DropRequest(int request);
  void LoseLink();
  void OnWriter(const Message& m, bool busy);
  void OnReader(const Message& m);
  void Ask(int request, bool granted);
  void Grant(int request);
  // Opens its lease: the message that hands it to the writer.
  Message OpenGrant(int request);
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
  std::deque<Message> notes_;  // of the session
  uint64_t next_epoch_ = 1;
  uint64_t next_transfer_ = 1;
  uint64_t next_incarnation_ = 1;
  int writer_ends_ = 0;
  int reader_ends_ = 0;
  int link_breaks_ = 0;
  // Host memory: its content, and the copy in progress.
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
