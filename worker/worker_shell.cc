#include "worker/worker_shell.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "common/log.h"
#include "proto/hash_wire.h"
#include "worker/adapter_keeper.h"
#include "worker/step_observer.h"

namespace aisp {
namespace {

// Step samples kept between two telemetry messages; a router fits a line through them, so the
// newest suffice.
constexpr size_t kMaxSamples = 64;

// Between two reports of new load.
constexpr Duration kLoadInterval = std::chrono::milliseconds(10);

// How long a newly registered worker may stay unready while it loads the served LoRA adapters.
constexpr Duration kAdapterLimit = std::chrono::seconds(120);

v1::Register MakeRegister(const WorkerOptions& options, const WorkerShell::Profile& profile) {
  v1::Register hello;
  hello.set_worker_id(options.worker_id);
  hello.set_incarnation(options.incarnation);
  hello.set_role(profile.role);
  *hello.mutable_fingerprint() = options.fingerprint;
  hello.set_max_batch_tokens(static_cast<uint32_t>(options.max_batch_tokens));
  hello.set_max_prefill_chunk(static_cast<uint32_t>(options.max_prefill_chunk));
  hello.set_launched_ahead(static_cast<uint32_t>(options.launched_ahead));
  hello.set_kv_address(options.kv_address);
  hello.set_host_id(options.host_id);
  for (const std::string& name : profile.transports) hello.add_transports(name);
  hello.set_max_sequence_tokens(static_cast<uint32_t>(profile.max_sequence_tokens));
  hello.set_max_running(static_cast<uint32_t>(profile.max_running));
  hello.set_first_tokens(true);
  hello.set_pid(options.pid);
  hello.set_admin_url(options.admin_url);
  hello.set_version(options.version);
  if (options.last_exit) *hello.mutable_last_exit() = *options.last_exit;
  hello.set_role_epoch(1);
  for (const v1::Role role : options.roles) hello.add_roles(role);
  return hello;
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

struct TierOnWire {
  TierPlace place;
  v1::KvTier wire;
};
constexpr TierOnWire kTiers[] = {{TierPlace::kHost, v1::KV_TIER_HOST},
                                 {TierPlace::kDisk, v1::KV_TIER_DISK}};

v1::WorkerMessage MakeKvEvents(uint64_t incarnation, uint64_t first_sequence, bool snapshot,
                               const std::vector<KvCacheEvent>& events,
                               v1::KvTier tier = v1::KV_TIER_POOL) {
  v1::WorkerMessage message;
  v1::KvEventBatch* batch =
      tier == v1::KV_TIER_POOL ? message.mutable_kv_events() : message.mutable_tier_events();
  batch->set_tier(tier);
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
      role_(profile.role),
      queued_prompts_(profile.queued_prompts),
      engine_(engine),
      clock_(clock),
      routers_(options, MakeRegister(options, profile)),
      metrics_registry_(metrics) {
  routers_.SetDialer(routers);
  if (options_.adapters != nullptr) options_.adapters->OnChange([this] { ReportAdapters(); });
  last_progress_ = last_pool_motion_ = clock_->Now();
}

void WorkerShell::Start() {
  const Instant now = clock_->Now();
  if (!metrics_)
    metrics_.emplace(metrics_registry_, WorkerLabels(role_, options_.worker_id),
                     engine_->blocks().layout(), now);
  // Earlier counts belong to another role.
  metrics_->Rebase(*engine_, now);
  last_progress_ = last_pool_motion_ = now;
  next_telemetry_ = now + options_.telemetry_interval;
  routers_.Start(now);
}

void WorkerShell::StandBy() {
  standing_by_ = true;
  next_telemetry_ = kNever;
  routers_.StandBy();
  if (metrics_) metrics_->Retire();
}

void WorkerShell::Activate(uint64_t role_epoch) {
  standing_by_ = draining_ = drained_ = false;
  samples_.clear();
  routers_.SetRoleEpoch(role_epoch);
  Start();
}

bool WorkerShell::OnMessage(LinkId link, const v1::RouterMessage& message) {
  switch (message.body_case()) {
    case v1::RouterMessage::kRegistered:
      OnRegistered(link, message.registered());
      return true;
    case v1::RouterMessage::kRefused:
      routers_.OnRefused(link, message.refused(), clock_->Now());
      return true;
    case v1::RouterMessage::kRouterDraining:
      routers_.OnRouterDraining(link, clock_->Now());
      return true;
    case v1::RouterMessage::kProbe: {
      v1::WorkerMessage answer;
      answer.mutable_probe_answer()->set_nonce(message.probe().nonce());
      Send(link, std::move(answer));
      return true;
    }
    case v1::RouterMessage::kKvSnapshot:
      // The process's active role reports the cache.
      if (Attached(link) && !standing_by_) SendSnapshot(link);
      return true;
    case v1::RouterMessage::kLoadAdapter:
      LoadAdapter(link, message.load_adapter());
      return true;
    case v1::RouterMessage::kAdapters:
      if (Attached(link) && options_.adapters != nullptr)
        options_.adapters->Take(message.adapters());
      return true;
    default:
      return false;
  }
}

bool WorkerShell::OnLinkDown(LinkId link, const Error& why) {
  if (options_.adapters != nullptr) options_.adapters->OnLinkDown(link);
  return routers_.OnLinkDown(link, why, clock_->Now());
}

void WorkerShell::OnRegistered(LinkId link, const v1::Registered& accepted) {
  routers_.OnRegistered(link, accepted);
  if (options_.adapters != nullptr && accepted.has_adapters()) {
    await_adapters_ = clock_->Now() + kAdapterLimit;
    // The first message to a router must be the snapshot.
    telling_ = false;
    options_.adapters->Take(accepted.adapters());
    telling_ = true;
  }
  Attach(link);
  ReportAdapters();
}

void WorkerShell::ReportAdapters() {
  if (options_.adapters == nullptr || standing_by_ || !telling_) return;
  if (routers_.AttachedLinks().empty()) return;
  v1::WorkerMessage message;
  *message.mutable_adapters() = options_.adapters->Report();
  routers_.Broadcast(message);
  // It may be ready now.
  Report();
}

void WorkerShell::LoadAdapter(LinkId link, const v1::LoadAdapter& asked) {
  if (!Attached(link)) return;
  const auto answer = [this, link](v1::AdapterAnswer&& said) {
    v1::WorkerMessage message;
    *message.mutable_adapter_answer() = std::move(said);
    Send(link, std::move(message));
  };
  if (options_.adapters != nullptr) return options_.adapters->Load(link, asked, answer);
  v1::AdapterAnswer cannot;
  cannot.set_nonce(asked.nonce());
  cannot.mutable_error()->set_code(static_cast<int>(Code::kUnimplemented));
  cannot.mutable_error()->set_message("this worker loads no LoRA adapters");
  answer(std::move(cannot));
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
  // Earlier events first, so that every router sees each number once and in order.
  PublishKvEvents();
  uint64_t next_sequence = 0;
  const std::vector<KvCacheEvent> events = engine_->blocks().SnapshotEvents(&next_sequence);
  Send(link, MakeKvEvents(options_.incarnation, next_sequence, true, events));
  const KvTiers* const tiers = engine_->tiers();
  if (tiers == nullptr) return;
  for (const auto& [place, wire] : kTiers) {
    if (tiers->Stats(place).slots == 0) continue;
    const std::vector<KvCacheEvent> held = tiers->SnapshotEvents(place, &next_sequence);
    Send(link, MakeKvEvents(options_.incarnation, next_sequence, true, held, wire));
  }
}

void WorkerShell::PublishKvEvents() {
  if (standing_by_) return;
  uint64_t first_sequence = 0;
  const std::vector<KvCacheEvent> events = engine_->blocks().TakeEvents(&first_sequence);
  if (!events.empty())
    routers_.Broadcast(MakeKvEvents(options_.incarnation, first_sequence, false, events));
  for (const auto& [place, wire] : kTiers) {
    const std::vector<KvCacheEvent> moved = engine_->TakeTierEvents(place, &first_sequence);
    if (!moved.empty())
      routers_.Broadcast(MakeKvEvents(options_.incarnation, first_sequence, false, moved, wire));
  }
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
  if (timing.step == 0) return;  // a Collect that returned only ends
  ++steps_total_;
  last_progress_ = last_pool_motion_ = clock_->Now();
  if (samples_.size() == kMaxSamples) samples_.pop_front();
  samples_.push_back(timing);
  if (metrics_) metrics_->RecordStep(timing, last_progress_);
  if (options_.steps != nullptr) options_.steps->OnStep(timing, last_progress_);
}

void WorkerShell::NoteProgress(Instant now) {
  if (!engine_->CanLaunch() && !engine_->InFlight()) last_progress_ = now;
  // An empty pool matters only if someone waits for blocks.
  const bool wanted = engine_->NumWaiting() > 0 || engine_->blocks().Stats().quarantined > 0;
  if (engine_->blocks().Available() > 0 || !wanted) last_pool_motion_ = now;
}

void WorkerShell::SendTelemetry(Instant now) {
  if (standing_by_) return;
  last_telemetry_ = now;
  next_telemetry_ = now + routers_.TelemetryInterval();
  if (options_.pulse != nullptr) {
    options_.pulse->SetLinks(routers_.AttachedLinks(), routers_.TelemetryInterval());
  }
  const Status ready = Ready();
  if (metrics_) metrics_->Update(*engine_, ready.has_value(), now);
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
  const PromptWork queued = engine_->QueuedPrefill();
  t->set_queued_prefill_tokens(static_cast<uint64_t>(queued.tokens));
  t->set_queued_prefill_context(static_cast<uint64_t>(queued.context));
  const YieldingWork yielding = engine_->Yielding();
  t->set_yielding_rows(static_cast<uint32_t>(yielding.rows));
  t->set_yielding_blocks(static_cast<uint32_t>(yielding.blocks));
  t->set_yielding_prefill_tokens(static_cast<uint64_t>(yielding.prefill.tokens));
  t->set_yielding_prefill_context(static_cast<uint64_t>(yielding.prefill.context));
  t->set_prefill_age_ns(static_cast<uint64_t>(std::max<int64_t>(0, engine_->PrefillAge().count())));
  t->set_free_blocks(static_cast<uint32_t>(engine_->blocks().Available()));
  t->set_total_blocks(static_cast<uint32_t>(stats.total));
  t->set_quarantined_blocks(static_cast<uint32_t>(stats.quarantined));
  for (const StepTiming& step : samples_) {
    v1::StepSample* sample = t->add_steps();
    sample->set_prefill_tokens(static_cast<uint32_t>(step.prefill_tokens));
    sample->set_decode_rows(static_cast<uint32_t>(step.decode_rows));
    sample->set_prefill_context(static_cast<uint64_t>(step.prefill_context));
    sample->set_decode_context(static_cast<uint64_t>(step.decode_context));
    sample->set_duration_ns(static_cast<uint64_t>(step.device.count()));
  }
  t->set_transfer_bytes_per_s(transfer_bytes_per_s_);
  if (const KvTiers* const tiers = engine_->tiers(); tiers != nullptr) {
    t->set_host_block_ns(static_cast<uint64_t>(1e9 * tiers->BlockSeconds(TierPlace::kHost)));
    t->set_disk_block_ns(static_cast<uint64_t>(1e9 * tiers->BlockSeconds(TierPlace::kDisk)));
  }
  t->set_ready(ready.has_value());
  t->set_draining(draining_);
  t->set_drained(drained_);
  if (!ready) t->set_unready_reason(ready.error().message);
  if (queued_prompts_) t->set_queued_prompts(queued_prompts_());
  t->set_requests_total(requests_total_);
  t->set_steps_total(steps_total_);
  t->set_preemptions_total(engine_->Preemptions());
  return message;
}

void WorkerShell::NoteLoad(bool request) {
  requests_total_ += request ? 1 : 0;
  if (routers_.AttachedLinks().size() < 2) return;
  next_telemetry_ =
      std::min(next_telemetry_, std::max(clock_->Now(), last_telemetry_ + kLoadInterval));
}

bool WorkerShell::BeginDrain() {
  if (draining_) return false;
  draining_ = true;
  LogInfo("draining", {{"worker", options_.worker_id}});
  return true;
}

bool WorkerShell::CallOffDrain() {
  if (!std::exchange(draining_, false)) return false;
  drained_ = false;
  LogInfo("the drain is called off", {{"worker", options_.worker_id}});
  v1::WorkerMessage message;
  message.mutable_draining()->set_over(true);
  routers_.Broadcast(message);
  Report();
  return true;
}

Status WorkerShell::Ready() const {
  if (!engine_->failed())
    return tl::unexpected(engine_->failed().error().WithContext("device failed"));
  AISP_RETURN_IF_ERROR(routers_.Ready());
  const Instant now = clock_->Now();
  if (options_.adapters != nullptr && now < await_adapters_ && !options_.adapters->Settled())
    return Unavailable("the LoRA adapters that are served are being loaded");
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
