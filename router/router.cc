#include "router/router.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/check.h"
#include "common/log.h"
#include "common/prefix_hash.h"
#include "router/router_impl.h"

namespace aisp {
namespace {

std::unique_ptr<RoutingPolicy> PolicyOf(const PolicyOptions& options) {
  auto policy = MakeRoutingPolicy(options);
  AISP_CHECK_MSG(policy.has_value(), "the settings allow known policies only");
  return std::move(*policy);
}

}  // namespace

Router::Impl::Impl(const RouterOptions& opts, const v1::Fingerprint& expected_fingerprint,
                   const Clock* clk, uint64_t seed, LinkSender<v1::RouterMessage>* workers_sender,
                   Metrics* m)
    : options(opts),
      expected(expected_fingerprint),
      clock(clk),
      sender(workers_sender),
      policy(PolicyOf(opts.policy)),
      metrics(m, expected_fingerprint.model_name(), policy->Reasons()),
      random(seed) {
  AISP_CHECK(opts.max_inflight > 0);
  AISP_CHECK(opts.max_attempts > 0 && opts.max_queued >= 0);
  metrics.SetSlo(opts.slo_ttft, opts.slo_tpot);
  adapters = opts.adapters;
  adapter_author = SplitMix64(seed).Next() | 1;
}

Status Router::Impl::CheckRequest(const RouterRequest& spec) const {
  if (spec.tokens.empty()) return InvalidArgument("the prompt has no token; give at least one");
  // Removed since the request was parsed.
  if (!spec.adapter.empty() && !ServesAdapter(spec.adapter)) return tl::unexpected(UnservedError());
  const size_t answer = spec.max_new_tokens > 0 ? 1 : 0;
  uint32_t longest = 0;
  for (const WorkerState* worker : roster) {
    if (worker->decode()) longest = std::max(longest, worker->info.max_sequence_tokens());
  }
  if (longest > 0 && spec.tokens.size() + answer > longest) {
    return InvalidArgument(
        fmt::format("the prompt has {} tokens and the longest sequence that a worker takes has {}, "
                    "one of them to be generated; "
                    "shorten the prompt",
                    spec.tokens.size(), longest));
  }
  return {};
}

Router::Impl::Request& Router::Impl::Open(RouterRequest spec, RequestObserver* observer,
                                          FairShare& accounts, FairShare::Account* account) {
  const Instant now = clock->Now();
  const RequestId id(next_request++);
  Request& request = requests[id.value];
  request.id = id;
  request.spec = std::move(spec);
  request.observer = observer;
  request.accounts = &accounts;
  request.account = account;
  request.prompt_tokens = static_cast<uint32_t>(request.spec.tokens.size());
  request.submitted = now;
  request.ages = now + PatienceOf(request.spec.tenant.service_class);
  const Duration timeout =
      request.spec.timeout > Duration{} ? request.spec.timeout : options.default_timeout;
  request.deadline = now + timeout;
  if (request.spec.sampling.seed() == 0) request.spec.sampling.set_seed(random.Next() | 1);
  request_timers.Set(id.value, request.deadline + options.deadline_grace);
  metrics.active.Set(static_cast<double>(requests.size()));
  return request;
}

Result<RequestId> Router::Impl::Submit(RouterRequest spec, RequestObserver* observer,
                                       Duration* retry_after) {
  *retry_after = Duration{};
  const ServiceClass service_class = spec.tenant.service_class;
  const bool yields = Yields(service_class);
  const auto refuse = [&](Error error, Duration hint, const Counter& reason) {
    *retry_after = hint;
    metrics.CountRequest(RequestStatus::kRefused, service_class);
    reason.Add();
    return tl::unexpected<Error>(std::move(error));
  };
  if (Status ok = CheckRequest(spec); !ok) return refuse(ok.error(), {}, metrics.rejected_prompt);
  if (Status ok = CheckPoison(spec); !ok) return refuse(ok.error(), {}, metrics.rejected_poison);
  ++totals.requests;
  totals.prompt_tokens += spec.tokens.size();
  if (Status room = CheckInFlight(yields); !room) {
    return refuse(room.error(), options.no_worker_retry_after,
                  yields ? metrics.rejected_queue : metrics.rejected_inflight);
  }
  if (Status ready = Ready(); !ready)
    return refuse(ready.error(), options.no_worker_retry_after, metrics.rejected_no_worker);

  FairShare& accounts = yields ? queue_shares : shares;
  FairShare::Account* const account = accounts.Enter(spec.tenant);
  const Status share = yields ? CheckShare(*account, queued.size(), options.max_queued)
                              : CheckShare(*account, InFlight(), options.max_inflight);
  if (!share) {
    accounts.Leave(account);
    return refuse(share.error(), options.no_worker_retry_after, metrics.rejected_share);
  }
  const auto tokens = static_cast<double>(spec.tokens.size());
  Request& request = Open(std::move(spec), observer, accounts, account);
  const RequestId id = request.id;
  if (yields) {
    Enqueue(request);
    // With others before it in the queue it waits its turn.
    if (queued.size() == 1) ReleaseQueued(clock->Now());
  } else if (Status placed = Place(request); !placed) {
    const bool link_refused = !request.last_error.message.empty();
    const Duration hint = std::max(request.retry_after, options.no_worker_retry_after);
    request_timers.Erase(id.value);
    shares.Leave(account);
    requests.erase(id.value);
    metrics.active.Set(static_cast<double>(requests.size()));
    const bool busy = placed.error().code != Code::kUnavailable;
    return refuse(placed.error(), hint,
                  link_refused ? metrics.rejected_link
                  : busy       ? metrics.rejected_objective
                               : metrics.rejected_no_worker);
  }
  if (requests.count(id.value) > 0) metrics.prompt_tokens.Add(tokens);
  return id;
}

void Router::Impl::Cancel(RequestId id) {
  Request* request = Find(id);
  if (request == nullptr) return;
  SendCancelled(*request);
  metrics.CountRequest(RequestStatus::kCancelled, request->spec.tenant.service_class);
  metrics.cancelled.Add();
  Remove(*request);
}

void Router::Impl::Complete(RequestId id) {
  Request* request = Find(id);
  if (request == nullptr) return;
  SendCancelled(*request);
  CountSuccess(*request, v1::FINISH_STOP);
  metrics.e2e_s.Observe(ToSeconds(clock->Now() - request->submitted));
  Remove(*request);
}

// After the router itself was paused, all timers are late and all messages unread: its workers were
// not silent.
void Router::Impl::ForgiveStall(Instant now) {
  const Instant next = link_timers.Next();
  if (next >= now) return;
  if (now - next >= options.quiet_limit / 4) punctual_since = now;
  if (now - next < options.silence_limit / 4) return;
  LogWarning("the router was stalled", {{"late_ms", ToMs(now - next)}});
  for (auto& [id, worker] : workers) {
    worker.last_heard = now;
    link_timers.Set(worker.link.value, now + options.silence_limit);
  }
  for (auto& [link, contender] : contenders) {
    contender.until = now + options.probe_limit;
    link_timers.Set(link.value, contender.until);
  }
}

void Router::Impl::OnTimer(Instant now) {
  ForgiveStall(now);
  uint64_t key = 0;
  while (request_timers.PopDue(now, &key)) OnRequestTimer(RequestId(key), now);
  while (link_timers.PopDue(now, &key)) OnLinkTimer(LinkId(key), now);
  while (role_timers.PopDue(now, &key)) OnRoleTimer(key);
  OnLoadTimer(now);
  if (now >= next_release) ReleaseQueued(now);
}

void Router::Impl::OnRequestTimer(RequestId id, Instant now) {
  Request* request = Find(id);
  if (request == nullptr) return;
  const bool placed = request->wire_id != 0;
  if (now >= request->deadline) {
    const double timeout_ms = ToMs(request->deadline - request->submitted);
    SendCancelled(*request);
    Finish(
        *request, v1::FINISH_ERROR,
        {Code::kDeadlineExceeded, fmt::format("the request did not finish within its {:.0f} ms "
                                              "after {} tokens; ask for fewer tokens or more time",
                                              timeout_ms, request->emitted)},
        {});
    return;
  }
  if (placed) {
    request_timers.Set(id.value, request->deadline + options.deadline_grace);
    return;
  }
  if (queued.count(id) > 0) {
    request_timers.Set(id.value, request->deadline);
    return;
  }
  if (now >= request->give_up) {
    Finish(*request, v1::FINISH_ERROR,
           {Code::kUnavailable,
            fmt::format("no worker could take the request over; the last failure was: {}",
                        request->last_error.ToString())},
           options.no_worker_retry_after);
    return;
  }
  pending.erase(id);
  if (Judge(id, now)) return;
  PlaceOrWait(*request, now + options.retry_backoff);
}

void Router::Impl::OnLinkTimer(LinkId link_id, Instant now) {
  auto it = links.find(link_id);
  if (it == links.end()) return;
  if (const auto contender = contenders.find(link_id); contender != contenders.end()) {
    if (now < contender->second.until) {
      link_timers.Set(link_id.value, contender->second.until);
      return;
    }
    return EndContest(link_id);
  }
  WorkerState* worker = WorkerNamed(it->second.worker);
  if (worker == nullptr) {
    // It never registered, or was refused and did not close the link.
    links.erase(it);
    sender->Close(link_id);
    return;
  }
  const Instant forgotten_at = worker->last_heard + options.silence_limit;
  if (now < forgotten_at) {
    const bool quiet = worker->quiet || now >= QuietAt(*worker);
    link_timers.Set(link_id.value, quiet ? forgotten_at : std::min(QuietAt(*worker), forgotten_at));
    if (quiet && !worker->quiet) OnQuiet(*worker);
    return;
  }
  const std::string id = worker->info.worker_id();
  Forget(id, metrics.forgotten_silent,
         {Code::kUnavailable,
          fmt::format("worker {} said nothing for {:.0f} ms", id, ToMs(now - worker->last_heard))},
         /*close=*/true);
}

Status Router::Impl::Ready() const {
  int registered = 0;
  for (const auto& [id, worker] : workers) {
    if (!worker.decode()) continue;
    if (worker.Ready()) return {};
    ++registered;
  }
  if (registered == 0)
    return Unavailable("no decode worker is registered; start one with role decode or serve");
  return Unavailable(
      fmt::format("none of the {} registered decode workers is ready; retry later", registered));
}

Router::Router(const RouterOptions& options, const v1::Fingerprint& expected, const Clock* clock,
               uint64_t seed, LinkSender<v1::RouterMessage>* workers, Metrics* metrics)
    : impl_(std::make_unique<Impl>(options, expected, clock, seed, workers, metrics)) {}
Router::~Router() = default;

Result<RequestId> Router::Submit(RouterRequest request, RequestObserver* observer,
                                 Duration* retry_after) {
  return impl_->Submit(std::move(request), observer, retry_after);
}
void Router::Cancel(RequestId id) { impl_->Cancel(id); }
void Router::Complete(RequestId id) { impl_->Complete(id); }

void Router::OnLinkUp(LinkId link, const std::string& peer_address) {
  const Instant now = impl_->clock->Now();
  impl_->links[link] = Impl::Link{peer_address, "", now};
  impl_->link_timers.Set(link.value, now + impl_->options.silence_limit);
}
void Router::OnMessage(LinkId link, v1::WorkerMessage message) {
  impl_->OnMessage(link, std::move(message));
}
void Router::OnLinkDown(LinkId link, const Error& why) { impl_->OnLinkDown(link, why); }

Instant Router::NextTimer() const {
  return std::min({impl_->request_timers.Next(), impl_->link_timers.Next(),
                   impl_->role_timers.Next(), impl_->next_release,
                   impl_->loading ? impl_->loading->until : kNever});
}
void Router::OnTimer(Instant now) { impl_->OnTimer(now); }

Status Router::Ready() const {
  if (impl_->draining) return Unavailable("this router is draining");
  return impl_->Ready();
}
void Router::BeginDrain() { impl_->BeginDrain(); }
bool Router::Idle() const { return impl_->requests.empty(); }

Status Router::DrainWorker(const std::string& worker_id, bool move, bool stop) {
  WorkerState* worker = impl_->WorkerNamed(worker_id);
  if (worker == nullptr) return tl::unexpected(impl_->NoSuchWorker(worker_id));
  // No new requests from now on; the worker reports which ones must move.
  worker->draining = true;
  v1::RouterMessage message;
  message.mutable_drain()->set_move(move);
  message.mutable_drain()->set_stop(stop);
  impl_->sender->Send(worker->link, std::move(message));
  return {};
}

std::vector<WorkerStatus> Router::Workers() const {
  std::vector<WorkerStatus> out;
  for (const auto& [id, worker] : impl_->workers) {
    out.push_back(worker.Describe(impl_->pool));
    if (const auto link = impl_->links.find(worker.link); link != impl_->links.end())
      out.back().address = link->second.peer_address;
  }
  return out;
}

const RouterTotals& Router::Totals() const { return impl_->totals; }

std::string_view WorkerStateName(WorkerStatus::State state) {
  switch (state) {
    case WorkerStatus::State::kNotReady:
      return "not ready";
    case WorkerStatus::State::kReady:
      return "ready";
    case WorkerStatus::State::kBusy:
      return "busy in a long step";
    case WorkerStatus::State::kDraining:
      return "draining";
    case WorkerStatus::State::kDrained:
      return "drained";
    case WorkerStatus::State::kParked:
      return "parked";
  }
  return "unknown";
}

}  // namespace aisp
