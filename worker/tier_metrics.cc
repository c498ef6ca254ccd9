// Metrics of the tiers below a worker's KV pool.
#include "worker/worker_metrics.h"

namespace aisp {

WorkerMetrics::TierMetrics WorkerMetrics::AddTier(const std::string& tier) {
  Metrics& m = *metrics_;
  const MetricLabels labels = WithLabel(labels_, "tier", tier);
  const auto blocks = [&](const char* state) {
    return m.AddGauge("aisp_kv_blocks",
                      "KV blocks by tier and state; the states of a tier add up to all its blocks",
                      WithLabel(labels, "state", state));
  };
  const auto count = [&](const char* name, const char* help) {
    return m.AddCounter(name, help, labels);
  };
  const char* seconds = "aisp_kv_tier_seconds_total";
  const char* seconds_help = "Time of copies into (store) and out of (load) a tier";
  TierMetrics t;
  t.used = blocks("cached");
  t.free = blocks("free");
  t.bytes = m.AddGauge("aisp_kv_tier_bytes", "Bytes of KV that a tier holds", labels);
  t.hits =
      count("aisp_kv_tier_hits_total", "Prompt blocks that were looked up in a tier and found");
  t.misses = count("aisp_kv_tier_misses_total",
                   "Prompt blocks that were looked up in a tier and not found");
  t.evictions = count("aisp_kv_tier_evictions_total", "Blocks of a tier that made room for others");
  t.stored = count("aisp_kv_tier_stored_blocks_total", "Blocks copied into a tier");
  t.loaded = count("aisp_kv_tier_loaded_blocks_total", "Blocks copied from a tier into the pool");
  t.store_seconds = m.AddCounter(seconds, seconds_help, WithLabel(labels, "op", "store"));
  t.load_seconds = m.AddCounter(seconds, seconds_help, WithLabel(labels, "op", "load"));
  t.corrupt = count("aisp_kv_tier_corrupt_blocks_total",
                    "Blocks of a tier that were not what had been written");
  t.dropped = count("aisp_kv_tier_dropped_writes_total",
                    "Blocks not copied into a tier that had too much to do or no room");
  t.errors = count("aisp_kv_tier_errors_total", "Reads and writes of a tier that failed");
  return t;
}

void WorkerMetrics::UpdateTiers(const Engine& engine) {
  const KvTiers* tiers = engine.tiers();
  if (metrics_ == nullptr || tiers == nullptr) return;
  if (tiers_.empty()) {
    if (tiers->Stats(TierPlace::kHost).slots > 0)
      tiers_.emplace_back(TierPlace::kHost, AddTier("host"));
    if (tiers->Stats(TierPlace::kDisk).slots > 0)
      tiers_.emplace_back(TierPlace::kDisk, AddTier("disk"));
    const char* name = "aisp_kv_promotions_total";
    const char* help = "Lookups that found blocks in a tier, by whether those were fetched";
    promotions_ = metrics_->AddCounter(name, help, WithLabel(labels_, "decision", "fetch"));
    promotions_declined_ =
        metrics_->AddCounter(name, help, WithLabel(labels_, "decision", "compute"));
  }
  const auto advance = [this](const Counter& counter, auto total, auto told) {
    Advance(counter, static_cast<double>(total - told));
  };
  for (auto& [place, t] : tiers_) {
    const TierStats s = tiers->Stats(place);
    t.used.Set(s.blocks);
    t.free.Set(s.slots - s.blocks);
    t.bytes.Set(static_cast<double>(s.blocks) * static_cast<double>(layout_.BlockBytes()));
    advance(t.hits, s.hits, t.told.hits);
    advance(t.misses, s.misses, t.told.misses);
    advance(t.evictions, s.evictions, t.told.evictions);
    advance(t.stored, s.stored, t.told.stored);
    advance(t.loaded, s.loaded, t.told.loaded);
    advance(t.store_seconds, s.store_seconds, t.told.store_seconds);
    advance(t.load_seconds, s.load_seconds, t.told.load_seconds);
    advance(t.corrupt, s.corrupt, t.told.corrupt);
    advance(t.dropped, s.dropped_writes, t.told.dropped_writes);
    advance(t.errors, s.errors, t.told.errors);
    t.told = s;
  }
  const PromotionStats& p = tiers->promotions();
  advance(promotions_, p.started, told_promotions_.started);
  advance(promotions_declined_, p.declined, told_promotions_.declined);
  told_promotions_ = p;
}

}  // namespace aisp
