#include "worker/worker_metrics.h"

#include <algorithm>
#include <utility>

#include "proto/role.h"

namespace aisp {

MetricLabels WorkerLabels(v1::Role role, const std::string& worker_id) {
  return {{"role", std::string(RoleName(role))}, {"worker", worker_id}};
}

MetricLabels WithLabel(MetricLabels labels, const char* name, std::string value) {
  labels.emplace_back(name, std::move(value));
  return labels;
}

WorkerMetrics::WorkerMetrics(Metrics* metrics, const MetricLabels& labels, const KvLayout& layout,
                             Instant now)
    : metrics_(metrics), labels_(labels), layout_(layout), accounted_(now) {
  if (metrics == nullptr) return;
  AddStepMetrics(*metrics, labels);
  AddKvMetrics(*metrics, labels, layout);
}

void WorkerMetrics::AddStepMetrics(Metrics& m, const MetricLabels& labels) {
  steps_ = m.AddCounter("aisp_steps_total", "Engine steps collected", labels);
  prefill_tokens_ =
      m.AddCounter("aisp_prefill_tokens_total", "Prompt tokens computed here", labels);
  decode_rows_ =
      m.AddCounter("aisp_decode_rows_total", "Rows of running decodes computed here", labels);
  step_seconds_ =
      m.AddHistogram("aisp_step_seconds", "Launch to collect of one step", StepBuckets(), labels);
  step_overhead_seconds_ = m.AddHistogram(
      "aisp_step_overhead_seconds", "Part of a step outside the executor", StepBuckets(), labels);
  const char* engine = "aisp_engine_seconds_total";
  const char* engine_help = "Time of the engine, with a step under way (busy) or without (idle)";
  busy_seconds_ = m.AddCounter(engine, engine_help, WithLabel(labels, "state", "busy"));
  idle_seconds_ = m.AddCounter(engine, engine_help, WithLabel(labels, "state", "idle"));
  running_ =
      m.AddGauge("aisp_num_requests_running", "Sequences that hold blocks and compute", labels);
  waiting_ = m.AddGauge("aisp_num_requests_waiting",
                        "Sequences that wait for blocks or a place in a step", labels);
  awaiting_kv_ = m.AddGauge("aisp_num_requests_awaiting_kv",
                            "Sequences whose KV a prefill worker writes", labels);
  queued_prefill_tokens_ =
      m.AddGauge("aisp_queued_prefill_tokens", "Prompt tokens that wait to be computed", labels);
  ready_ = m.AddGauge("aisp_worker_ready", "1 when this worker is fit for traffic", labels);
  preemptions_ = m.AddCounter("aisp_num_preemptions_total",
                              "Sequences that gave their blocks up to others", labels);
}

void WorkerMetrics::AddKvMetrics(Metrics& m, const MetricLabels& labels, const KvLayout& layout) {
  blocks_available_ =
      m.AddGauge("aisp_kv_blocks_available", "KV blocks that are free or evictable", labels);
  blocks_quarantined_ =
      m.AddGauge("aisp_kv_blocks_quarantined",
                 "KV blocks given up that a remote writer has not acknowledged yet", labels);
  const auto blocks = [&](const char* state) {
    return m.AddGauge("aisp_kv_blocks",
                      "KV blocks by tier and state; the states of a tier add up to all its blocks",
                      WithLabel(WithLabel(labels, "tier", "device"), "state", state));
  };
  blocks_free_ = blocks("free");
  blocks_cached_ = blocks("cached");
  blocks_pinned_ = blocks("pinned");
  m.AddGauge("aisp_kv_block_bytes", "Bytes of one KV block, of all layers", labels)
      .Set(static_cast<double>(layout.BlockBytes()));
  m.AddGauge("aisp_cache_config_info", "Always 1; the labels say how the KV pool is cut",
             WithLabel(WithLabel(labels, "block_size", std::to_string(layout.block_tokens)),
                       "num_gpu_blocks", std::to_string(layout.num_blocks)))
      .Set(1);
  kv_usage_ = m.AddGauge("aisp_kv_cache_usage_perc",
                         "Part of the KV blocks that are pinned, 0 to 1", labels);
  evictions_ = m.AddCounter("aisp_kv_evictions_total",
                            "KV blocks of the prefix cache that were taken for others", labels);
  prefix_queries_ =
      m.AddCounter("aisp_prefix_cache_queries_total",
                   "Prompt tokens looked up in the prefix cache, once for each sequence", labels);
  prefix_hits_ = m.AddCounter("aisp_prefix_cache_hits_total",
                              "Of them, tokens whose KV was found and not computed again", labels);
}

void WorkerMetrics::RecordStep(const StepTiming& timing, Instant now) {
  steps_.Add();
  prefill_tokens_.Add(timing.prefill_tokens);
  decode_rows_.Add(timing.decode_rows);
  step_seconds_.Observe(ToSeconds(timing.duration));
  step_overhead_seconds_.Observe(ToSeconds(timing.overhead));
  // Steps may overlap: count only the part of this step after the previous one.
  const Instant launched = std::max(accounted_, now - timing.duration);
  idle_seconds_.Add(ToSeconds(launched - accounted_));
  busy_seconds_.Add(ToSeconds(std::max(Duration{}, now - launched)));
  accounted_ = std::max(accounted_, now);
}

void WorkerMetrics::UpdateSlowPaths(const Engine& engine) {
  if (metrics_ == nullptr) return;
  const std::vector<SlowPathCount> slow = engine.SlowPaths();
  for (size_t i = 0; i < slow.size(); ++i) {
    if (i == slow_paths_.size()) {
      const MetricLabels labels =
          WithLabel(WithLabel(labels_, "op", slow[i].op), "reason", slow[i].reason);
      slow_paths_.push_back(
          {metrics_->AddCounter("aisp_slow_path_total",
                                "Launches in something slower than what is meant for their kind",
                                labels),
           0});
    }
    Advance(slow_paths_[i].counter, static_cast<double>(slow[i].count - slow_paths_[i].told));
    slow_paths_[i].told = slow[i].count;
  }
}

void WorkerMetrics::Update(const Engine& engine, bool ready, Instant now) {
  running_.Set(engine.NumRunning());
  waiting_.Set(engine.NumWaiting());
  awaiting_kv_.Set(engine.NumAwaitingKv());
  queued_prefill_tokens_.Set(static_cast<double>(engine.QueuedPrefill().tokens));
  ready_.Set(ready ? 1 : 0);
  const BlockStats stats = engine.blocks().Stats();
  blocks_available_.Set(engine.blocks().Available());
  blocks_quarantined_.Set(stats.quarantined);
  blocks_free_.Set(stats.free);
  blocks_cached_.Set(stats.cached);
  blocks_pinned_.Set(stats.pinned);
  kv_usage_.Set(stats.total > 0 ? static_cast<double>(stats.pinned) / stats.total : 0);
  const auto advance = [this](const Counter& counter, uint64_t total, uint64_t* told) {
    Advance(counter, static_cast<double>(total - *told));
    *told = total;
  };
  advance(preemptions_, engine.Preemptions(), &told_preemptions_);
  advance(evictions_, stats.evictions, &told_evictions_);
  advance(prefix_queries_, stats.queries_tokens, &told_prefix_queries_);
  advance(prefix_hits_, stats.hits_tokens, &told_prefix_hits_);
  UpdateSlowPaths(engine);
  UpdateTiers(engine);
  if (engine.InFlight() || now <= accounted_) return;
  if (!rebasing_) idle_seconds_.Add(ToSeconds(now - accounted_));
  accounted_ = now;
}

void WorkerMetrics::Rebase(const Engine& engine, Instant now) {
  rebasing_ = true;
  Update(engine, /*ready=*/false, now);
  rebasing_ = false;
}

void WorkerMetrics::Retire() {
  for (const Gauge* gauge :
       {&running_, &waiting_, &awaiting_kv_, &queued_prefill_tokens_, &ready_, &blocks_available_,
        &blocks_quarantined_, &blocks_free_, &blocks_cached_, &blocks_pinned_, &kv_usage_})
    gauge->Set(0);
  for (auto& [place, tier] : tiers_) {
    tier.used.Set(0);
    tier.free.Set(0);
    tier.bytes.Set(0);
  }
}

}  // namespace aisp
