// PullModel: workers that pull one prefix from the worker that holds it, while that one evicts it,
// small enough to try every order of events. docs/kv-protocol.md names the transitions.
//
// Real: the block managers of all workers (pins, leases, prefix index, eviction, quarantine) and
// the lease books. Modelled: how PrefixPuller and PrefixHolder handle messages, a disk tier of the
// holder and promotions from it, the wire, the writes, deaths and restarts. A state is the path of
// events that led to it. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "decode/lease_book.h"
#include "kvcache/block_manager.h"
#include "tests/kvcache/model/explore.h"

namespace aisp {

// Mistakes that the explorer must find, one at a time.
enum class PullBug : uint8_t {
  kNone,
  kHolderUnpinned,    // the holder writes blocks that it does not pin
  kUnpinnedTooEarly,  // the holder unpins blocks when the last write has started, not when it
                      // landed
  kPublishedEarly,    // a prefix is published when the holder announces what it has
  kHeldIgnored,       // all that was requested is published, whatever the holder had
  kEpochUnchecked,    // if the puller's side copies: also for a revoked grant
  kEpochOfAnyReader,  // the holder mistakes an epoch for another puller's of the same number
  kLateIsOver,        // the blocks of a late pull are reused at once
  kMissKeepsGrant,    // the grant of an evicted prefix is never acknowledged
  kAckBeforeWrite,    // the holder acknowledges while a write is in flight
  kLostLinkIsDeath,   // blocks are reused when the link to the holder is lost
  // With a tier:
  kPublishedBeforeLoad,   // a promotion counts as complete at once
  kPromotedMissKeeps,     // a promotion that found nothing leaves the grant unacknowledged
  kRevokedWhilePromoted,  // a grant that is revoked meanwhile is acknowledged, and used
  // With pools of other formats:
  kPartOfABlock,  // the holder's blocks fill a part of a puller's block, which counts as whole
  kStagingReused  // converted data is in memory that the next write may reuse at once
};
inline constexpr PullBug kAllPullBugs[] = {
    PullBug::kHolderUnpinned,       PullBug::kUnpinnedTooEarly,    PullBug::kPublishedEarly,
    PullBug::kHeldIgnored,          PullBug::kEpochUnchecked,      PullBug::kEpochOfAnyReader,
    PullBug::kLateIsOver,           PullBug::kMissKeepsGrant,      PullBug::kAckBeforeWrite,
    PullBug::kLostLinkIsDeath,      PullBug::kPublishedBeforeLoad, PullBug::kPromotedMissKeeps,
    PullBug::kRevokedWhilePromoted, PullBug::kPartOfABlock,        PullBug::kStagingReused};
const char* BugName(PullBug bug);

struct PullConfig {
  int pullers = 2;
  int prefix_blocks = 1;  // of the side with the larger blocks
  // Block sizes in units of 16 tokens; one is a multiple of the other.
  int holder_units = 1;
  int puller_units = 1;
  bool converts =
      false;          // the number format too: written data is made first, in memory for one block
  int pulls = 1;      // of each puller
  int evictions = 1;  // prompts that the holder computes, evicting blocks
  int computes = 1;   // prompts that each puller computes, likewise
  int link_breaks = 0;  // in all
  int holder_ends = 0;  // the holder is killed and restarted
  int puller_ends = 0;  // the first puller is killed and restarted
  bool tier = false;    // the holder also has the prefix on disk, which outlives it
  int tier_faults = 0;  // failing reads of it
  bool owner_copies = false;
  bool grant_apart = false;  // the grant follows the request instead of being in it
  bool notes = false;        // "done" of all that was granted is also a note, read at any time
  PullBug bug = PullBug::kNone;
};

class PullModel {
 public:
  explicit PullModel(const PullConfig& config);

  struct Event {
    enum class Kind : uint8_t {
      kPull,         // puller: asks for the prefix, with a grant
      kLate,         // puller: its time is over, or nothing waits any more
      kToHolder,     // puller: its oldest message arrives
      kToPuller,     // puller: the holder's oldest message arrives
      kNote,         // puller: reads its oldest note
      kWrite,        // push: the next block's write starts
      kLand,         // push: and lands
      kEvict,        // the holder computes another prompt, evicting blocks
      kCompute,      // puller: likewise
      kBreak,        // puller: its link is lost, both live
      kConnect,      // puller: its link comes up again
      kHolderDies,   // and is restarted with an empty pool
      kDeathProven,  // puller: it receives proof that the holder's former process is dead
      kPullerDies,   // puller: and is restarted with an empty pool
      kLoad,         // the next block was promoted from the holder's tier
      kLoadFails,    // or failed, with all after it
      kImpatient,    // push: what has arrived is given out while the rest is promoted
    };
    Kind kind;
    int which = 0;
  };
  std::vector<Event> Possible() const;
  void Do(const Event& event);

  // The first violated invariant; "" while all hold.
  const std::string& violation() const { return violation_; }
  std::string Digest() const;
  // Continues without another fault: all blocks must have been returned then.
  void Quiesce();
  static std::string ToString(const Event& event);

 private:
  static constexpr Hash128 kRoot = {1, 2};
  static constexpr uint64_t kForeign = 7;  // other prompts' content of a block
  static constexpr uint64_t kUnloaded = 8;
  struct Message {
    enum class Kind : uint8_t { kRequest, kGrant, kRevoke, kNeed, kDone, kMissed, kFence } kind;
    uint64_t pull = 0;
    uint64_t epoch = 0;
    int blocks = 0;  // kNeed, kDone: held, written
    std::vector<BlockId> granted = {};
  };
  enum class Phase : uint8_t { kIdle, kAsked, kBegun };
  struct Puller {
    std::unique_ptr<BlockManager> blocks;
    LeaseBook leases;
    std::vector<uint64_t> memory;  // of each unit of each block
    uint64_t process = 0;
    bool link = true;
    std::deque<Message> to_holder;
    std::deque<Message> to_puller;
    std::deque<Message> notes;
    Phase phase = Phase::kIdle;
    uint64_t pull = 0;
    Epoch epoch;
    std::vector<BlockId> granted;
    int held = 0;
    int pulls = 0;
    int computes = 0;
    uint64_t next_epoch = 1;
  };
  // A pull as its holder sees it; no epoch: requested, not granted yet.
  struct Push {
    int puller = 0;
    uint64_t process = 0;  // of the puller
    uint64_t pull = 0;
    uint64_t epoch = 0;
    std::vector<BlockId> source;
    bool pinned = true;
    std::vector<BlockId> target;
    int landed = 0;
    bool writing = false;
    bool stopped = false;
    bool promoting = false;
    bool told = false;   // its end was sent
    bool blind = false;  // of a miss that is not acknowledged
  };

  // From the holder's tier; all pinned until it ends.
  struct Promotion {
    std::vector<BlockId> blocks;
    size_t matched = 0;
    size_t loaded = 0;
  };

  void Fail(const std::string& what) {
    if (violation_.empty()) violation_ = what;
  }
  // Of the whole prefix.
  int Units() const;
  int HolderBlocks() const { return Units() / config_.holder_units; }
  int PullerBlocks() const { return Units() / config_.puller_units; }
  std::vector<TokenId> Prefix() const { return Prefix(Units()); }
  static std::vector<TokenId> Prefix(int units);
  std::vector<BlockId> Match(BlockManager& blocks) const;
  static uint64_t Word(int unit) { return 100 + static_cast<uint64_t>(unit); }
  std::unique_ptr<BlockManager> MakePool(int units) const;
  // How many of the puller's blocks the holder's blocks fill.
  int Held(const Push& push) const;
  int Wanted(const Push& push) const;
  // Content of the holder's blocks for the puller's next one.
  std::vector<uint64_t> Read(const Push& push) const;
  // The words of one block.
  static std::span<uint64_t> Words(std::vector<uint64_t>& memory, BlockId block, int units) {
    const auto size = static_cast<size_t>(units);
    return std::span(memory).subspan(static_cast<size_t>(block.value) * size, size);
  }
  void StartHolder();
  void StartPuller(Puller& p);
  // Blocks for another prompt, written and released unpublished.
  static void Overwrite(BlockManager& blocks, std::vector<uint64_t>& memory, int units);
  void Start(Push& push);
  void Ask(Puller& p);
  void Drop(Puller& p);
  void EndLease(Puller& p, Epoch epoch);
  void LoseLink(int puller);
  void OnHolder(int puller, const Message& m);
  void OnRequest(int puller, const Message& m);
  bool Promote();
  void EndPromotion();
  void Offer(Push& push);
  void OnPuller(Puller& p, const Message& m);
  void Publish(Puller& p, int blocks);
  void OnDone(Puller& p, const Message& m);
  void Land(Push& push);
  // Removes finished pushes and notifies their pullers.
  void Settle();
  void Unpin(Push& push);
  void CheckContent();

  const PullConfig config_;
  std::unique_ptr<BlockManager> holder_;
  std::vector<uint64_t> memory_;
  uint64_t holder_process_ = 0;
  std::vector<Push> pushes_;
  std::optional<Promotion> promotion_;
  std::vector<uint64_t> staging_;  // converted data of the write in flight
  bool staging_taken_ = false;
  int tier_faults_ = 0;
  std::vector<Puller> pullers_;
  uint64_t next_process_ = 1;
  uint64_t next_pull_ = 1;
  int evictions_ = 0;
  int link_breaks_ = 0;
  int holder_ends_ = 0;
  int puller_ends_ = 0;
  std::string violation_;
};

inline Exploration Explore(const PullConfig& config, uint64_t max_states) {
  return ExploreModel<PullModel>(config, max_states);
}

}  // namespace aisp
