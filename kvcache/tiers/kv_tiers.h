// KvTiers: prefix blocks in the tiers below the device pool: what is copied down, what is fetched
// back, and what is forgotten.
//
// Down: a block is copied when it is published, while its sequence still holds it, so that giving
// it up later moves no byte: first into host memory, from there to the disk (or straight to the
// disk where there is no host tier). Tiers are inclusive. Never waits: what cannot be queued is
// dropped and counted.
//
// Up: a promotion takes device blocks, has them filled from the lower tiers and publishes them in
// the prefix index. It belongs to nobody: a request that waits for it may be cancelled or stop
// waiting, the promotion goes on to its end and gives every block back. Blocks are fetched only
// where that is predicted to be faster than computing them, by the rates measured here; now and
// then one block is fetched for the measurement alone.
//
// Every fault of a tier (a wrong checksum, an error, a full queue, a slow disk) is a miss.
// Owned by one engine thread; does no I/O (TierIo does). A job's blocks carry PinKind::kTier.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "kvcache/block_manager.h"
#include "kvcache/tiers/tier_contents.h"
#include "kvcache/tiers/tier_index.h"
#include "kvcache/tiers/tier_io.h"
#include "kvcache/tiers/tier_key.h"

namespace aisp {

struct TierOptions {
  TierIo* io = nullptr;  // null: no tiers
  int32_t host_slots = 0;
  int32_t disk_slots = 0;
  std::vector<TierEntry> on_disk = {};  // oldest first
  double disk_load_seconds = 0;         // of a block, measured at the start; 0: not measured
  int32_t max_stores = 256;             // jobs under way, of each kind
  // Part of the pool that promotions may hold where there are several, and stores as well.
  double pool_share = 0.25;
};

struct TierStats {
  int32_t slots = 0;
  int32_t blocks = 0;
  uint64_t hits = 0;    // blocks of prompts that were looked up here and were there
  uint64_t misses = 0;  // and were not
  uint64_t evictions = 0;
  uint64_t stored = 0;  // blocks copied into it
  uint64_t loaded = 0;  // blocks copied from it into the pool
  double store_seconds = 0;
  double load_seconds = 0;
  uint64_t corrupt = 0;         // blocks that were not what had been written
  uint64_t dropped_writes = 0;  // blocks that were not copied into it: too much to do, or no room
  uint64_t errors = 0;          // reads and writes that failed
};

struct PromotionStats {
  uint64_t started = 0;
  uint64_t blocks = 0;    // published by them
  uint64_t declined = 0;  // lookups that found blocks which are faster to compute
  uint64_t probes = 0;
};

class KvTiers {
 public:
  KvTiers(const TierOptions& options, BlockManager* blocks, const Clock* clock);

  void ExtendKeys(const Hash128& root, std::span<const TokenId> tokens,
                  std::vector<Hash128>* keys) {
    hasher_.Extend(root, tokens, blocks_->layout().block_tokens, keys);
  }

  // blocks[first, keys.size()) have just been published under `keys`; the caller pins them all.
  void Store(std::span<const Hash128> keys, std::span<const BlockId> blocks, int32_t first);

  // What these keys name is wrong: it is found no more, nor what is on its way from or to it.
  void Forget(std::span<const Hash128> keys);

  struct Waiting {
    uint64_t promotion = 0;  // 0: there is nothing worth a wait
    Instant until;           // and then it is better to compute
  };
  // Looks for the whole blocks of tokens[0, max_tokens) that the device does not hold, and fetches
  // those that are worth it. `keys` name the blocks of `tokens`; `keep_free` blocks are left.
  Waiting Promote(const Hash128& root, std::span<const TokenId> tokens, int32_t max_tokens,
                  std::span<const Hash128> keys, int32_t keep_free);
  bool UnderWay(uint64_t promotion) const { return promotions_.contains(promotion); }
  // Promotions and stores hold blocks.
  bool Busy() const { return !jobs_.empty(); }

  // Takes what TierIo has finished; true when a promotion ended or a block was given back.
  bool Poll();
  // What computing prompts costs: a step computed so many of their tokens in this time.
  void NotePrefill(int32_t tokens, Duration took);

  // What a tier holds, for routers; as BlockManager's. Events are in order and few: told when a
  // copy has ended, and when a block makes room.
  std::vector<KvCacheEvent> TakeEvents(TierPlace tier, uint64_t* first_sequence);
  std::vector<KvCacheEvent> SnapshotEvents(TierPlace tier, uint64_t* next_sequence) const;
  // What fetching a block takes, by loads or else stores of this tier; 0: nothing is known.
  double BlockSeconds(TierPlace tier) const { return LoadSeconds(TierOf(tier)); }

  TierStats Stats(TierPlace tier) const;
  const PromotionStats& promotions() const { return promotion_stats_; }
  void CheckInvariants() const;

 private:
  struct Tier {
    Tier(int32_t slots, int32_t block_tokens) : index(slots), contents(slots, block_tokens) {}
    TierIndex index;
    TierContents contents;
    TierStats stats;
    int32_t stores = 0;  // under way
    int32_t loads = 0;
    double load_seconds = 0;  // of a block, measured; 0: not yet
  };
  struct Job {
    TierJob job;
    uint64_t promotion = 0;  // it loads for this one
    size_t block = 0;        // of the promotion
    bool forgotten = false;
  };
  struct Promotion {
    Hash128 root;
    std::vector<TokenId> tokens;  // of all its blocks
    std::vector<Hash128> keys;
    std::vector<BlockId> blocks;  // pinned with kTier: `matched` cached ones, then those to fill
    std::vector<bool> filled;
    size_t matched = 0;
    size_t under_way = 0;
    bool forgotten = false;
  };
  // Where the blocks behind the device's match lie.
  using Sources = std::vector<TierSpot>;

  Tier& TierOf(TierPlace place) { return place == TierPlace::kHost ? host_ : disk_; }
  const Tier& TierOf(TierPlace place) const { return place == TierPlace::kHost ? host_ : disk_; }
  bool Enabled(const Tier& tier) const { return tier.index.slots() > 0; }
  int32_t PoolShare() const;
  double CostAt(int32_t position) const;

  // `what`: key, parent, position and units.
  bool StoreFrom(TierSpot from, TierPlace to, TierJob what);
  BlockUnits UnitsOf(BlockId block) const;
  void Drop(Tier& tier, int32_t slot);
  // Unless somebody still reads it, who then drops it.
  void DropIfThere(Tier& tier, const Hash128& key);
  Sources Find(std::span<const Hash128> keys, size_t from, size_t to);
  // What fetching a block takes: as loads were measured, else as stores were; 0: nothing is known.
  static double LoadSeconds(const Tier& tier);
  // How many of them to fetch, and for how long a request may wait for them.
  size_t Worth(const Sources& sources, Duration* wait) const;
  std::optional<uint64_t> Start(const Hash128& root, std::span<const TokenId> tokens,
                                std::span<const Hash128> keys, size_t matched,
                                const Sources& sources);
  bool SubmitLoad(uint64_t id, Promotion& promotion, size_t block, TierSpot from);
  void Finish(Promotion& promotion);
  bool OnStored(const Job& job, const TierDone& done);
  bool OnLoaded(const Job& job, const TierDone& done);
  void CountFailure(Tier& tier, const Error& error, const char* what);

  const TierOptions options_;
  BlockManager* const blocks_;
  const Clock* const clock_;
  TierHasher hasher_;
  Tier host_;
  Tier disk_;
  std::unordered_map<uint64_t, Job> jobs_;
  std::unordered_map<uint64_t, Promotion> promotions_;
  std::unordered_map<Hash128, uint64_t> loading_;  // the first block that each promotion fills
  int32_t pool_stores_ = 0;                        // blocks pinned to be copied down
  int32_t promoting_blocks_ = 0;
  uint64_t next_id_ = 1;
  double seconds_per_token_ = 0;  // of prompts, measured; 0: not yet
  uint64_t declined_in_row_ = 0;
  uint64_t failures_ = 0;
  PromotionStats promotion_stats_;
  std::vector<TierDone> done_;
};

}  // namespace aisp
