#include "worker/worker_shell.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "common/log.h"

namespace aisp {
namespace {

// Step samples kept between two telemetry messages; a router fits a line through them, the newest are enough.
constexpr size_t kMaxSamples = 64;

v1::Register MakeRegister(const WorkerOptions& options, const WorkerShell::Profile& profile) {
  v1::Register hello;
  hello.set_worker_id(options.worker_id);
  hello.set_incarnation(options.incarnation);
  hello.set_role(profile.role);
  *hello.mutable_fingerprint() = options.fingerprint;
  hello.set_kv_address(options.kv_address);
  hello.set_host_id(options.host_id);
  for (const std::string& name : profile.transports) hello.add_transports(name);
  hello.set_max_sequence_tokens(static_cast<uint32_t>(profile.max_sequence_tokens));
  hello.set_max_running(static_cast<uint32_t>(profile.max_running));
  return hello;
}

std::string HashToWire(const Hash128& hash) {
  std::string bytes(16, '\0');
  for (size_t i = 0; i < 8; ++i) {
    bytes[i] = static_cast<char>(hash.lo >> (8 * i));
    bytes[8 + i] = static_cast<char>(hash.hi >> (8 * i));
  }
  return bytes;
}

v1::KvEvent::Kind KindToWire(KvCacheEvent::Kind kind) {
  switch (kind) {
    case KvCacheEvent::Kind::kStored:
      return v1::KvEvent::STORED;
    case KvCacheEvent::Kind::kRemoved:
      return v1::KvEvent::REMOVED;
    case KvCacheEvent::Kind::kCleared:
      return v1::KvEvent::CLEARED;
  }
  return v1::KvEvent::CLEARED;
}

v1::WorkerMessage MakeKvEvents(uint64_t incarnation, uint64_t first_sequence, bool snapshot,
                               const std::vector<KvCacheEvent>& events) {
  v1::WorkerMessage message;
  v1::KvEventBatch* batch = message.mutable_kv_events();
  batch->set_incarnation(incarnation);
  batch->set_first_sequence(first_sequence);
  batch->set_snapshot(snapshot);
  for (const KvCacheEvent& event : events) {
    v1::KvEvent* out = batch->add_events();
    out->set_kind(KindToWire(event.kind));
    for (const Hash128& hash : event.unit_hashes) out->add_unit_hashes(HashToWire(hash));
  }
  return message;
}

}  // namespace

WorkerShell::WorkerShell(const WorkerOptions& options, const Profile& profile, Engine* engine,
                         const Clock* clock, LinkDialer<v1::WorkerMessage>* routers,
                         Metrics* metrics)
    : options_(options),
      engine_(engine),
      clock_(clock),
      routers_(options, MakeRegister(options, profile)) {
  routers_.SetDialer(routers);
  last_progress_ = last_pool_motion_ = clock_->Now();
  if (metrics != nullptr) AddMetrics(*metrics, profile.role);
}

void WorkerShell::AddMetrics(Metrics& m, v1::Role role) {
  // One process may hold workers of both roles.
  const MetricLabels labels = {{"role", role == v1::ROLE_PREFILL ? "prefill" : "decode"},
                               {"worker", options_.worker_id}};
  steps_counter_ = m.AddCounter("aisp_steps_total", "Engine steps collected", labels);
  prefill_tokens_counter_ =
      m.AddCounter("aisp_prefill_tokens_total", "Prompt tokens computed here", labels);
  decode_rows_counter_ =
      m.AddCounter("aisp_decode_rows_total", "Rows of running decodes computed here", labels);
  step_seconds_ =
      m.AddHistogram("aisp_step_seconds", "Launch to collect of one step", StepBuckets(), labels);
  step_overhead_seconds_ = m.AddHistogram(
      "aisp_step_overhead_seconds", "Part of a step outside the executor", StepBuckets(), labels);
  running_gauge_ =
      m.AddGauge("aisp_num_requests_running", "Sequences that hold blocks and compute", labels);
  waiting_gauge_ = m.AddGauge("aisp_num_requests_waiting",
                              "Sequences that wait for blocks or a place in a step", labels);
  awaiting_kv_gauge_ = m.AddGauge("aisp_num_requests_awaiting_kv",
                                  "Sequences whose KV a prefill worker writes", labels);
  free_blocks_gauge_ =
      m.AddGauge("aisp_kv_blocks_available", "KV blocks that are free or evictable", labels);
  quarantined_gauge_ =
      m.AddGauge("aisp_kv_blocks_quarantined",
                 "KV blocks given up that a remote writer has not acknowledged yet", labels);
  kv_usage_gauge_ = m.AddGauge("aisp_kv_cache_usage_perc",
                               "Part of the KV blocks that are pinned, 0 to 1", labels);
  preemptions_counter_ = m.AddCounter("aisp_num_preemptions_total",
                                      "Sequences that gave their blocks up to others", labels);
  prefix_queries_counter_ =
      m.AddCounter("aisp_prefix_cache_queries_total",
                   "Prompt tokens that were looked up in the prefix cache", labels);
  prefix_hits_counter_ =
      m.AddCounter("aisp_prefix_cache_hits_total",
                   "Prompt tokens whose KV was found in the prefix cache", labels);
  ready_gauge_ = m.AddGauge("aisp_worker_ready", "1 when this worker is fit for traffic", labels);
}

void WorkerShell::Start() {
  const Instant now = clock_->Now();
  next_telemetry_ = now + options_.telemetry_interval;
  routers_.Start(now);
}

bool WorkerShell::OnMessage(LinkId link, const v1::RouterMessage& message) {
  switch (message.body_case()) {
    case v1::RouterMessage::kRegistered:
      routers_.OnRegistered(link, message.registered());
      Attach(link);
      return true;
    case v1::RouterMessage::kRefused:
      routers_.OnRefused(link, message.refused(), clock_->Now());
      return true;
    case v1::RouterMessage::kRouterDraining:
      routers_.OnRouterDraining(link, clock_->Now());
      return true;
    case v1::RouterMessage::kKvSnapshot:
      if (Attached(link)) SendSnapshot(link);
      return true;
    default:
      return false;
  }
}

void WorkerShell::Attach(LinkId link) {
  if (!Attached(link)) return;
  SendSnapshot(link);
  if (draining_) {
    v1::WorkerMessage message;
    message.mutable_draining();
    Send(link, std::move(message));
  }
  SendTelemetry(clock_->Now());
}

void WorkerShell::SendSnapshot(LinkId link) {
  // What happened before the snapshot goes out first, so that every router sees each number once and in order.
  PublishKvEvents();
  uint64_t next_sequence = 0;
  const std::vector<KvCacheEvent> events = engine_->blocks().SnapshotEvents(&next_sequence);
  Send(link, MakeKvEvents(options_.incarnation, next_sequence, true, events));
}

void WorkerShell::PublishKvEvents() {
  uint64_t first_sequence = 0;
  const std::vector<KvCacheEvent> events = engine_->blocks().TakeEvents(&first_sequence);
  if (events.empty()) return;
  routers_.Broadcast(MakeKvEvents(options_.incarnation, first_sequence, false, events));
}

Instant WorkerShell::NextTimer() const { return std::min(next_telemetry_, routers_.NextTimer()); }

void WorkerShell::OnTimer(Instant now) {
  routers_.OnTimer(now);
  if (now < next_telemetry_) return;
  NoteProgress(now);
  PublishKvEvents();
  SendTelemetry(now);
}

void WorkerShell::RecordStep(const StepTiming& timing) {
  if (timing.step == 0) return;  // a Collect that only brought ends
  ++steps_total_;
  last_progress_ = last_pool_motion_ = clock_->Now();
  if (samples_.size() == kMaxSamples) samples_.pop_front();
  samples_.push_back(timing);
  steps_counter_.Add();
  prefill_tokens_counter_.Add(timing.prefill_tokens);
  decode_rows_counter_.Add(timing.decode_rows);
  step_seconds_.Observe(ToSeconds(timing.duration));
  step_overhead_seconds_.Observe(ToSeconds(timing.overhead));
}

void WorkerShell::NoteProgress(Instant now) {
  if (!engine_->CanLaunch() && !engine_->InFlight()) last_progress_ = now;
  // An empty pool is only trouble when somebody waits for it.
  const bool wanted = engine_->NumWaiting() > 0 || engine_->blocks().Stats().quarantined > 0;
  if (engine_->blocks().Available() > 0 || !wanted) last_pool_motion_ = now;
}

void WorkerShell::SendTelemetry(Instant now) {
  next_telemetry_ = now + routers_.TelemetryInterval();
  UpdateGauges();
  const Status ready = Ready();
  ready_gauge_.Set(ready ? 1 : 0);
  routers_.Broadcast(MakeTelemetry(ready));
  samples_.clear();
}

v1::WorkerMessage WorkerShell::MakeTelemetry(const Status& ready) {
  v1::WorkerMessage message;
  v1::Telemetry* t = message.mutable_telemetry();
  const BlockStats stats = engine_->blocks().Stats();
  t->set_incarnation(options_.incarnation);
  t->set_sequence(telemetry_sequence_++);
  t->set_running(static_cast<uint32_t>(engine_->NumRunning()));
  t->set_waiting(static_cast<uint32_t>(engine_->NumWaiting()));
  t->set_awaiting_kv(static_cast<uint32_t>(engine_->NumAwaitingKv()));
  t->set_queued_prefill_tokens(static_cast<uint64_t>(engine_->QueuedPrefillTokens()));
  t->set_free_blocks(static_cast<uint32_t>(engine_->blocks().Available()));
  t->set_total_blocks(static_cast<uint32_t>(stats.total));
  t->set_quarantined_blocks(static_cast<uint32_t>(stats.quarantined));
  for (const StepTiming& step : samples_) {
    v1::StepSample* sample = t->add_steps();
    sample->set_prefill_tokens(static_cast<uint32_t>(step.prefill_tokens));
    sample->set_decode_rows(static_cast<uint32_t>(step.decode_rows));
    sample->set_context_tokens(static_cast<uint64_t>(step.context_tokens));
    sample->set_duration_ns(static_cast<uint64_t>(step.duration.count()));
  }
  t->set_transfer_bytes_per_s(transfer_bytes_per_s_);
  t->set_ready(ready.has_value());
  t->set_draining(draining_);
  t->set_drained(drained_);
  if (!ready) t->set_unready_reason(ready.error().message);
  t->set_steps_total(steps_total_);
  t->set_preemptions_total(engine_->Preemptions());
  return message;
}

void WorkerShell::UpdateGauges() {
  running_gauge_.Set(engine_->NumRunning());
  waiting_gauge_.Set(engine_->NumWaiting());
  awaiting_kv_gauge_.Set(engine_->NumAwaitingKv());
  free_blocks_gauge_.Set(engine_->blocks().Available());
  const BlockStats stats = engine_->blocks().Stats();
  quarantined_gauge_.Set(stats.quarantined);
  kv_usage_gauge_.Set(stats.total > 0 ? static_cast<double>(stats.pinned) / stats.total : 0);
  // The engine counts from its start; the counters take what is new.
  const auto advance = [](const Counter& counter, uint64_t now, uint64_t* told) {
    counter.Add(static_cast<double>(now - *told));
    *told = now;
  };
  advance(preemptions_counter_, engine_->Preemptions(), &told_preemptions_);
  advance(prefix_queries_counter_, stats.queries_tokens, &told_prefix_queries_);
  advance(prefix_hits_counter_, stats.hits_tokens, &told_prefix_hits_);
}

bool WorkerShell::BeginDrain() {
  if (draining_) return false;
  draining_ = true;
  LogInfo("draining", {{"worker", options_.worker_id}});
  return true;
}

Status WorkerShell::Ready() const {
  if (!engine_->failed())
    return tl::unexpected(engine_->failed().error().WithContext("device failed"));
  AISP_RETURN_IF_ERROR(routers_.Ready());
  const Instant now = clock_->Now();
  const bool has_work = engine_->CanLaunch() || engine_->InFlight();
  if (has_work && now - last_progress_ > options_.step_stall_limit) {
    return Unavailable(
        fmt::format("no step ended for {:.1f} s though there is work (limit {:.1f} s)",
                    ToSeconds(now - last_progress_), ToSeconds(options_.step_stall_limit)));
  }
  const BlockStats stats = engine_->blocks().Stats();
  if (engine_->blocks().Available() == 0 && now - last_pool_motion_ > options_.step_stall_limit) {
    return ResourceExhausted(
        fmt::format("all {} KV blocks are pinned ({} of them quarantined: a prefill worker owes "
                    "acknowledgements) and "
                    "nothing moved for {:.1f} s",
                    stats.total, stats.quarantined, ToSeconds(now - last_pool_motion_)));
  }
  return {};
}

}  // namespace aisp
