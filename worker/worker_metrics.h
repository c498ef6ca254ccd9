// Metrics common to all worker roles: steps, load, KV blocks, prefix cache. Handles are fetched
// once; a role adds its own metrics with the same labels (WorkerLabels).
//
// Owned by the WorkerShell; the engine thread. Uses the shell's clock, so that the simulation
// measures too.
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

// One process may hold workers of several roles, so every metric is labelled with role and name.
MetricLabels WorkerLabels(v1::Role role, const std::string& worker_id);
MetricLabels WithLabel(MetricLabels labels, const char* name, std::string value);

class WorkerMetrics {
 public:
  // `metrics` may be null: nothing is measured then.
  WorkerMetrics(Metrics* metrics, const MetricLabels& labels, const KvLayout& layout, Instant now);

  // After every Collect that returned a step.
  void RecordStep(const StepTiming& timing, Instant now);
  // Updates gauges and counters from the engine.
  void Update(const Engine& engine, bool ready, Instant now);
  // Makes the engine's counts so far the baseline: they belong to another role.
  void Rebase(const Engine& engine, Instant now);
  // The process has another role now: sets this role's gauges to zero.
  void Retire();

 private:
  void AddStepMetrics(Metrics& m, const MetricLabels& labels);
  void UpdateSlowPaths(const Engine& engine);
  void AddKvMetrics(Metrics& m, const MetricLabels& labels, const KvLayout& layout);
  // Of the host and disk tiers, if the engine has them.
  void UpdateTiers(const Engine& engine);
  // Adds to a counter that follows one of the engine's.
  void Advance(const Counter& counter, double more) const {
    if (!rebasing_) counter.Add(more);
  }

  // One per slow path, in the order of Engine::SlowPaths.
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

  // Until when the engine's time is counted as busy or idle.
  Instant accounted_;
  // The engine's counts become the baseline without being exported.
  bool rebasing_ = false;
  // Exported values of the counters that follow the engine's.
  uint64_t told_preemptions_ = 0;
  uint64_t told_evictions_ = 0;
  uint64_t told_prefix_queries_ = 0;
  uint64_t told_prefix_hits_ = 0;
};

}  // namespace aisp
