#include "tests/sim/cluster.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/check.h"
#include "worker/incarnation.h"

namespace aisp {
namespace {

std::string Brief(const google::protobuf::Message& message) {
  std::string text = message.ShortDebugString();
  if (text.size() > 220) text = text.substr(0, 220) + "...";
  return text;
}

SimFabricOptions FabricOptions(const SimSettings& s, bool fallback) {
  ProvenanceOptions model;
  model.num_layers = s.num_layers;
  model.block_tokens = s.block_tokens;
  SimFabricOptions options;
  options.owner_copies = s.owner_copies || fallback;
  options.fetches = s.fetches && !fallback;
  options.rank = fallback ? 0 : 1;
  options.bytes_per_ms = static_cast<double>(ProvenanceExecutor::LayoutOf(model).BlockBytes()) /
                         s.transfer_ms_per_block;
  return options;
}

constexpr double kLaneStaysDown = 0.3;

bool IsChatter(const v1::WorkerMessage& m) {
  return m.has_telemetry() || m.has_kv_events() || m.has_tier_events();
}

}  // namespace

DeathWatch SimCluster::Death::Watch(const std::string& worker_id, uint64_t incarnation,
                                    const std::string& lane_token) {
  if (lane_token.empty()) return {};
  const DeathWatch watch(next_++);
  watched_[watch] = {worker_id, incarnation};
  return watch;
}

bool SimCluster::Death::Dead(DeathWatch watch) {
  auto it = watched_.find(watch);
  if (it == watched_.end()) return false;
  const auto& [name, incarnation] = it->second;
  for (const WorkerSlot& slot : cluster_->workers_) {
    if (slot.name == name && slot.worker != nullptr && slot.incarnation == incarnation)
      return false;
  }
  for (const auto& zombie : cluster_->zombies_) {
    if (zombie->name() == name && zombie->incarnation() == incarnation) return false;
  }
  cluster_->coverage_.Count("death proven");
  return true;
}

SimCluster::SimCluster(uint64_t seed, bool trace)
    : world_(seed, trace),
      settings_(SimSettings::Draw(world_)),
      death_(this),
      router_net_(&world_, settings_.link_delays),
      kv_net_(&world_, settings_.link_delays),
      fabric_(&world_, FabricOptions(settings_, /*fallback=*/false)),
      fallback_(&world_, FabricOptions(settings_, /*fallback=*/true)),
      http_random_(seed ^ 0x687474702f312e31u) {
  world_.clock.Set(Instant{1'000'000'000});
  ProvenanceOptions& model = shared_.model;
  model.num_layers = settings_.num_layers;
  model.block_tokens = settings_.block_tokens;
  model.max_context = settings_.max_context;
  model.max_batch_tokens = settings_.max_batch_tokens;
  model.max_slots = 2 * settings_.max_sequences + 2;
  model.max_depth = settings_.executor_depth;

  v1::Fingerprint& f = shared_.fingerprint;
  f.set_protocol_version(1);
  f.set_model_name("provenance");
  f.set_weights_digest("weights");
  model.spelled = settings_.decode_dtype;
  f.set_mixed_precision(settings_.mixed());
  const KvLayout layout = ProvenanceExecutor::LayoutOf(model);
  f.mutable_kv_layout()->set_num_layers(static_cast<uint32_t>(layout.num_layers));
  f.mutable_kv_layout()->set_num_kv_heads(static_cast<uint32_t>(layout.num_kv_heads));
  f.mutable_kv_layout()->set_head_dim(static_cast<uint32_t>(layout.head_dim));
  f.mutable_kv_layout()->set_block_tokens(static_cast<uint32_t>(layout.block_tokens));
  if (!settings_.mixed()) f.mutable_kv_layout()->set_dtype("f32");

  shared_.world = &world_;
  shared_.settings = &settings_;
  shared_.coverage = &coverage_;
  shared_.router_net = &router_net_;
  shared_.kv_net = &kv_net_;
  shared_.fabric = &fabric_;
  if (settings_.falls_back) shared_.fallback = &fallback_;
  shared_.death = &death_;
  shared_.on_stop = [this](SimWorker* worker) { OnStopWanted(worker); };
  shared_.on_crash = [this](SimWorker* worker) { OnCrash(worker); };
  // Such prompts would always be prefilled locally on a worker with a fast prior; the simulation
  // wants both.
  router_options_.pulls = settings_.pulls;
  router_options_.policy.cost.disturbance_weight = 4;
  router_options_.policy.cost.handoff_ms = 0.1;
  for (int i = 0; i < settings_.routers; ++i)
    shared_.router_addresses.push_back(fmt::format("router{}", i));
  shared_.faults_over = &faults_over_;
  SetLinkRoom(settings_.link_room, settings_.link_bytes);
  WireNetworks();
}

void SimCluster::SetLinkRoom(int messages, size_t bytes) {
  router_net_.max_offered = kv_net_.max_offered = messages;
  router_net_.max_offered_bytes = kv_net_.max_offered_bytes = bytes;
}

SimCluster::~SimCluster() {
  // Their ends schedule events, so they must come before the world is destroyed.
  for (const auto& router : routers_) EndFrontends(router);
  for (const auto& [client, router] : http_clients_) EndFrontends(router);
  for (WorkerSlot& slot : workers_) {
    if (slot.worker != nullptr) slot.worker->Kill(0);
  }
  for (auto& zombie : zombies_) zombie->Kill(0);
}

void SimCluster::EndFrontends(const std::shared_ptr<RouterProcess>& router) {
  for (auto r = router; r != nullptr; r = r->predecessor) r->frontend.reset();
}

void SimCluster::WireNetworks() {
  const auto count_refusal = [this](const std::string& link) {
    return [this, link](Code code) {
      const bool never = code == Code::kOutOfRange;
      coverage_.Count((never ? "request that no " : "request refused by a full ") + link +
                      (never ? " takes" : ""));
    };
  };
  router_net_.on_refused = count_refusal("router link");
  kv_net_.on_refused = count_refusal("kv link");
  const auto log = [this](const SimProcess& from, const SimProcess& to,
                          const google::protobuf::Message& m) {
    world_.Trace(from.name, fmt::format("-> {}: {}", to.name, Brief(m)));
  };
  router_net_.on_up = [this, log](const SimProcess& from, const SimProcess& to,
                                  const v1::WorkerMessage& m) {
    if (world_.tracing() && !IsChatter(m)) log(from, to, m);
    if (m.has_draining() && m.draining().not_started_size() > 0)
      coverage_.Count("requests handed back");
    if (m.has_draining() && m.draining().move()) coverage_.Count("streams shall move");
    for (const v1::TokenEvent& event : m.tokens().events()) {
      if (event.handed_back()) coverage_.Count("request crossed the word of a drain");
    }
    if (m.has_kv_events() && m.kv_events().snapshot()) coverage_.Count("kv snapshot");
  };
  router_net_.on_down = [this, log](const SimProcess& from, const SimProcess& to,
                                    const v1::RouterMessage& m) {
    if (world_.tracing()) log(from, to, m);
    if (m.has_shared_prompt()) coverage_.Count("prompt shared with a decode worker");
    if (m.has_probe()) coverage_.Count("name probed");
    if (m.has_registered()) NoteRegistered(from, to);
    if (m.has_refused() && m.refused().ousted()) coverage_.Count("worker told that it is ousted");
    if (m.has_refused() && m.refused().reason().find("answers") != std::string::npos)
      coverage_.Count("duplicate name refused");
  };
  kv_net_.on_up = [this, log](const SimProcess& from, const SimProcess& to,
                              const v1::DecodeToPrefill& m) {
    if (world_.tracing()) log(from, to, m);
    if (m.has_shared_prompt()) coverage_.Count("prompt shared with a prefill worker");
    if (m.has_grant()) coverage_.Count("grant");
    if (m.has_refused()) coverage_.Count("grant refused");
    if (m.has_revoke()) coverage_.Count("revoke");
    if (m.has_cancel()) coverage_.Count("prefill cancelled");
    if (m.prefill().has_grant() && !m.prefill().cached_only())
      coverage_.Count("grant in a request");
    if (m.has_prefill() && m.prefill().cached_only()) coverage_.Count("prefix asked for");
  };
  kv_net_.on_down = [this, log](const SimProcess& from, const SimProcess& to,
                                const v1::PrefillToDecode& m) {
    if (world_.tracing()) log(from, to, m);
    if (m.has_done()) coverage_.Count("prefill done");
    if (m.has_done() && m.done().has_drawn()) coverage_.Count("first token drawn for a reader");
    if (m.has_failed()) coverage_.Count("prefill failed");
    if (m.has_fence()) coverage_.Count("fence acknowledged");
  };
}

void SimCluster::NoteRegistered(const SimProcess& router, const SimProcess& worker) {
  const std::string name = worker.name.substr(0, worker.name.find('#'));
  std::vector<std::string>& holders = accepted_[{&router, name}];
  if (!holders.empty() && holders.back() == worker.name) return;
  if (std::find(holders.begin(), holders.end(), worker.name) != holders.end())
    world_.Fail(
        fmt::format("{} gave {} its name back from its successor", router.name, worker.name));
  holders.push_back(worker.name);
}

void SimCluster::StartRouter(int index) {
  auto& slot = routers_[static_cast<size_t>(index)];
  slot = std::make_shared<RouterProcess>();
  RouterProcess& r = *slot;
  const std::string& address = shared_.router_addresses[static_cast<size_t>(index)];
  r.process = std::make_shared<SimProcess>(address, [this, raw = &r] { PumpRouter(*raw); });
  r.clock.emplace(settings_.MakeClock(world_));
  r.sender = std::make_unique<RouterLinksNet::Listener>(&router_net_);
  r.metrics = std::make_unique<Metrics>();
  r.router = std::make_unique<Router>(router_options_, shared_.fingerprint, &*r.clock,
                                      world_.random.Next(), r.sender.get(), r.metrics.get());
  r.frontend = std::make_unique<SimFrontend>(&world_, shared_.model, r.process, &*r.clock,
                                             r.router.get(), r.metrics.get());
  std::erase_if(accepted_, [&](const auto& a) { return a.first.first == r.process.get(); });
  router_net_.Listen(address, r.process, r.router.get());
  world_.Trace(address, "starts");
}

std::shared_ptr<SimCluster::RouterProcess> SimCluster::RouterFor(size_t index) {
  const std::shared_ptr<RouterProcess>& r = routers_[index];
  const bool waits = r->router != nullptr && r->predecessor != nullptr && !r->router->Ready();
  return waits && r->predecessor->router != nullptr ? r->predecessor : r;
}

void SimCluster::PumpRouter(RouterProcess& r) {
  const Instant now = world_.Now();
  if (const Instant its = r.clock->Now(); r.router->NextTimer() <= its) r.router->OnTimer(its);
  const Instant next = r.clock->ToWorld(r.router->NextTimer());
  if (next == kNever || (r.wake_at <= next && r.wake_at > now)) return;
  r.wake_at = next;
  world_.At(std::max(next, now), [process = r.process] {
    if (process->running()) process->Deliver([] {});
  });
}

void SimCluster::StartWorker(int index) {
  WorkerSlot& slot = workers_[static_cast<size_t>(index)];
  AISP_CHECK(slot.worker == nullptr);
  ++slot.starts;
  slot.incarnation = DrawIncarnation([this] { return world_.random.Next(); });
  if (settings_.disk_slots > 0 && slot.disk == nullptr) slot.disk = std::make_shared<FakeDisk>();
  slot.worker = std::make_unique<SimWorker>(shared_, SimIdentity{.name = slot.name,
                                                                 .prefill = slot.prefill,
                                                                 .incarnation = slot.incarnation,
                                                                 .last_exit = slot.last_exit,
                                                                 .disk = slot.disk});
  world_.Trace(slot.worker->process().name, "starts");
  slot.worker->Start();
}

Duration SimCluster::ClientGrace() const {
  // A stopped router cannot end anything before it resumes.
  const Duration stopped = settings_.router_pauses > 0 ? kLongestRouterPause * 3 : Duration{};
  // A slow clock ends the longest request (ScheduleLoad) this much later.
  const Duration drift =
      settings_.skewed_clocks ? FromMs(300'000 * 2 * SimClock::kMostDrift) : Duration{};
  return router_options_.deadline_grace + std::chrono::milliseconds(1) + stopped + drift;
}

bool SimCluster::Run() {
  world_.Trace("settings", settings_.ToString());
  // Some failed transports cannot be reached again: then the lower ranks are used.
  fabric_.set_connect_fail_chance(
      std::max(settings_.connect_fail_chance, settings_.falls_back ? kLaneStaysDown : 0.0));
  routers_.resize(static_cast<size_t>(settings_.routers));
  for (int i = 0; i < settings_.routers; ++i) StartRouter(i);
  for (int i = 0; i < settings_.prefill_workers; ++i)
    workers_.push_back({fmt::format("p{}", i), true, 0, 0, nullptr});
  for (int i = 0; i < settings_.decode_workers; ++i)
    workers_.push_back({fmt::format("d{}", i), false, 0, 0, nullptr});
  for (size_t i = 0; i < workers_.size(); ++i) StartWorker(static_cast<int>(i));
  ScheduleLoad();
  ScheduleHttp();
  ScheduleFaults();
  // Restarts, redials (at most a second apart) and dropped workers (two seconds) settle before the
  // probes.
  const Instant healed =
      world_.Now() + std::chrono::milliseconds(800) + settings_.arrival_span * 3 / 2;
  world_.At(healed, [this] { Heal(); });
  // Ends of a half-open link notice after six seconds at most, and a drain may wait for that.
  const Duration settle = std::chrono::seconds(settings_.half_opens > 0 ? 14 : 6);
  world_.At(healed + settle, [this] {
    ScheduleProbes();
    ScheduleHttpProbes();
  });
  const Instant probed = healed + settle + std::chrono::seconds(2);
  const Instant end = probed + std::chrono::seconds(400);
  Instant quiet_at = kNever;
  for (Instant check = world_.Now(); world_.Now() < end && !world_.failed();) {
    check = check + std::chrono::milliseconds(250);
    while (!world_.failed() && world_.Step(check)) {
    }
    CheckClients(false);
    if (world_.Now() < probed) continue;
    const bool waiting = std::any_of(clients_.begin(), clients_.end(),
                                     [](const auto& c) { return c.first->waiting(); });
    const bool http_waits = std::any_of(http_clients_.begin(), http_clients_.end(),
                                        [](const auto& c) { return c.first->waiting(); });
    if (waiting || http_waits) continue;
    // The last acknowledgements and cancellations are still in flight for a moment.
    if (quiet_at == kNever) quiet_at = world_.Now() + std::chrono::seconds(2);
    if (world_.Now() >= quiet_at) break;
  }
  if (!world_.failed()) CheckQuiet();
  coverage_.Count("events", world_.events());
  coverage_.Count("lane below the first one taken", fallback_.connections());
  coverage_.Count("piece landed after its grant was revoked", fabric_.late_pieces());
  coverage_.Count("note of a hand-off that is done", fabric_.notes());
  coverage_.Count("piece fenced by the pool's owner",
                  fabric_.fenced_pieces() + fallback_.fenced_pieces());
  return !world_.failed();
}

}  // namespace aisp
