// Service classes. Batch and best-effort requests wait in a bounded queue until interactive
// requests leave room, yield to them, and count as interactive after a long wait.
#include <fmt/format.h>

#include <algorithm>

#include "common/log.h"
#include "router/prediction.h"
#include "router/router_impl.h"

namespace aisp {
namespace {

// Interval between checks of the queue, and how many of its first requests may fail to fit per
// check.
constexpr Duration kLook = std::chrono::milliseconds(20);
constexpr int kMostMisses = 4;
// Part of a decode worker's blocks that yielding requests leave free, for prompts whose KV comes
// from elsewhere.
constexpr double kFreeBlocks = 0.1;
// Yielding requests are sent only while the prefill backlog is below this part of the interactive
// TTFT.
constexpr double kBacklog = 0.5;

}  // namespace

Duration Router::Impl::PatienceOf(ServiceClass service_class) const {
  switch (service_class) {
    case ServiceClass::kInteractive:
      return {};
    case ServiceClass::kBatch:
      return options.batch_patience;
    case ServiceClass::kBestEffort:
      return options.best_effort_patience;
  }
  return {};
}

bool Router::Impl::YieldsAt(const Request& request, Instant now) const {
  return Yields(request.spec.tenant.service_class) && now < request.ages;
}

Status Router::Impl::CheckInFlight(bool yields) const {
  if (yields && queued.size() >= static_cast<size_t>(options.max_queued)) {
    return ResourceExhausted(
        fmt::format("{} requests of class batch and best-effort wait, the limit is {} "
                    "(router.max_queued); retry later",
                    queued.size(), options.max_queued));
  }
  if (!yields && InFlight() >= static_cast<size_t>(options.max_inflight)) {
    return ResourceExhausted(fmt::format("{} requests are in flight, the limit is {}; retry later",
                                         InFlight(), options.max_inflight));
  }
  return {};
}

Status Router::Impl::CheckRoom(const Request& request, const Choice& choice) const {
  const Placement& placement = choice.placement;
  const WorkerView& decode = choice.views[static_cast<size_t>(placement.decode)];
  const WorkerView& computes =
      placement.prefill < 0 ? decode : choice.views[static_cast<size_t>(placement.prefill)];
  const auto block_tokens = static_cast<size_t>(std::max(1, decode.block_tokens));
  const size_t needed = request.length() / block_tokens + 1;
  const double left = decode.free_blocks - static_cast<double>(needed);
  const double wait_ms = BusyMs(computes);
  const bool kept = placement.meets && placement.spares_others;
  const bool waits = options.slo_ttft > Duration{} && wait_ms > kBacklog * ToMs(options.slo_ttft);
  // On an idle worker waiting does not help: a missed limit is not due to other requests. So even a
  // worker slower than any limit computes these.
  if (decode.rows == 0 && wait_ms <= 0 && left >= 0) return {};
  // An idle worker takes whatever fits.
  const bool full = decode.rows >= decode.max_rows ||
                    (decode.rows > 0 && left < kFreeBlocks * decode.total_blocks);
  if (kept && !waits && !full) return {};
  return ResourceExhausted("interactive requests need the room");
}

void Router::Impl::MoveAccount(Request& request, FairShare& to) {
  if (request.accounts == &to) return;
  request.accounts->Leave(request.account);
  request.accounts = &to;
  request.account = to.Enter(request.spec.tenant);
}

void Router::Impl::Enqueue(Request& request) {
  const Instant now = clock->Now();
  MoveAccount(request, queue_shares);
  request.queued_since = now;
  queued.insert(request.id);
  next_release = std::min(next_release, now + kLook);
  request_timers.Set(request.id.value, request.deadline);
  metrics.AddQueued(request.spec.tenant.service_class, 1);
}

void Router::Impl::RemoveFromQueue(Request& request) {
  if (queued.erase(request.id) == 0) return;
  // The charge also counts for the tenant's later requests in the queue.
  FairShare::Charge(request.account, static_cast<int64_t>(request.length()));
  MoveAccount(request, shares);
  const ServiceClass service_class = request.spec.tenant.service_class;
  metrics.AddQueued(service_class, -1);
  metrics.ObserveQueued(service_class, clock->Now() - request.queued_since);
}

bool Router::Impl::MayRelease(const Request& request, Instant now) const {
  if (InFlight() >= static_cast<size_t>(options.max_inflight)) return false;
  if (YieldsAt(request, now)) return true;
  // However many have aged, they must not crowd out interactive requests.
  const auto ready = std::count_if(workers.begin(), workers.end(), [](const auto& each) {
    return each.second.decode() && each.second.Ready();
  });
  return static_cast<int64_t>(aged.size()) < ready;
}

void Router::Impl::ReleaseQueued(Instant now) {
  next_release = queued.empty() ? kNever : now + kLook;
  int misses = 0;
  const auto release = [&](RequestId id) {
    Request* const request = Find(id);
    if (request == nullptr || queued.count(id) == 0) return;
    if (!MayRelease(*request, now)) return void(++misses);
    Status placed = Place(*request);
    if (placed) return;
    ++misses;
    // Too large for any link, however long it waits.
    if (placed.error().code == Code::kOutOfRange)
      Finish(*request, v1::FINISH_ERROR, placed.error(), {});
  };
  std::vector<RequestId> overdue;
  for (const RequestId id : queued) {
    if (!YieldsAt(requests.at(id.value), now)) overdue.push_back(id);
  }
  for (const RequestId id : overdue) {
    if (misses > 0) break;
    release(id);
  }
  if (overdue.size() == queued.size() && misses > 0) return;
  misses = 0;
  for (const RequestId id : InTurn(queued)) {
    if (misses >= kMostMisses) break;
    const Request* const request = Find(id);
    if (request != nullptr && YieldsAt(*request, now)) release(id);
  }
}

void Router::Impl::Requeue(Request& request) {
  LogInfo(
      "request gives way",
      {{"request", request.spec.trace_id}, {"from", request.worker}, {"emitted", request.emitted}});
  metrics.CountTakenBack(request.spec.tenant.service_class);
  SendCancelled(request);
  Detach(request);
  ++request.moves;
  Enqueue(request);
}

void Router::Impl::TakeBack(const std::string& worker_id, const Objective& asked) {
  WorkerState* const worker = WorkerNamed(worker_id);
  if (worker == nullptr) return;
  const Instant now = clock->Now();
  const double usual_ms = ToMs(options.slo_tpot);
  const double limit_ms =
      asked.tpot_ms > 0 && (usual_ms <= 0 || asked.tpot_ms < usual_ms) ? asked.tpot_ms : usual_ms;
  std::vector<RequestId> yielding;
  for (auto it = worker->attempts.rbegin(); it != worker->attempts.rend(); ++it) {
    const RequestId id = by_wire.at(*it);
    if (YieldsAt(requests.at(id.value), now)) yielding.push_back(id);
  }
  std::stable_sort(yielding.begin(), yielding.end(), [this](RequestId a, RequestId b) {
    return requests.at(a.value).spec.tenant.service_class >
           requests.at(b.value).spec.tenant.service_class;
  });
  for (const RequestId id : yielding) {
    const WorkerView view = worker->View(now, pool, /*yields=*/true);
    const double rows = std::min(view.rows, view.max_rows);
    const double step_ms = view.cost.StepMs({0, 0, rows, static_cast<double>(view.context_tokens)});
    if (limit_ms <= 0 || step_ms + std::max(0.0, view.tpot_extra.value) <= limit_ms) return;
    Request& request = requests.at(id.value);
    worker->Charge(now, {}, -static_cast<int64_t>(request.length()), -1, /*yields=*/true);
    Requeue(request);
  }
}

}  // namespace aisp
