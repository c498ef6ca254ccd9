// What every worker measures of itself, whatever its role: steps, load, KV blocks, the prefix
// cache. Handles are fetched once; a worker's own role adds its own beside these, with the same
// labels (WorkerLabels).
//
// Owned by the WorkerShell; the engine thread. Time is the shell's clock, so that the simulation
// measures as well.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/metrics.h"
#include "engine/engine.h"
#include "worker.pb.h"

namespace aisp {

// One process may hold workers of both roles, so everything that a worker measures carries its role
// and its name.
MetricLabels WorkerLabels(v1::Role role, const std::string& worker_id);
MetricLabels WithLabel(MetricLabels labels, const char* name, std::string value);

class WorkerMetrics {
 public:
  // `metrics` may be null: nothing is measured then.
  WorkerMetrics(Metrics* metrics, const MetricLabels& labels, const KvLayout& layout, Instant now);

  // After every Collect that brought a step.
  void RecordStep(const StepTiming& timing, Instant now);
  // Gauges, and what the engine counts itself.
  void Update(const Engine& engine, bool ready, Instant now);
  // What the engine has counted so far is not this role's.
  void Rebase(const Engine& engine, Instant now);
  // The process has another role now: nothing runs in this one, and it holds nothing.
  void Retire();

 private:
  void AddStepMetrics(Metrics& m, const MetricLabels& labels);
  void UpdateSlowPaths(const Engine& engine);
  void AddKvMetrics(Metrics& m, const MetricLabels& labels, const KvLayout& layout);
  // Of host memory and the disk, where the engine has them.
  void UpdateTiers(const Engine& engine);
  // A counter that follows one of the engine's own.
  void Advance(const Counter& counter, double more) const {
    if (!rebasing_) counter.Add(more);
  }

  // Of each slow path, in the order of Engine::SlowPaths.
  struct SlowPathCounter {
    Counter counter;
    uint64_t told = 0;
  };

  // One tier below the pool.
  struct TierMetrics {
    Gauge used, free, bytes;
    Counter hits, misses, evictions, stored, loaded, store_seconds, load_seconds, corrupt, dropped,
        errors;
    TierStats told;
  };
  TierMetrics AddTier(const std::string& tier);

  Metrics* const metrics_;
  const MetricLabels labels_;
  const KvLayout layout_;
  std::vector<SlowPathCounter> slow_paths_;
  std::vector<std::pair<TierPlace, TierMetrics>> tiers_;
  Counter promotions_;
  Counter promotions_declined_;
  PromotionStats told_promotions_;
  Counter steps_;
  Counter prefill_tokens_;
  Counter decode_rows_;
  Counter busy_seconds_;
  Counter idle_seconds_;
  Histogram step_seconds_;
  Histogram step_overhead_seconds_;
  Gauge running_;
  Gauge waiting_;
  Gauge awaiting_kv_;
  Gauge queued_prefill_tokens_;
  Gauge ready_;
  Gauge blocks_available_;
  Gauge blocks_quarantined_;
  Gauge blocks_free_;
  Gauge blocks_cached_;
  Gauge blocks_pinned_;
  Gauge kv_usage_;
  Counter preemptions_;
  Counter evictions_;
  Counter prefix_queries_;
  Counter prefix_hits_;

  // Until when the engine's time is accounted for, as busy or as idle.
  Instant accounted_;
  // What the engine has counted is noted, and given to no counter.
  bool rebasing_ = false;
  // What the counters that follow the engine's own have been given.
  uint64_t told_preemptions_ = 0;
  uint64_t told_evictions_ = 0;
  uint64_t told_prefix_queries_ = 0;
  uint64_t told_prefix_hits_ = 0;
};

}  // namespace aisp
