#include "tests/sim/worker.h"

#include <fmt/format.h>

#include "common/check.h"
#include "proto/fingerprint.h"
#include "proto/role.h"
#include "speculation/speculator.h"
#include "tests/sim/sim_proposer.h"
#include "worker/fingerprint.h"

namespace aisp {
namespace {

constexpr int kMaxTurns = 100000;
constexpr int32_t kDraftRows = 16;

}  // namespace

SimWorker::SimWorker(const SimShared& shared, const SimIdentity& identity)
    : shared_(shared),
      name_(identity.name),
      incarnation_(identity.incarnation),
      process_(std::make_shared<SimProcess>(
          fmt::format("{}#{:08x}", name_, identity.incarnation >> 32), [this] { Pump(); })),
      clock_(shared.settings->MakeClock(*shared.world)),
      pulse_({.incarnation = identity.incarnation}) {
  const SimSettings& s = *shared.settings;
  if (s.skewed_clocks) shared.coverage->Count("process with a time of its own");
  BuildExecutor(identity);
  BuildTransports();
  WorkerOptions options;
  options.worker_id = name_;
  options.incarnation = incarnation_;
  options.pulse = &pulse_;
  options.last_exit = identity.last_exit;
  options.host_id = "host";
  options.router_addresses = shared.router_addresses;
  options.drain_timeout = s.drain_timeout;
  options.fingerprint = shared.fingerprint;
  *options.fingerprint.mutable_kv_layout() =
      DescribeLayout(ProvenanceExecutor::LayoutOf(model_options_));
  options.kv_address = (identity.kv_address.empty() ? name_ : identity.kv_address) + ":kv";
  options.roles = {v1::ROLE_PREFILL, v1::ROLE_DECODE, v1::ROLE_PARKED};
  BuildRoles(identity, options);
}

void SimWorker::BuildExecutor(const SimIdentity& identity) {
  const SimSettings& s = *shared_.settings;
  ProvenanceOptions model = shared_.model;
  model.num_blocks = identity.prefill ? s.prefill_blocks : s.decode_blocks;
  model.block_tokens = identity.prefill ? s.prefill_block_tokens : s.block_tokens;
  model.spelled = identity.prefill ? s.prefill_dtype : s.decode_dtype;
  if (s.Speculates()) model.max_draws = model.max_slots + kDraftRows;
  model_options_ = model;
  const KvLayout layout = ProvenanceExecutor::LayoutOf(model);
  pool_.resize(layout.PoolBytes(), std::byte{0xee});
  model_ = std::make_unique<ProvenanceExecutor>(model, pool_);
  executor_ =
      std::make_unique<TimedExecutor>(shared_.world, model_.get(), s.step_base_ms, s.step_token_ms);
  const auto faults = [this] { return !*shared_.faults_over; };
  executor_->faults = faults;
  executor_->ends_process = [this] { Crash(); };
  executor_->row_failure_chance = s.row_failure_chance;
  executor_->long_step_chance = s.long_step_chance;
  executor_->begins = [this](int64_t rows) { pulse_.StepBegins(rows, clock_.Now()); };
  executor_->ends = [this] { pulse_.StepEnds(clock_.Now()); };
  if (s.host_slots + s.disk_slots == 0) return;
  tiers_ = std::make_unique<SimTiers>(shared_.world, s, layout, pool_.data(), identity.disk);
  tiers_->process = process_;
  tiers_->faults = faults;
  tiers_->on_done = [this] { role().OnTransport(); };
  tiers_->on_failed = [this] { shared_.coverage->Count("copy to or from a tier failed"); };
}

void SimWorker::BuildTransports() {
  transport_ = shared_.fabric->MakeTransport(process_->name);
  if (shared_.fallback != nullptr) fallback_ = shared_.fallback->MakeTransport(process_->name);
  for (KvTransport* transport : Transports()) {
    AISP_CHECK(transport->Register({pool_.data(), pool_.size(), -1}));
    // The wake comes from a transport's own thread: later, and only while this process lives.
    transport->SetWaker([this, alive = std::weak_ptr<bool>(alive_)] {
      shared_.world->After(Duration{}, [this, alive] {
        if (alive.lock() != nullptr) process_->Deliver([this] { role().OnTransport(); });
      });
    });
  }
}

std::vector<KvTransport*> SimWorker::Transports() const {
  if (fallback_ == nullptr) return {transport_.get()};
  return {transport_.get(), fallback_.get()};
}

EngineOptions SimWorker::MakeEngineOptions(const SimIdentity& identity) {
  const SimSettings& s = *shared_.settings;
  EngineOptions options;
  options.limits.max_batch_tokens = s.max_batch_tokens;
  options.limits.max_prefill_chunk = s.max_batch_tokens;
  options.limits.max_sequences = s.max_sequences;
  options.limits.watermark_blocks = 1;
  options.limits.max_draft_rows = s.Speculates() ? kDraftRows : 0;
  options.max_sequences_total = identity.prefill ? 64 : 128;
  options.weights_digest = PrefixDigest(shared_.fingerprint);
  if (tiers_ != nullptr) options.tiers = tiers_->Options();
  if (!s.Speculates()) return options;
  // A quarter of all runs adapts the number of draft tokens, another verifies all of them.
  options.speculator = std::make_shared<Speculator>(
      SpeculatorOptions{.num_tokens = 5, .adaptive = s.requests % 4 == 0},
      std::make_unique<SimProposer>(shared_.world, model_options_, shared_.coverage), &clock_);
  return options;
}

SimWorker::~SimWorker() { process_->Kill(); }

void SimWorker::BuildRoles(const SimIdentity& identity, const WorkerOptions& options) {
  const SimSettings& s = *shared_.settings;
  const Clock* clock = &clock_;
  switch_ = std::make_unique<RoleSwitch>(
      RoleSwitch::Options{name_,
                          [this](v1::Role role) {
                            shared_.coverage->Count("worker became " + std::string(RoleName(role)));
                            CheckLaidDown(role);
                          }},
      clock);
  router_dialer_ =
      std::make_unique<RouterLinksNet::Dialer>(shared_.router_net, process_, switch_.get());
  switch_->SetDialer(router_dialer_.get());
  PrefillOptions p;
  p.worker = options;
  p.horizon_tokens = 2 * s.max_batch_tokens;
  p.max_sequence_tokens = s.max_context;
  p.max_running = s.max_sequences;
  // Some are older versions without remote draws, or without grants in requests.
  p.draws = (identity.incarnation >> 32) % 4 != 0;
  p.takes_grants = (identity.incarnation >> 34) % 4 != 0;
  prefill_ = std::make_unique<PrefillRole>(p);
  DecodeOptions d;
  d.worker = options;
  d.max_sequence_tokens = s.max_context;
  d.max_running = s.max_sequences;
  d.lease_base = s.lease;
  d.lease_per_1k_tokens = std::chrono::milliseconds(500);
  d.prefill_silence_limit = s.lease * 4;
  decode_ = std::make_unique<DecodeRole>(d);
  parked_ = std::make_unique<ParkedRole>(options);
  engine_ = std::make_unique<Engine>(MakeEngineOptions(identity), executor_.get(), clock,
                                     prefill_->layer_sink());
  kv_listener_ = std::make_unique<KvLinksNet::Listener>(shared_.kv_net);
  connector_ = std::make_unique<RankedConnector>(Transports(), std::chrono::seconds(1));
  PrefillDeps deps;
  deps.engine = engine_.get();
  deps.clock = clock;
  deps.routers = switch_->DialerOf(v1::ROLE_PREFILL);
  deps.readers = kv_listener_.get();
  deps.connector = connector_.get();
  deps.fetcher = decode_->fetcher();
  deps.host_pool = s.verify ? pool_.data() : nullptr;
  deps.conversion_pool = pool_.data();
  prefill_->Wire(deps);
  shared_.kv_net->Listen(options.kv_address, process_, prefill_->reader_links());
  kv_dialer_ =
      std::make_unique<KvLinksNet::Dialer>(shared_.kv_net, process_, decode_->peer_links());
  decode_->Wire({engine_.get(), clock, switch_->DialerOf(v1::ROLE_DECODE), kv_dialer_.get(),
                 Transports(), shared_.death, nullptr, s.verify ? pool_.data() : nullptr});
  parked_->Wire(engine_.get(), clock, switch_->DialerOf(v1::ROLE_PARKED));
  if (identity.prefill) switch_->Add(v1::ROLE_PREFILL, prefill_.get());
  switch_->Add(v1::ROLE_DECODE, decode_.get());
  if (!identity.prefill) switch_->Add(v1::ROLE_PREFILL, prefill_.get());
  switch_->Add(v1::ROLE_PARKED, parked_.get());
}

void SimWorker::Start() {
  process_->Deliver([this] { role().Start(); });
}

void SimWorker::Kill(double notice_ms) {
  process_->Kill();
  shared_.fabric->Kill(process_->name);
  if (fallback_ != nullptr) shared_.fallback->Kill(process_->name);
  shared_.router_net->OnDeath(process_.get(), notice_ms);
  shared_.kv_net->OnDeath(process_.get(), notice_ms);
}

void SimWorker::Pause(bool suspended) {
  if (suspended) clock_.Stop();
  process_->Pause();
  shared_.fabric->Pause(process_->name);
  if (fallback_ != nullptr) shared_.fallback->Pause(process_->name);
}

void SimWorker::Resume() {
  if (!process_->paused()) return;
  clock_.Go();
  shared_.fabric->Resume(process_->name);
  if (fallback_ != nullptr) shared_.fallback->Resume(process_->name);
  process_->Resume();
  if (process_->blocked() && executor_->steps_in_flight() > 0) ScheduleBeat();
}

void SimWorker::BeginDrain() {
  const bool move = shared_.world->Chance(shared_.settings->move_at_once_chance);
  shared_.coverage->Count(move ? "drain that moves at once" : "drain that waits");
  process_->Deliver([this, move] { move ? role().MoveStreams() : role().BeginDrain(); });
}

void SimWorker::FailDevice() {
  model_->fail_next_launch = Error{Code::kInternal, "the device fell off the bus"};
}

void SimWorker::Crash() {
  shared_.coverage->Count("worker ended by a request");
  if (prefill()) shared_.coverage->Count("prefill worker ended by a request");
  shared_.world->Trace(process_->name, "is ended by a request");
  Kill(50);
  shared_.world->After(Duration{}, [this, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.lock() != nullptr) shared_.on_crash(this);
  });
}

bool SimWorker::InTransfer() const {
  return prefill_->num_transfers() + prefill_->num_pushes() + decode_->num_leases() > 0;
}

void SimWorker::Pump() {
  int turns = 0;
  while (process_->running() && PumpOnce()) {
    if (++turns > kMaxTurns) return shared_.world->Fail(name_ + " turns without end at one moment");
  }
  if (!process_->running()) return;
  Observe();
  CheckNotStranded();
  ScheduleWake();
  if (role().StopWanted() && !std::exchange(stop_told_, true))
    shared_.world->After(Duration{}, [this, alive = std::weak_ptr<bool>(alive_)] {
      if (alive.lock() != nullptr) shared_.on_stop(this);
    });
}

// One turn of the loop in worker/worker_role.h; false: nothing to do now.
bool SimWorker::PumpOnce() {
  const Instant now = shared_.world->Now();
  WorkerRole& r = role();
  if (const Instant its = clock_.Now(); r.NextTimer() <= its) {
    r.OnTimer(its);
    return true;
  }
  const size_t steps = executor_->steps_in_flight();
  if (r.InFlight() && (steps == 0 || executor_->done_at() <= now)) {
    r.Collect();
    engine_->CheckInvariants();
    return true;
  }
  if (r.CanLaunch()) {
    r.Launch();
    engine_->CheckInvariants();
    if (shared_.settings->blocking_steps && executor_->steps_in_flight() > 0) BlockUntilStepDone();
    return true;
  }
  return false;
}

void SimWorker::BlockUntilStepDone() {
  shared_.coverage->Count("step that blocks its role");
  process_->Block();
  shared_.world->At(executor_->done_at(), [process = process_] { process->Unblock(); });
  ScheduleBeat();
}

// The work of server/pulse_thread.h while a role is inside a step.
void SimWorker::ScheduleBeat() {
  const Instant next = clock_.ToWorld(pulse_.Next(clock_.Now()));
  if (next >= executor_->done_at()) return;
  shared_.world->At(next, [this, alive = std::weak_ptr<bool>(alive_)] {
    // All threads of a stopped process stop; Resume continues them.
    if (alive.lock() == nullptr || !process_->blocked() || process_->paused()) return;
    Beat();
    ScheduleBeat();
  });
}

void SimWorker::Beat() {
  const auto beat = pulse_.Due(clock_.Now());
  if (!beat) return;
  shared_.coverage->Count("heartbeat in a long step");
  for (const LinkId link : beat->links) router_dialer_->Send(link, beat->message);
}

void SimWorker::ScheduleWake() {
  // A failed device never finishes the steps in flight.
  const Instant step_done = role().InFlight() ? executor_->done_at() : kNever;
  const Instant next = std::min(clock_.ToWorld(role().NextTimer()), step_done);
  if (next == kNever || (wake_at_ <= next && wake_at_ > shared_.world->Now())) return;
  wake_at_ = next;
  shared_.world->At(next, [this, next, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.lock() == nullptr) return;
    if (wake_at_ == next) wake_at_ = kNever;
    if (process_->running()) process_->Deliver([] {});
  });
}

void SimWorker::Observe() {
  const BlockStats stats = engine_->blocks().Stats();
  SimCoverage& c = *shared_.coverage;
  c.Peak("quarantined blocks", static_cast<uint64_t>(stats.quarantined));
  if (stats.quarantined > 0 && engine_->blocks().Available() == 0)
    c.Count("pool used up with quarantine");
  const uint64_t preemptions = engine_->Preemptions();
  if (preemptions > preemptions_seen_) c.Count("preemption", preemptions - preemptions_seen_);
  preemptions_seen_ = preemptions;
  if (executor_->drafted_rows() > drafted_rows_seen_)
    c.Count("verified draft token", executor_->drafted_rows() - drafted_rows_seen_);
  drafted_rows_seen_ = executor_->drafted_rows();
  if (switch_->called_off() > called_off_seen_)
    c.Count("role change called off", switch_->called_off() - called_off_seen_);
  called_off_seen_ = switch_->called_off();
  for (auto& [what, n] : executor_->happened) {
    if (n > 0) c.Count(what, std::exchange(n, 0));
  }
  CountTiers();
}

void SimWorker::CountTiers() {
  const KvTiers* tiers = engine_->tiers();
  if (tiers == nullptr) return;
  const auto count = [this, tiers](TierPlace place, const char* what, uint64_t* seen) {
    const uint64_t loaded = tiers->Stats(place).loaded;
    if (loaded > *seen) shared_.coverage->Count(what, loaded - *seen);
    *seen = loaded;
  };
  const uint64_t promoted = prefill_->prefixes_promoted();
  if (promoted > promoted_seen_)
    shared_.coverage->Count("prefix brought from a tier for another", promoted - promoted_seen_);
  promoted_seen_ = promoted;
  count(TierPlace::kHost, "block back from host memory", &from_host_seen_);
  count(TierPlace::kDisk, "block back from a disk", &from_disk_seen_);
}

// No role is given up with work in it.
void SimWorker::CheckLaidDown(v1::Role now) {
  const size_t requests = now == v1::ROLE_DECODE ? 0 : decode_->num_requests();
  const size_t transfers = now == v1::ROLE_PREFILL ? 0 : prefill_->num_transfers();
  if (requests + transfers == 0) return;
  shared_.world->Fail(fmt::format("{} became {} with {} requests and {} transfers", name_,
                                  RoleName(now), requests, transfers));
}

// A drained worker leaves or takes another role; if the change was called off, it continues to
// serve.
void SimWorker::CheckNotStranded() {
  if (switch_->changing() || switch_->Drained()) return;
  const bool drained = (switch_->current() == v1::ROLE_DECODE && decode_->Drained()) ||
                       (switch_->current() == v1::ROLE_PREFILL && prefill_->Drained());
  if (drained) shared_.world->Fail(name_ + " drains and nobody wants it to");
}

void SimWorker::CheckQuiet() {
  const auto fail = [&](const std::string& what) {
    shared_.world->Fail(process_->name + " is not quiet: " + what);
  };
  engine_->blocks().CheckInvariants();
  const BlockStats s = engine_->blocks().Stats();
  const int32_t staging = prefill_->staging_blocks();
  if (prefill_->most_staging_blocks() > 0) shared_.coverage->Count("worker that converts KV");
  if (s.free + s.cached + staging != s.total || s.pinned != staging || s.quarantined != 0) {
    fail(fmt::format("{} blocks: {} free, {} cached, {} pinned, {} quarantined", s.total, s.free,
                     s.cached, s.pinned, s.quarantined));
  }
  if (engine_->blocks().LeasedBlocks() != 0)
    fail(fmt::format("{} leased blocks", engine_->blocks().LeasedBlocks()));
  if (engine_->NumRunning() + engine_->NumWaiting() + engine_->NumAwaitingKv() != 0) {
    fail(fmt::format("{} running, {} waiting, {} awaiting KV", engine_->NumRunning(),
                     engine_->NumWaiting(), engine_->NumAwaitingKv()));
  }
  if (prefill_->num_transfers() != 0) fail(fmt::format("{} transfers", prefill_->num_transfers()));
  if (prefill_->num_pushes() != 0) fail(fmt::format("{} pushes", prefill_->num_pushes()));
  if (decode_->num_requests() != 0) fail(fmt::format("{} requests", decode_->num_requests()));
  if (decode_->num_leases() != 0) fail(fmt::format("{} leases", decode_->num_leases()));
  if (Status ready = role().Ready(); !ready) fail("it is not ready: " + ready.error().message);
}

}  // namespace aisp
