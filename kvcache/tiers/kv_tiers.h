// KvTiers: prefix blocks in the tiers below the device pool: which are copied down, promoted back,
// and forgotten.
//
// Down: a block is copied when it is published, while its sequence still pins it, so that evicting
// it later moves no bytes: first into host memory, from there to disk (or straight to disk without
// a host tier). Tiers are inclusive. Never waits: what cannot be queued is dropped and counted.
//
// Up: a promotion reserves device blocks, has them filled from the lower tiers and publishes them
// in the prefix index. It is independent of requests: one that waits for it may be cancelled or
// stop waiting, while the promotion runs to its end and returns every block. Blocks are fetched
// only if that is predicted to be faster than computing them, by rates measured here; now and then
// one block is fetched just for the measurement.
//
// Every fault of a tier (a wrong checksum, an error, a full queue, a slow disk) is a miss. Owned by
// one engine thread; does no I/O (TierIo does). A job's blocks are pinned with PinKind::kTier.
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
  double disk_load_seconds = 0;         // per block, measured at start; 0: not measured
  int32_t max_stores = 256;             // in flight, per tier
  // Part of the pool that concurrent promotions may hold, and stores as well.
  double pool_share = 0.25;
};

struct TierStats {
  int32_t slots = 0;
  int32_t blocks = 0;
  uint64_t hits = 0;    // blocks of looked-up prompts that were in it
  uint64_t misses = 0;  // and that were not
  uint64_t evictions = 0;
  uint64_t stored = 0;  // blocks copied into it
  uint64_t loaded = 0;  // blocks copied from it into the pool
  double store_seconds = 0;
  double load_seconds = 0;
  uint64_t corrupt = 0;         // blocks whose content differed from what was written
  uint64_t dropped_writes = 0;  // blocks not copied into it: queue full, or no room
  uint64_t errors = 0;          // reads and writes that failed
};

struct PromotionStats {
  uint64_t started = 0;
  uint64_t blocks = 0;    // published by them
  uint64_t declined = 0;  // lookups that found only blocks that are faster to compute
  uint64_t probes = 0;
};

class KvTiers {
 public:
  KvTiers(const TierOptions& options, BlockManager* blocks, const Clock* clock);

  void ExtendKeys(const Hash128& root, std::span<const TokenId> tokens,
                  std::vector<Hash128>* keys) {
    hasher_.Extend(root, tokens, blocks_->layout().block_tokens, keys);
  }

  // Copies down blocks[first, keys.size()), just published under `keys`; the caller pins all of
  // them.
  void Store(std::span<const Hash128> keys, std::span<const BlockId> blocks, int32_t first);

  // The content under these keys is wrong: they are no longer found, and copies in flight are
  // dropped.
  void Forget(std::span<const Hash128> keys);

  struct Waiting {
    uint64_t promotion = 0;  // 0: nothing is worth a wait
    Instant until;           // after that, computing is better
  };
  // Fetches the whole blocks of tokens[0, max_tokens) that the device lacks and that are worth it.
  // `keys`: of the blocks of `tokens`; at least `keep_free` blocks remain free.
  Waiting Promote(const Hash128& root, std::span<const TokenId> tokens, int32_t max_tokens,
                  std::span<const Hash128> keys, int32_t keep_free);
  bool UnderWay(uint64_t promotion) const { return promotions_.contains(promotion); }
  // Promotions or stores hold blocks.
  bool Busy() const { return !jobs_.empty(); }

  // Handles completed TierIo jobs; true when a promotion ended or a pool block was released.
  bool Poll();
  // Reports that a step computed so many prompt tokens in this time.
  void NotePrefill(int32_t tokens, Duration took);

  // A tier's content for routers, as BlockManager's. Events are in order: one when a copy has
  // ended, one when a block is evicted.
  std::vector<KvCacheEvent> TakeEvents(TierPlace tier, uint64_t* first_sequence);
  std::vector<KvCacheEvent> SnapshotEvents(TierPlace tier, uint64_t* next_sequence) const;
  // Seconds to fetch a block, measured on loads, else on stores of this tier; 0: unknown.
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
    int32_t stores = 0;  // in flight
    int32_t loads = 0;
    double load_seconds = 0;  // per block, measured; 0: not yet
  };
  struct Job {
    TierJob job;
    uint64_t promotion = 0;  // the one that it loads for
    size_t block = 0;        // index in the promotion
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
  // Locations of the blocks after the device's match.
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
  // Unless it is being read; its reader then drops it.
  void DropIfThere(Tier& tier, const Hash128& key);
  Sources Find(std::span<const Hash128> keys, size_t from, size_t to);
  // Seconds to fetch a block, measured on loads, else on stores; 0: unknown.
  static double LoadSeconds(const Tier& tier);
  // How many of them to fetch, and how long a request may wait for them.
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
  std::unordered_map<Hash128, uint64_t> loading_;  // by the first block that each promotion fills
  int32_t pool_stores_ = 0;                        // blocks pinned for copies down
  int32_t promoting_blocks_ = 0;
  uint64_t next_id_ = 1;
  double seconds_per_token_ = 0;  // prefill cost, measured; 0: not yet
  uint64_t declined_in_row_ = 0;
  uint64_t failures_ = 0;
  PromotionStats promotion_stats_;
  std::vector<TierDone> done_;
};

}  // namespace aisp
