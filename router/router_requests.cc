// One request: placement, tokens, takeover, finish.
#include <algorithm>

#include <fmt/format.h>

#include "common/check.h"
#include "common/log.h"
#include "common/prefix_hash.h"
#include "proto/fingerprint.h"
#include "router/router_impl.h"

namespace aisp {
namespace {

v1::DraftCounts Sum(const v1::DraftCounts& a, const v1::DraftCounts& b) {
  v1::DraftCounts sum;
  sum.set_steps(a.steps() + b.steps());
  sum.set_drafted(a.drafted() + b.drafted());
  sum.set_accepted(a.accepted() + b.accepted());
  return sum;
}

double DtypeBytes(const std::string& dtype) {
  if (dtype == "f32") return 4;
  if (dtype == "bf16" || dtype == "f16") return 2;
  return 1;
}

double KvBytesPerToken(const v1::KvLayoutDesc& layout) {
  return 2.0 * layout.num_layers() * layout.num_kv_heads() * layout.head_dim() *
         DtypeBytes(layout.dtype());
}

// A request that is handed back more often than so is taken for one that fails: nobody rolls a
// cluster over that often.
constexpr int kMaxMoves = 100;

}  // namespace

Router::Impl::Request* Router::Impl::Find(RequestId id) {
  auto it = requests.find(id.value);
  return it == requests.end() ? nullptr : &it->second;
}

std::vector<WorkerView> Router::Impl::ViewsFor(const Request& request,
                                               std::vector<WorkerState*>* states) {
  std::vector<WorkerView> views;
  views.reserve(workers.size());
  const auto most_cached = static_cast<int32_t>((request.spec.tokens.size() - 1) / kHashUnitTokens);
  for (auto& [id, worker] : workers) {
    WorkerView view = worker.View(clock->Now());
    view.cached_tokens =
        std::min(worker.prefix.MatchUnits(request.unit_hashes), most_cached) * kHashUnitTokens;
    if (!view.prefill && request.failed_on.count({id, worker.info.incarnation()}) != 0)
      view.available = false;
    if (!view.prefill &&
        request.spec.tokens.size() >= std::max(1u, worker.info.max_sequence_tokens())) {
      view.available = false;
    }
    views.push_back(view);
    states->push_back(&worker);
  }
  return views;
}

Result<Router::Impl::Choice> Router::Impl::Choose(Request& request) {
  const v1::Fingerprint& pool = PoolFingerprint();
  const v1::KvLayoutDesc& kv = pool.kv_layout();
  request.unit_hashes =
      UnitHashes(PrefixRoot(PrefixDigest(pool), kv.dtype(), "", request.spec.cache_scope),
                 request.spec.tokens);
  RequestSummary summary;
  summary.tokens = static_cast<int32_t>(request.spec.tokens.size());
  summary.expected_new_tokens =
      std::min(mean_new_tokens, static_cast<double>(request.spec.max_new_tokens - request.emitted));
  summary.kv_bytes_per_token = KvBytesPerToken(kv);
  summary.num_layers = static_cast<int32_t>(kv.num_layers());
  summary.block_tokens = static_cast<int32_t>(kv.block_tokens());
  summary.takeover = request.placements > 0;
  summary.preference = request.spec.prefill;
  summary.ordinal = next_placement++;
  summary.tie_break = random.Next();

  Choice choice;
  choice.views = ViewsFor(request, &choice.states);
  Result<Placement> placement = policy->Pick(summary, choice.views);
  if (!placement && !request.failed_on.empty() && clock->Now() >= request.not_before) {
    // Nobody else is there: a worker that failed this request once may take it after a pause.
    request.failed_on.clear();
    choice.states.clear();
    choice.views = ViewsFor(request, &choice.states);
    placement = policy->Pick(summary, choice.views);
  }
  if (!placement) return tl::unexpected(placement.error());
  choice.placement = std::move(*placement);
  return choice;
}

Status Router::Impl::Place(Request& request) {
  if (request.verdict != kNever) return Unavailable("workers were lost with it; held back");
  if (request.on_trial && AnotherOnTrial(request)) {
    return Unavailable("other requests are tried first, one at a time");
  }
  Result<Choice> choice = Choose(request);
  if (!choice) return tl::unexpected(choice.error());
  Dispatch(request, *choice);
  return {};
}

bool Router::Impl::Move(Request& request) {
  Result<Choice> choice = Choose(request);
  if (!choice) return false;
  LogInfo("request moves to another worker", {{"request", request.spec.trace_id},
                                              {"from", request.worker},
                                              {"emitted", request.emitted},
                                              {"reason", "its worker drains"}});
  metrics.moves.Add();
  // What the old worker says from now on finds nobody; the new one starts from the tokens that were
  // delivered.
  TellCancelled(request);
  Detach(request);
  ++request.moves;
  Dispatch(request, *choice);
  return true;
}

v1::GenerateRequest Router::Impl::MakeGenerate(const Request& request) const {
  v1::GenerateRequest out;
  const RouterRequest& spec = request.spec;
  out.set_request_id(request.wire_id);
  out.set_trace_id(spec.trace_id);
  out.set_choice(spec.choice);
  out.mutable_tokens()->Add(spec.tokens.begin(), spec.tokens.end());
  out.set_prompt_tokens(request.prompt_tokens);
  *out.mutable_sampling() = spec.sampling;
  out.set_max_new_tokens(spec.max_new_tokens);
  out.set_min_new_tokens(spec.min_new_tokens);
  out.mutable_stop_token_ids()->Add(spec.stop_token_ids.begin(), spec.stop_token_ids.end());
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(request.deadline - request.dispatched);
  out.set_timeout_ms(std::max<int64_t>(1, left.count()));
  out.set_priority(spec.priority);
  out.set_cache_salt(spec.cache_scope);
  return out;
}

void Router::Impl::Dispatch(Request& request, const Choice& choice) {
  const Placement& placement = choice.placement;
  const std::vector<WorkerView>& views = choice.views;
  const std::vector<WorkerState*>& states = choice.states;
  const Instant now = clock->Now();
  WorkerState& decode = *states[placement.decode];
  request.dispatched = now;
  request.wire_id = next_wire++;
  request.worker = decode.info.worker_id();
  request.preemptions_before = request.preemptions;
  request.drafts_before = request.drafts;
  ++request.placements;
  by_wire[request.wire_id] = request.id;
  decode.attempts.insert(request.wire_id);
  request_timers.Set(request.id.value, request.deadline + options.deadline_grace);

  const WorkerView& on_decode = views[placement.decode];
  const auto tokens = static_cast<int64_t>(request.spec.tokens.size());
  RouteDecision route;
  route.decode_worker = request.worker;
  route.reason = placement.reason;
  route.predicted_ttft_ms = placement.ttft_ms;
  route.predicted_tpot_ms = placement.tpot_ms;
  route.cached_tokens_decode = static_cast<uint32_t>(on_decode.cached_tokens);
  int64_t cached = on_decode.cached_tokens;

  v1::RouterMessage message;
  *message.mutable_generate() = MakeGenerate(request);
  const auto describe = [&](int index, v1::PrefillTarget* target) {
    const v1::Register& info = states[index]->info;
    target->set_worker_id(info.worker_id());
    target->set_incarnation(info.incarnation());
    target->set_kv_address(info.kv_address());
  };
  if (placement.prefill >= 0) {
    const WorkerView& on_prefill = views[placement.prefill];
    describe(placement.prefill, message.mutable_generate()->mutable_prefill());
    for (int other : placement.fallbacks)
      describe(other, message.mutable_generate()->add_prefill_fallbacks());
    route.prefill_worker = on_prefill.worker_id;
    route.cached_tokens_prefill = static_cast<uint32_t>(on_prefill.cached_tokens);
    cached = std::max<int64_t>(cached, on_prefill.cached_tokens);
    states[placement.prefill]->Charge(now, tokens - 1 - on_prefill.cached_tokens, 0, 0);
    decode.Charge(now, 0, tokens, 1);
  } else {
    decode.Charge(now, tokens - on_decode.cached_tokens, tokens, 1);
  }
  request.predicted_ttft_ms = placement.ttft_ms;
  metrics.CountRoute(placement.reason);
  metrics.CountPrefix(tokens, cached);
  RequestObserver* observer = request.observer;
  LogInfo("request placed", {{"request", request.spec.trace_id},
                             {"choice", request.spec.choice},
                             {"decode", route.decode_worker},
                             {"prefill", route.prefill_worker},
                             {"reason", route.reason},
                             {"tokens", tokens}});
  sender->Send(decode.link, std::move(message));
  observer->OnRouted(route);
}

void Router::Impl::OnTokenBatch(LinkId link, const v1::TokenBatch& batch) {
  for (const v1::TokenEvent& event : batch.events()) {
    // Observers may do anything between two events.
    WorkerState* worker = WorkerOf(link);
    if (worker == nullptr) return;
    if (worker->attempts.count(event.request_id()) == 0) continue;  // an attempt that was given up
    if (OnTokenEvent(event.request_id(), event)) continue;
    const std::string id = worker->info.worker_id();
    Forget(id, metrics.forgotten_fault,
           {Code::kUnavailable, fmt::format("worker {} broke the order of tokens", id)},
           /*close=*/true);
    return;
  }
}

bool Router::Impl::OnTokenEvent(uint64_t wire_id, const v1::TokenEvent& event) {
  const RequestId id = by_wire.at(wire_id);
  Request& request = requests.at(id.value);
  const auto next = static_cast<uint32_t>(request.spec.tokens.size());
  int skip = 0;
  if (event.tokens_size() > 0) {
    if (event.first_position() > next) return false;  // tokens are missing
    skip = static_cast<int>(std::min<uint32_t>(next - event.first_position(),
                                               static_cast<uint32_t>(event.tokens_size())));
    const uint32_t fresh = static_cast<uint32_t>(event.tokens_size() - skip);
    if (request.emitted + fresh > request.spec.max_new_tokens) return false;
    if (fresh > 0) Deliver(request, event, skip);
  }
  if (event.finish() == v1::FINISH_NONE) return true;
  Request* left = Find(id);  // the observer may have cancelled it
  if (left != nullptr && left->wire_id == wire_id) OnAttemptEnded(*left, event);
  return true;
}

void Router::Impl::Deliver(Request& request, const v1::TokenEvent& event, int skip) {
  const Instant now = clock->Now();
  v1::TokenEvent out;
  out.set_request_id(request.id.value);
  out.set_first_position(event.first_position() + static_cast<uint32_t>(skip));
  out.mutable_tokens()->Add(event.tokens().begin() + skip, event.tokens().end());
  out.set_preemptions(request.preemptions_before + event.preemptions());
  request.preemptions = out.preemptions();
  if (event.has_drafts()) request.drafts = Sum(request.drafts_before, event.drafts());
  if (request.drafts.steps() > 0) *out.mutable_drafts() = request.drafts;
  if (event.logprobs_size() == event.tokens_size()) {
    for (int i = skip; i < event.logprobs_size(); ++i) *out.add_logprobs() = event.logprobs(i);
  }
  if (request.first_token == kNever) {
    request.first_token = now;
    *out.mutable_timing() = event.timing();
    out.mutable_timing()->set_queue_ns(event.timing().queue_ns() +
                                       (request.dispatched - request.submitted).count());
    const double ttft_s = ToSeconds(now - request.submitted);
    metrics.ObserveFirstToken(now - request.submitted, out.timing());
    if (request.placements == 1)
      metrics.ttft_error_s.Observe(std::abs(ttft_s - request.predicted_ttft_ms * 1e-3));
  } else {
    metrics.itl_s.Observe(ToSeconds(now - request.last_token));
  }
  request.last_token = now;
  // A worker computed it and lives.
  request.blamed.clear();
  request.on_trial = false;
  request.spec.tokens.insert(request.spec.tokens.end(), out.tokens().begin(), out.tokens().end());
  request.emitted += static_cast<uint32_t>(out.tokens_size());
  metrics.generation_tokens.Add(out.tokens_size());
  request.observer->OnTokens(out);
}

void Router::Impl::OnAttemptEnded(Request& request, const v1::TokenEvent& event) {
  if (event.finish() == v1::FINISH_STOP || event.finish() == v1::FINISH_LENGTH) {
    Finish(request, event.finish(), {Code::kOk, ""}, {});
    return;
  }
  Error error{static_cast<Code>(event.error().code()), event.error().message()};
  if (event.handed_back() && request.moves < kMaxMoves) return OnHandedBack(request, error);
  // Nobody here asked for a cancellation: the worker gave the request up for reasons of its own.
  const bool given_up = event.finish() == v1::FINISH_CANCELLED;
  if (given_up)
    error = {Code::kUnavailable, fmt::format("worker {} gave the request up", request.worker)};
  if (!given_up && !event.error().retryable()) {
    Finish(request, v1::FINISH_ERROR, std::move(error), {});
    return;
  }
  if (WorkerState* worker = WorkerNamed(request.worker); worker != nullptr) {
    request.failed_on.insert({request.worker, worker->info.incarnation()});
  }
  Detach(request);
  TakeOver(request, error);
}

void Router::Impl::OnHandedBack(Request& request, const Error& why) {
  // Its word about the drain and this request crossed on the wire.
  if (WorkerState* worker = WorkerNamed(request.worker); worker != nullptr) worker->draining = true;
  Detach(request);
  ++request.moves;
  metrics.moves.Add();
  const Instant now = clock->Now();
  request.last_error = why;
  request.give_up = now + options.takeover_wait;
  if (Status placed = Place(request); !placed) MakePending(request, now + options.retry_backoff);
}

void Router::Impl::Detach(Request& request) {
  if (request.wire_id == 0) return;
  if (WorkerState* worker = WorkerNamed(request.worker); worker != nullptr) {
    worker->attempts.erase(request.wire_id);
    worker->not_started.erase(request.wire_id);
  }
  by_wire.erase(request.wire_id);
  request.wire_id = 0;
}

void Router::Impl::TellCancelled(const Request& request) {
  if (request.wire_id == 0) return;
  WorkerState* worker = WorkerNamed(request.worker);
  AISP_CHECK(worker != nullptr);
  v1::RouterMessage message;
  message.mutable_cancel()->set_request_id(request.wire_id);
  sender->Send(worker->link, std::move(message));
}

void Router::Impl::TakeOver(Request& request, const Error& why) {
  AISP_CHECK(request.wire_id == 0);
  const Instant now = clock->Now();
  request.last_error = why;
  if (request.emitted >= request.spec.max_new_tokens) {
    // Its last token arrived, the word that it was the last one did not.
    Finish(request, v1::FINISH_LENGTH, {Code::kOk, ""}, {});
    return;
  }
  if (now >= request.deadline) {
    OnRequestTimer(request.id, now);
    return;
  }
  if (request.placements - request.moves >= options.max_attempts) {
    Finish(request, v1::FINISH_ERROR,
           {Code::kUnavailable,
            fmt::format("the request failed on {} placements, the limit; the last failure was: {}",
                        request.placements - request.moves, why.ToString())},
           options.no_worker_retry_after);
    return;
  }
  metrics.takeovers.Add();
  LogInfo("request moves to another worker", {{"request", request.spec.trace_id},
                                              {"from", request.worker},
                                              {"emitted", request.emitted},
                                              {"reason", why.message}});
  // On trial it waits for its turn, not for a worker.
  const bool held = request.on_trial || request.verdict != kNever;
  request.give_up = held ? request.deadline : now + options.takeover_wait;
  const int doublings = std::clamp(request.placements - request.moves - 1, 0, 10);
  request.not_before = now + options.retry_backoff * (int64_t{1} << doublings);
  if (request.verdict != kNever) request.not_before = request.verdict;
  if (Status placed = Place(request); !placed) MakePending(request, request.not_before);
}

void Router::Impl::MakePending(Request& request, Instant not_before) {
  request.not_before = not_before;
  pending.insert(request.id);
  metrics.pending.Set(static_cast<double>(pending.size()));
  request_timers.Set(request.id.value, std::min({request.deadline, request.give_up, not_before}));
}

void Router::Impl::PlacePending() {
  const std::vector<RequestId> waiting(pending.begin(), pending.end());
  for (RequestId id : waiting) {
    if (pending.erase(id) == 0) continue;
    Request& request = requests.at(id.value);
    if (Status placed = Place(request); !placed) MakePending(request, request.not_before);
  }
  metrics.pending.Set(static_cast<double>(pending.size()));
}

void Router::Impl::CountSuccess(const Request& request, v1::FinishReason reason) {
  LogInfo("request finished", {{"request", request.spec.trace_id},
                               {"choice", request.spec.choice},
                               {"tokens", request.emitted},
                               {"finish", reason == v1::FINISH_STOP ? "stop" : "length"},
                               {"ms", ToMs(clock->Now() - request.submitted)}});
  metrics.CountRequest(RequestStatus::kOk);
  (reason == v1::FINISH_STOP ? metrics.finished_stop : metrics.finished_length).Add();
  if (request.emitted > 0) {
    std::optional<Duration> tpot;
    if (request.emitted > 1)
      tpot = (request.last_token - request.first_token) / (request.emitted - 1);
    metrics.CountServed(request.first_token - request.submitted, tpot);
  }
  mean_new_tokens += 0.05 * (request.emitted - mean_new_tokens);
}

void Router::Impl::Remove(Request& request) {
  const RequestId id = request.id;
  Detach(request);
  pending.erase(id);
  request_timers.Erase(id.value);
  requests.erase(id.value);
  metrics.active.Set(static_cast<double>(requests.size()));
  metrics.pending.Set(static_cast<double>(pending.size()));
}

void Router::Impl::Finish(Request& request, v1::FinishReason reason, const Error& error,
                          Duration retry_after) {
  RequestObserver* observer = request.observer;
  if (reason == v1::FINISH_STOP || reason == v1::FINISH_LENGTH) {
    CountSuccess(request, reason);
  } else {
    LogInfo("request ended", {{"request", request.spec.trace_id},
                              {"choice", request.spec.choice},
                              {"tokens", request.emitted},
                              {"error", error.message}});
    const bool late = error.code == Code::kDeadlineExceeded;
    metrics.CountRequest(late ? RequestStatus::kDeadline : RequestStatus::kError);
  }
  metrics.e2e_s.Observe(ToSeconds(clock->Now() - request.submitted));
  const Error reported = error;  // the argument may live in the request
  Remove(request);
  observer->OnFinish(reason, reported, retry_after);
}

}  // namespace aisp
