#include "kvcache/tiers/kv_tiers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "common/check.h"
#include "common/log.h"

namespace aisp {
namespace {

using namespace std::chrono_literals;

// Cost of passing a job to a thread and back, with both asleep.
constexpr double kWakeSeconds = 200e-6;
// Weight of the newest measurement in the mean.
constexpr double kNewest = 0.25;
// After so many lookups in a row that were faster to compute, one block is fetched as a probe.
constexpr uint64_t kDeclinedBeforeProbe = 32;
// Attention over so many positions costs about as much as the rest of a token.
constexpr double kContextWorth = 8192;

// Fetching must save this fraction of the compute time, since rates vary.
constexpr double kLeastGain = 0.1;
// A request waits this many times the expected time of the fetch, or this part of the time that
// computing would take, whichever is longer; then it computes. The part is for busy machines, on
// which a fetch of a few milliseconds may take many times as long and still save most of the work.
constexpr double kPatience = 2;
constexpr double kPatientPart = 0.25;

constexpr Duration kShortestWait = 2ms;
constexpr Duration kLongestWait = 5s;
constexpr Duration kUnmeasuredWait = 1s;

void Average(double* mean, double value) {
  *mean = *mean == 0 ? value : *mean + kNewest * (value - *mean);
}

}  // namespace

KvTiers::KvTiers(const TierOptions& options, BlockManager* blocks, const Clock* clock)
    : options_(options),
      blocks_(blocks),
      clock_(clock),
      host_(options.host_slots, blocks->layout().block_tokens),
      disk_(options.disk_slots, blocks->layout().block_tokens) {
  AISP_CHECK(options.io != nullptr);
  disk_.load_seconds = options.disk_load_seconds;
  for (const TierEntry& entry : options.on_disk) {
    if (!disk_.index.Restore(entry.slot, entry.key, entry.parent, CostAt(entry.position))) continue;
    disk_.contents.Take(entry.slot, entry.units);
    disk_.contents.Filled(entry.slot);
  }
  // Listeners begin with a snapshot.
  uint64_t first = 0;
  disk_.contents.TakeEvents(&first);
}

int32_t KvTiers::PoolShare() const {
  return std::max(1, static_cast<int32_t>(options_.pool_share *
                                          static_cast<double>(blocks_->layout().num_blocks)));
}

double KvTiers::CostAt(int32_t position) const {
  return 1 + static_cast<double>(position) / kContextWorth;
}

// ---- Down ----

void KvTiers::Store(std::span<const Hash128> keys, std::span<const BlockId> blocks, int32_t first) {
  AISP_CHECK(first >= 0 && keys.size() <= blocks.size());
  const TierPlace top = Enabled(host_) ? TierPlace::kHost : TierPlace::kDisk;
  const TierIndex& index = TierOf(top).index;
  auto i = static_cast<size_t>(first);
  // A block is worthless without the preceding ones, which this tier may have evicted meanwhile.
  while (i > 0 && !index.Knows(keys[i - 1])) --i;
  for (; i < keys.size(); ++i) {
    if (index.Knows(keys[i])) continue;
    const auto position = static_cast<int32_t>(i) * blocks_->layout().block_tokens;
    TierJob what;
    what.key = keys[i];
    what.parent = i == 0 ? Hash128{} : keys[i - 1];
    what.position = position;
    what.units = UnitsOf(blocks[i]);
    if (StoreFrom({TierPlace::kPool, blocks[i].value}, top, what)) continue;
    // The blocks after it could not be found without it.
    TierOf(top).stats.dropped_writes += keys.size() - i - 1;
    return;
  }
}

BlockUnits KvTiers::UnitsOf(BlockId block) const {
  BlockUnits units{};
  std::ranges::copy(blocks_->UnitsOf(block), units.begin());
  return units;
}

void KvTiers::Drop(Tier& tier, int32_t slot) {
  tier.index.Drop(slot);
  tier.contents.Drop(slot);
}

void KvTiers::DropIfThere(Tier& tier, const Hash128& key) {
  const int32_t slot = tier.index.Find(key);
  if (slot != TierIndex::kNone && !tier.index.Held(slot)) Drop(tier, slot);
}

void KvTiers::Forget(std::span<const Hash128> keys) {
  const std::unordered_set<Hash128> wrong(keys.begin(), keys.end());
  for (auto& [id, job] : jobs_) job.forgotten |= wrong.contains(job.job.key);
  for (auto& [id, promotion] : promotions_) {
    for (const Hash128& key : promotion.keys) promotion.forgotten |= wrong.contains(key);
  }
  for (const Hash128& key : wrong) {
    DropIfThere(host_, key);
    DropIfThere(disk_, key);
  }
}

bool KvTiers::StoreFrom(TierSpot from, TierPlace to, TierJob what) {
  Tier& tier = TierOf(to);
  const bool pool = from.place == TierPlace::kPool;
  const bool room = tier.stores < options_.max_stores && (!pool || pool_stores_ < PoolShare());
  const int32_t slot =
      room ? tier.index.Take(what.key, what.parent, CostAt(what.position)) : TierIndex::kNone;
  if (slot == TierIndex::kNone) {
    ++tier.stats.dropped_writes;
    return false;
  }
  tier.contents.Take(slot, what.units);
  TierJob job = what;
  job.id = next_id_++;
  job.from = from;
  job.to = {to, slot};
  if (!options_.io->Submit(job)) {
    Drop(tier, slot);
    ++tier.stats.dropped_writes;
    return false;
  }
  ++tier.stores;
  if (pool) {
    const BlockId block(from.index);
    blocks_->Pin({&block, 1}, PinKind::kTier);
    ++pool_stores_;
  } else {
    host_.index.Hold(from.index);
  }
  jobs_.emplace(job.id, Job{job});
  return true;
}

// True when a block of the pool was released.
bool KvTiers::OnStored(const Job& job, const TierDone& done) {
  const TierSpot from = job.job.from;
  const TierSpot to = job.job.to;
  Tier& tier = TierOf(to.place);
  --tier.stores;
  tier.stats.store_seconds += ToSeconds(done.took);
  const bool pool = from.place == TierPlace::kPool;
  if (pool) {
    const BlockId block(from.index);
    blocks_->Unpin({&block, 1}, PinKind::kTier);
    --pool_stores_;
  } else {
    host_.index.Unhold(from.index);
  }
  if (!done.status) {
    CountFailure(tier, done.status.error(), "a KV block was not copied into its tier");
    Drop(tier, to.index);
    return pool;
  }
  ++tier.stats.stored;
  tier.index.Filled(to.index);
  tier.contents.Filled(to.index);
  if (job.forgotten) {
    DropIfThere(host_, job.job.key);
    DropIfThere(disk_, job.job.key);
    return pool;
  }
  if (to.place == TierPlace::kHost && Enabled(disk_) && !disk_.index.Knows(job.job.key))
    StoreFrom(to, TierPlace::kDisk, job.job);
  return pool;
}

// ---- Up ----

KvTiers::Sources KvTiers::Find(std::span<const Hash128> keys, size_t from, size_t to) {
  Sources sources;
  size_t i = from;
  for (; i < to; ++i) {
    const int32_t in_host = host_.index.Find(keys[i]);
    const int32_t on_disk = in_host != TierIndex::kNone ? in_host : disk_.index.Find(keys[i]);
    if (Enabled(host_)) ++(in_host != TierIndex::kNone ? host_.stats.hits : host_.stats.misses);
    if (in_host == TierIndex::kNone && Enabled(disk_))
      ++(on_disk != TierIndex::kNone ? disk_.stats.hits : disk_.stats.misses);
    if (on_disk == TierIndex::kNone) break;
    const TierPlace place = in_host != TierIndex::kNone ? TierPlace::kHost : TierPlace::kDisk;
    TierOf(place).index.Touch(on_disk);
    sources.push_back({place, on_disk});
  }
  // Blocks after a missing one cannot be used.
  if (i < to) {
    if (Enabled(host_)) host_.stats.misses += to - i - 1;
    if (Enabled(disk_)) disk_.stats.misses += to - i - 1;
  }
  return sources;
}

double KvTiers::LoadSeconds(const Tier& tier) {
  if (tier.load_seconds > 0 || tier.stats.stored == 0) return tier.load_seconds;
  return tier.stats.store_seconds / static_cast<double>(tier.stats.stored);
}

size_t KvTiers::Worth(const Sources& sources, Duration* wait) const {
  const double block_seconds = seconds_per_token_ * blocks_->layout().block_tokens;
  // Prefill speed is unknown before the first prompt: fetch everything.
  if (block_seconds <= 0) {
    *wait = kUnmeasuredWait;
    return sources.size();
  }
  double fetching =
      kWakeSeconds + host_.loads * LoadSeconds(host_) + disk_.loads * LoadSeconds(disk_);
  double best = 0;
  double patience = 0;
  size_t worth = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    const double load = LoadSeconds(TierOf(sources[i].place));
    // A tier of unknown speed gets a probe.
    if (load <= 0) break;
    fetching += load;
    const double computing = static_cast<double>(i + 1) * block_seconds;
    const double saved = computing - fetching;
    if (saved <= best || saved < kLeastGain * computing) continue;
    best = saved;
    worth = i + 1;
    patience = std::min(computing, std::max(kPatience * fetching, kPatientPart * computing));
  }
  *wait = std::clamp(Duration(static_cast<int64_t>(patience * 1e9)), kShortestWait, kLongestWait);
  return worth;
}

KvTiers::Waiting KvTiers::Promote(const Hash128& root, std::span<const TokenId> tokens,
                                  int32_t max_tokens, std::span<const Hash128> keys,
                                  int32_t keep_free) {
  const int32_t unit = blocks_->layout().block_tokens;
  const auto wanted = std::min(keys.size(), static_cast<size_t>(std::max(0, max_tokens) / unit));
  const auto matched = static_cast<size_t>(blocks_->MatchLength(root, tokens, max_tokens) / unit);
  if (matched >= wanted) return {};
  Sources sources = Find(keys, matched, wanted);
  if (sources.empty()) return {};
  Duration wait{};
  size_t worth = Worth(sources, &wait);
  const bool probe = worth == 0;
  if (probe) {
    ++promotion_stats_.declined;
    const Tier& first = TierOf(sources.front().place);
    const bool measured = LoadSeconds(first) > 0;
    if (measured ? ++declined_in_row_ < kDeclinedBeforeProbe : first.loads > 0) return {};
    worth = 1;
  }
  declined_in_row_ = 0;
  if (const auto same = loading_.find(keys[matched]); same != loading_.end())
    return probe ? Waiting{} : Waiting{same->second, clock_->Now() + wait};

  // Matched blocks are pinned too, so that they are not evicted for what follows. The share limits
  // concurrent promotions; a single one may use as much as a prompt.
  const int32_t share = promotions_.empty() ? INT32_MAX : PoolShare() - promoting_blocks_;
  const int32_t room =
      std::min(share, blocks_->Available() - keep_free) - static_cast<int32_t>(matched);
  if (room <= 0) return {};
  sources.resize(std::min(worth, static_cast<size_t>(room)));
  const auto id = Start(root, tokens, keys, matched, sources);
  if (!id) return {};
  ++(probe ? promotion_stats_.probes : promotion_stats_.started);
  return probe ? Waiting{} : Waiting{*id, clock_->Now() + wait};
}

std::optional<uint64_t> KvTiers::Start(const Hash128& root, std::span<const TokenId> tokens,
                                       std::span<const Hash128> keys, size_t matched,
                                       const Sources& sources) {
  const size_t total = matched + sources.size();
  const auto unit = static_cast<size_t>(blocks_->layout().block_tokens);
  Promotion p;
  p.root = root;
  p.tokens.assign(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(total * unit));
  p.keys.assign(keys.begin(), keys.begin() + static_cast<ptrdiff_t>(total));
  p.blocks = blocks_->MatchAndPin(root, p.tokens, static_cast<int32_t>(matched * unit));
  AISP_CHECK(p.blocks.size() == matched);
  auto reserved = blocks_->Reserve(static_cast<int32_t>(sources.size()));
  if (!reserved) {
    blocks_->Unpin(p.blocks, PinKind::kSequence);
    return std::nullopt;
  }
  blocks_->Pin(p.blocks, PinKind::kTier);
  blocks_->Unpin(p.blocks, PinKind::kSequence);
  const std::vector<BlockId> fresh = reserved->Take(PinKind::kTier);
  p.blocks.insert(p.blocks.end(), fresh.begin(), fresh.end());
  p.matched = matched;
  p.filled.assign(sources.size(), false);
  promoting_blocks_ += static_cast<int32_t>(total);
  const uint64_t id = next_id_++;
  Promotion& stored = promotions_.emplace(id, std::move(p)).first->second;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (!SubmitLoad(id, stored, i, sources[i])) break;
  }
  if (stored.under_way == 0) {
    Finish(stored);
    promotions_.erase(id);
    return std::nullopt;
  }
  loading_[keys[matched]] = id;
  return id;
}

bool KvTiers::SubmitLoad(uint64_t id, Promotion& promotion, size_t block, TierSpot from) {
  Tier& tier = TierOf(from.place);
  const size_t at = promotion.matched + block;
  const TierJob job{next_id_++,
                    from,
                    {TierPlace::kPool, promotion.blocks[at].value},
                    promotion.keys[at],
                    at == 0 ? Hash128{} : promotion.keys[at - 1],
                    static_cast<int32_t>(at) * blocks_->layout().block_tokens,
                    {}};
  if (!options_.io->Submit(job)) return false;
  tier.index.Hold(from.index);
  ++tier.loads;
  ++promotion.under_way;
  jobs_.emplace(job.id, Job{job, id, block});
  return true;
}

// True when its promotion has ended.
bool KvTiers::OnLoaded(const Job& job, const TierDone& done) {
  const TierSpot from = job.job.from;
  Tier& tier = TierOf(from.place);
  tier.index.Unhold(from.index);
  --tier.loads;
  const double seconds = ToSeconds(done.took);
  tier.stats.load_seconds += seconds;
  // A slow failure counts as a measurement; an immediate one says nothing about the rate.
  if (done.status || seconds > tier.load_seconds) Average(&tier.load_seconds, seconds);
  if (done.status) {
    ++tier.stats.loaded;
  } else {
    CountFailure(tier, done.status.error(), "a KV block was not read from its tier");
    // Another reader may still hold it; the last one drops it.
    if (done.status.error().code == Code::kDataLoss && !tier.index.Held(from.index) &&
        tier.index.Find(job.job.key) == from.index)
      Drop(tier, from.index);
  }
  if (job.forgotten) DropIfThere(tier, job.job.key);
  const auto it = promotions_.find(job.promotion);
  AISP_CHECK(it != promotions_.end());
  Promotion& p = it->second;
  p.filled[job.block] = done.status.has_value();
  if (--p.under_way > 0) return false;
  Finish(p);
  promotions_.erase(it);
  return true;
}

void KvTiers::Finish(Promotion& p) {
  size_t good = 0;
  while (!p.forgotten && good < p.filled.size() && p.filled[good]) ++good;
  const size_t total = p.matched + good;
  const auto unit = static_cast<size_t>(blocks_->layout().block_tokens);
  if (good > 0) {
    blocks_->Publish(p.root, std::span<const TokenId>(p.tokens).first(total * unit),
                     std::span<const BlockId>(p.blocks).first(total),
                     static_cast<int32_t>(p.matched));
    promotion_stats_.blocks += good;
    // Blocks from disk are likely to be wanted again.
    if (Enabled(host_))
      Store(std::span<const Hash128>(p.keys).first(total), p.blocks,
            static_cast<int32_t>(p.matched));
  }
  blocks_->Unpin(p.blocks, PinKind::kTier);
  promoting_blocks_ -= static_cast<int32_t>(p.blocks.size());
  loading_.erase(p.keys[p.matched]);
}

// ---- Both ----

bool KvTiers::Poll() {
  done_.clear();
  options_.io->TakeDone(&done_);
  bool changed = false;
  for (const TierDone& done : done_) {
    const auto it = jobs_.find(done.id);
    AISP_CHECK_MSG(it != jobs_.end(), "a tier's job ended twice");
    const Job job = it->second;
    jobs_.erase(it);
    changed |= job.promotion != 0 ? OnLoaded(job, done) : OnStored(job, done);
  }
  return changed;
}

void KvTiers::NotePrefill(int32_t tokens, Duration took) {
  if (tokens > 0 && took > Duration{}) Average(&seconds_per_token_, ToSeconds(took) / tokens);
}

// Logged at failures 1, 2, 4, 8, ... so that a broken disk does not fill the log.
void KvTiers::CountFailure(Tier& tier, const Error& error, const char* what) {
  ++(error.code == Code::kDataLoss ? tier.stats.corrupt : tier.stats.errors);
  if (std::has_single_bit(++failures_))
    LogWarning(what, {{"tier", &tier == &host_ ? "host" : "disk"},
                      {"error", error.message},
                      {"failures", failures_}});
}

std::vector<KvCacheEvent> KvTiers::TakeEvents(TierPlace tier, uint64_t* first_sequence) {
  return TierOf(tier).contents.TakeEvents(first_sequence);
}

std::vector<KvCacheEvent> KvTiers::SnapshotEvents(TierPlace tier, uint64_t* next_sequence) const {
  return TierOf(tier).contents.SnapshotEvents(next_sequence);
}

TierStats KvTiers::Stats(TierPlace place) const {
  const Tier& tier = TierOf(place);
  TierStats stats = tier.stats;
  stats.slots = tier.index.slots();
  stats.blocks = tier.index.used();
  stats.evictions = tier.index.evictions();
  return stats;
}

void KvTiers::CheckInvariants() const {
  host_.index.CheckInvariants();
  disk_.index.CheckInvariants();
  int32_t stores = 0;
  int32_t loads = 0;
  size_t loading = 0;
  for (const auto& [id, job] : jobs_) {
    (job.promotion != 0 ? loads : stores) += 1;
    if (job.promotion != 0) AISP_CHECK(promotions_.contains(job.promotion));
  }
  int32_t held = 0;
  for (const auto& [id, p] : promotions_) {
    loading += p.under_way;
    held += static_cast<int32_t>(p.blocks.size());
    AISP_CHECK_MSG(p.under_way > 0, "a promotion waits for nothing");
  }
  AISP_CHECK(stores == host_.stores + disk_.stores && loads == host_.loads + disk_.loads);
  AISP_CHECK(loading == static_cast<size_t>(loads) && held == promoting_blocks_);
  AISP_CHECK(loading_.size() == promotions_.size());
}

}  // namespace aisp
