// Registration, reports and loss of workers.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "proto/fingerprint.h"
#include "proto/role.h"
#include "router/router_impl.h"

namespace aisp {
namespace {

// Least time between snapshot requests to one worker.
constexpr Duration kSnapshotInterval = std::chrono::milliseconds(500);

// Bound on remembered refusals; worker names come from the network.
constexpr size_t kMaxRefusalsKept = 256;

// Least time between two updates of the load totals: workers report many times a second.
constexpr Duration kLoadGaugeInterval = std::chrono::milliseconds(100);

}  // namespace

WorkerState* Router::Impl::WorkerNamed(const std::string& worker_id) {
  auto it = workers.find(worker_id);
  return it == workers.end() ? nullptr : &it->second;
}

WorkerState* Router::Impl::WorkerOf(LinkId link) {
  auto it = links.find(link);
  return it == links.end() || it->second.worker.empty() ? nullptr : WorkerNamed(it->second.worker);
}

void Router::Impl::OnMessage(LinkId link, v1::WorkerMessage message) {
  if (links.count(link) == 0) return;  // closed by the router meanwhile
  if (message.has_register_()) return OnRegister(link, std::move(*message.mutable_register_()));
  WorkerState* worker = WorkerOf(link);
  if (worker == nullptr) return;  // refused, or not registered: the link's timer closes it
  worker->last_heard = clock->Now();
  if (worker->quiet) {
    OnHeardAgain(*worker);
    worker = WorkerOf(link);
    if (worker == nullptr) return;
  }
  if (!contenders.empty()) {
    OnHolderSpoke(link);
    worker = WorkerOf(link);
    if (worker == nullptr) return;
  }
  switch (message.body_case()) {
    case v1::WorkerMessage::kTelemetry:
      return OnTelemetry(*worker, message.telemetry());
    case v1::WorkerMessage::kHeartbeat:
      return worker->Beat(message.heartbeat(), worker->last_heard);
    case v1::WorkerMessage::kKvEvents:
      return OnKvEvents(*worker, message.kv_events());
    case v1::WorkerMessage::kTierEvents:
      return OnTierEvents(*worker, message.tier_events());
    case v1::WorkerMessage::kTokens:
      return OnTokenBatch(link, message.tokens());
    case v1::WorkerMessage::kDraining:
      return OnDraining(*worker, message.draining());
    case v1::WorkerMessage::kAdapterAnswer:
      return OnAdapterAnswer(*worker, message.adapter_answer());
    case v1::WorkerMessage::kAdapters:
      return OnAdapterChange(*worker, message.adapters());
    case v1::WorkerMessage::kKeptAnswers:
      return OnKeptAnswers(*worker, message.kept_answers());
    case v1::WorkerMessage::kRoleAnswer:
      return OnRoleAnswer(link, message.role_answer());
    default:
      return;
  }
}

Status Router::Impl::Admit(const v1::Register& r) const {
  if (draining) return Unavailable("this router is draining; its successor accepts workers");
  if (r.worker_id().empty()) return InvalidArgument("worker_id is empty; give the worker a name");
  if (RoleNamed(RoleName(r.role())) == v1::ROLE_UNSPECIFIED) {
    return InvalidArgument(
        fmt::format("role {} is none of prefill, decode and parked", static_cast<int>(r.role())));
  }
  if (r.role() == v1::ROLE_PREFILL && r.kv_address().empty()) {
    return InvalidArgument(
        "a prefill worker needs a kv_address, where decode workers dial; set one");
  }
  AISP_RETURN_IF_ERROR(CheckFingerprints(expected, "the router", r.fingerprint(), "the worker"));
  // Workers write KV to each other, so every pair of layouts must be convertible.
  for (const auto& [id, worker] : workers) {
    if (id == r.worker_id()) continue;
    AISP_RETURN_IF_ERROR(CheckFingerprints(worker.info.fingerprint(), "worker " + id,
                                           r.fingerprint(), "this worker"));
  }
  return {};
}

const v1::Fingerprint& Router::Impl::PoolFingerprint() const {
  return workers.empty() ? expected : workers.begin()->second.info.fingerprint();
}

// A refused worker retries every second: each reason is logged once.
bool Router::Impl::SaidBefore(const std::string& worker_id, const std::string& reason) {
  if (refusals_said.size() >= kMaxRefusalsKept) refusals_said.clear();
  return std::exchange(refusals_said[worker_id], reason) == reason;
}

void Router::Impl::RefuseRegistration(LinkId link, const std::string& worker_id, const Error& why,
                                      bool ousted) {
  metrics.registrations_refused.Add();
  Log(draining || SaidBefore(worker_id, why.message) ? LogLevel::kDebug : LogLevel::kWarning,
      "worker refused",
      {{"worker", worker_id}, {"address", links[link].peer_address}, {"reason", why.message}});
  if (WorkerState* old = WorkerOf(link); old != nullptr) {
    const std::string old_id = old->info.worker_id();
    Forget(old_id, metrics.forgotten_fault, why, /*close=*/false);
    links[link] = Link{"", "", clock->Now()};
  }
  v1::RouterMessage refusal;
  refusal.mutable_refused()->set_reason(why.message);
  refusal.mutable_refused()->set_draining(draining);
  refusal.mutable_refused()->set_ousted(ousted);
  sender->Send(link, std::move(refusal));
  // The worker closes the link once it has read the refusal; otherwise the link's timer does.
  link_timers.Set(link.value, clock->Now() + options.silence_limit);
}

void Router::Impl::OnRegister(LinkId link, v1::Register registration) {
  const std::string id = registration.worker_id();
  if (Status fits = Admit(registration); !fits)
    return RefuseRegistration(link, id, fits.error(), /*ousted=*/false);
  if (Ousted(registration)) return RefuseRegistration(link, id, OustedError(id), /*ousted=*/true);
  if (const WorkerState* old = WorkerNamed(id); old != nullptr) {
    const bool same = old->info.incarnation() == registration.incarnation();
    if (old->link == link && same) return;  // a repeated registration
    // A drained worker is about to end: its name is free without a probe.
    const bool leaves = old->draining && old->telemetry.drained();
    if (old->link != link && !same && !leaves) return Contend(link, std::move(registration));
  }
  Accept(link, std::move(registration));
}

void Router::Impl::Accept(LinkId link_id, v1::Register&& registration) {
  const std::string id = registration.worker_id();
  EndRoleWaits(registration);
  if (WorkerState* old = WorkerNamed(id); old != nullptr) {
    const bool other_link = old->link != link_id;
    if (old->info.incarnation() != registration.incarnation()) {
      v1::RouterMessage told;
      told.mutable_refused()->set_reason(OustedError(id).message);
      told.mutable_refused()->set_ousted(true);
      sender->Send(old->link, std::move(told));
    }
    Forget(id, metrics.forgotten_replaced,
           {Code::kUnavailable, fmt::format("worker {} was replaced by a newer connection", id)},
           other_link);
  }
  if (WorkerState* renamed = WorkerOf(link_id); renamed != nullptr) {
    const std::string old_id = renamed->info.worker_id();
    Forget(old_id, metrics.forgotten_replaced,
           {Code::kUnavailable, fmt::format("worker {} registered again as {}", old_id, id)},
           /*close=*/false);
  }
  Unblame(registration);
  NoteHolder(registration);
  const Instant now = clock->Now();
  refusals_said.erase(id);
  links[link_id].worker = id;
  LogInfo("worker registered", {{"worker", id},
                                {"role", RoleName(registration.role())},
                                {"incarnation", registration.incarnation()},
                                {"host", registration.host_id()}});
  WorkerState& worker =
      workers
          .try_emplace(id, link_id, std::move(registration), options.max_prefix_units_per_worker,
                       &directory, &promised, now, &host_directory, &disk_directory)
          .first->second;
  MakeRoster();
  link_timers.Set(link_id.value, std::min(QuietAt(worker), now + options.silence_limit));
  UpdateWorkerGauges();
  // An accepted worker sends a snapshot unasked; OnTelemetry requests one if none came.
  metrics.SetBlind(id, true);
  if (worker.info.has_adapters()) {
    OnAdapterReport(worker, worker.info.adapters());
  } else {
    for (const v1::Adapter& each : options.adapters.adapters())
      worker.adapters.insert(each.digest());
  }
  v1::RouterMessage reply;
  *reply.mutable_registered()->mutable_adapters() = adapters;
  reply.mutable_registered()->set_telemetry_interval_ms(
      static_cast<uint32_t>(ToMs(options.telemetry_interval)));
  reply.mutable_registered()->set_silence_limit_ms(
      static_cast<uint32_t>(ToMs(options.silence_limit)));
  sender->Send(link_id, std::move(reply));
}

void Router::Impl::OnTelemetry(WorkerState& worker, const v1::Telemetry& telemetry) {
  const bool was_ready = worker.Ready();
  if (!worker.Report(telemetry, clock->Now(), &pool)) return;
  if (worker.prefix.blind()) AskSnapshot(worker);
  if (const Instant now = clock->Now(); now >= next_load_gauges) {
    next_load_gauges = now + kLoadGaugeInterval;
    UpdateLoadGauges();
  }
  if (worker.Ready() == was_ready) return;
  LogInfo(was_ready ? "worker is not ready" : "worker is ready",
          {{"worker", worker.info.worker_id()}, {"reason", telemetry.unready_reason()}});
  if (was_ready) return;
  PlacePending();
  MoveStreams();
}

void Router::Impl::OnKvEvents(WorkerState& worker, const v1::KvEventBatch& batch) {
  const bool was_blind = worker.prefix.blind();
  const PrefixView::Applied applied = worker.prefix.Apply(batch);
  const PrefixView& view = worker.prefix;
  metrics.prefix_gaps.Add(static_cast<double>(view.gaps() - worker.prefix_gaps_counted));
  metrics.prefix_units_dropped.Add(
      static_cast<double>(view.dropped_units() - worker.prefix_dropped_counted));
  worker.prefix_gaps_counted = view.gaps();
  worker.prefix_dropped_counted = view.dropped_units();
  if (view.blind() != was_blind) metrics.SetBlind(worker.info.worker_id(), view.blind());
  if (applied == PrefixView::Applied::kNeedsSnapshot) AskSnapshot(worker);
}

void Router::Impl::OnTierEvents(WorkerState& worker, const v1::KvEventBatch& batch) {
  const bool host = batch.tier() == v1::KV_TIER_HOST;
  if (!host && batch.tier() != v1::KV_TIER_DISK) return;  // of an unknown tier
  PrefixView& view = host ? worker.host_prefix : worker.disk_prefix;
  if (view.Apply(batch) == PrefixView::Applied::kNeedsSnapshot) AskSnapshot(worker);
}

void Router::Impl::AskSnapshot(WorkerState& worker) {
  const Instant now = clock->Now();
  if (worker.snapshot_asked.ns != INT64_MIN && now - worker.snapshot_asked < kSnapshotInterval)
    return;
  worker.snapshot_asked = now;
  metrics.prefix_snapshots_asked.Add();
  v1::RouterMessage ask;
  ask.mutable_kv_snapshot();
  sender->Send(worker.link, std::move(ask));
}

void Router::Impl::OnDraining(WorkerState& worker, const v1::Draining& message) {
  if (message.over()) {
    LogInfo("worker takes work again", {{"worker", worker.info.worker_id()}});
    worker.draining = worker.move_all = false;
    worker.becoming = v1::ROLE_UNSPECIFIED;
    worker.not_started.clear();
    return PlacePending();
  }
  if (!worker.draining || message.move()) {
    LogInfo("worker drains", {{"worker", worker.info.worker_id()},
                              {"streams", worker.attempts.size()},
                              {"not_started", message.not_started_size()},
                              {"move", message.move()}});
  }
  worker.draining = true;
  worker.move_all = worker.move_all || message.move();
  // Only ids of its own requests, so that a list from the network cannot grow state.
  for (const uint64_t wire_id : message.not_started()) {
    if (worker.attempts.count(wire_id) != 0) worker.not_started.insert(wire_id);
  }
  MoveStreams();
}

void Router::Impl::MoveStreams() {
  std::vector<RequestId> leaving;
  for (const auto& [id, worker] : workers) {
    if (!worker.draining || !worker.decode()) continue;
    for (uint64_t wire_id : worker.attempts) {
      if (worker.move_all || worker.not_started.count(wire_id) != 0)
        leaving.push_back(by_wire.at(wire_id));
    }
  }
  for (RequestId id : leaving) {
    // Observers may change anything between two moves.
    Request* request = Find(id);
    if (request != nullptr && request->wire_id != 0) Move(*request, "its worker drains");
  }
}

void Router::Impl::BeginDrain() {
  if (draining) return;
  draining = true;
  metrics.draining.Set(1);
  LogInfo("router drains", {{"requests", requests.size()}});
  v1::RouterMessage message;
  message.mutable_router_draining();
  for (const auto& [id, worker] : workers) sender->Send(worker.link, message);
  for (auto& [link, contender] : contenders) {
    contender.until = clock->Now();
    link_timers.Set(link.value, contender.until);
  }
}

void Router::Impl::OnLinkDown(LinkId link, const Error& why) {
  auto it = links.find(link);
  if (it == links.end()) return;
  const std::string worker_id = it->second.worker;
  links.erase(it);
  link_timers.Erase(link.value);
  contenders.erase(link);
  if (worker_id.empty()) return;
  Forget(worker_id, metrics.forgotten_link,
         {Code::kUnavailable,
          fmt::format("the connection to worker {} ended: {}", worker_id, why.message)},
         /*close=*/false);
}

void Router::Impl::Forget(const std::string& worker_id, const Counter& cause, const Error& why,
                          bool close) {
  auto it = workers.find(worker_id);
  if (it == workers.end()) return;
  // A copy: the argument may be a member of the erased worker.
  const std::string name = worker_id;  // NOLINT(performance-unnecessary-copy-initialization)
  const LinkId link = it->second.link;
  const std::set<uint64_t> orphans = std::move(it->second.attempts);
  // A drained worker without requests: no reason for a warning.
  const bool expected_end = it->second.draining && orphans.empty();
  Log(expected_end ? LogLevel::kInfo : LogLevel::kWarning, "worker forgotten",
      {{"worker", name}, {"requests", orphans.size()}, {"reason", why.message}});
  std::vector<RequestId> moved;
  for (uint64_t wire_id : orphans) {
    auto request = by_wire.find(wire_id);
    if (request == by_wire.end()) continue;
    moved.push_back(request->second);
    Request& r = requests.at(request->second.value);
    r.failed_on.insert({name, it->second.info.incarnation()});
    NoteUntold(r);
    r.wire_id = 0;
    r.prompt_id = 0;
    by_wire.erase(request);
    aged.erase(r.id);
    ForgetKeyed(r);
  }
  ForgetKept(it->second);
  const bool died = (&cause == &metrics.forgotten_link || &cause == &metrics.forgotten_silent) &&
                    !it->second.draining;
  if (died && it->second.prefill()) {
    BlamePrefill(it->second);
  } else if (died) {
    Blame(it->second, moved);
  }
  workers.erase(it);
  MakeRoster();
  EndRoleWaits(name, why);
  OnAdapterWorkerGone(name);
  OnNameFree(name);
  if (auto l = links.find(link); l != links.end()) {
    if (close) {
      links.erase(l);
      link_timers.Erase(link.value);
      sender->Close(link);
    } else {
      l->second.worker.clear();
    }
  }
  (expected_end ? metrics.forgotten_drained : cause).Add();
  metrics.RemoveWorker(name);
  UpdateWorkerGauges();
  // Observers are called only after all state is updated.
  for (RequestId id : moved) {
    if (Request* request = Find(id); request != nullptr && request->wire_id == 0 &&
                                     pending.count(id) == 0 && queued.count(id) == 0) {
      TakeOver(*request, why);
    }
  }
}

void Router::Impl::MakeRoster() {
  roster.clear();
  places.clear();
  for (auto& [id, worker] : workers) {
    roster.push_back(&worker);
    places.push_back({worker.prefix.slot(), worker.promises.slot(), worker.host_prefix.slot(),
                      worker.disk_prefix.slot()});
  }
  decode_workers = std::count_if(roster.begin(), roster.end(),
                                 [](const WorkerState* worker) { return worker->decode(); });
}

void Router::Impl::UpdateWorkerGauges() {
  int prefill = 0;
  int parked = 0;
  for (const auto& [id, worker] : workers) {
    prefill += worker.prefill() ? 1 : 0;
    parked += worker.parked() ? 1 : 0;
  }
  metrics.prefill_workers.Set(prefill);
  metrics.parked_workers.Set(parked);
  metrics.decode_workers.Set(static_cast<double>(workers.size()) - prefill - parked);
  UpdateLoadGauges();
}

void Router::Impl::UpdateLoadGauges() {
  RouterMetrics::Load load;
  for (const auto& [id, worker] : workers) {
    const v1::Telemetry& t = worker.telemetry;
    if (worker.prefill()) {
      load.ready_prefill += worker.Ready() ? 1 : 0;
      continue;
    }
    if (worker.parked()) continue;
    load.ready_decode += worker.Ready() ? 1 : 0;
    load.running += t.running();
    load.waiting += t.waiting() + t.awaiting_kv();
    load.total_blocks += t.total_blocks();
    load.used_blocks += t.total_blocks() - std::min(t.free_blocks(), t.total_blocks());
    metrics.SetStreams(id, worker.attempts.size());
  }
  metrics.SetLoad(load, expected.kv_layout().block_tokens());
}

}  // namespace aisp
