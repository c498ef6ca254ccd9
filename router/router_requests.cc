// Requests: tokens, takeover, finish.
#include <algorithm>

#include <fmt/format.h>

#include "common/check.h"
#include "common/log.h"
#include "proto/reported_timing.h"
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

// A worker's error code; an unknown number counts as the worker's fault.
Code CodeOf(const v1::Error& error) {
  const bool known = error.code() > static_cast<int>(Code::kOk) &&
                     error.code() <= static_cast<int>(Code::kUnauthenticated);
  return known ? static_cast<Code>(error.code()) : Code::kInternal;
}

// A request handed back more often counts as failed: no rolling update does that.
constexpr int kMaxMoves = 100;

// Accepted near its TPOT limit: such requests say whether the margin is right.
bool NearTpot(const Placement& placed, const Objective& asked) {
  constexpr double kNear = 0.85;
  return asked.tpot_ms > 0 && placed.tpot_high_ms > kNear * asked.tpot_ms;
}

}  // namespace

Router::Impl::Request* Router::Impl::Find(RequestId id) {
  auto it = requests.find(id.value);
  return it == requests.end() ? nullptr : &it->second;
}

void Router::Impl::OnTokenBatch(LinkId link, const v1::TokenBatch& batch) {
  for (const v1::TokenEvent& event : batch.events()) {
    // Observers may change anything between two events.
    WorkerState* worker = WorkerOf(link);
    if (worker == nullptr) return;
    if (worker->attempts.count(event.request_id()) == 0) continue;  // an abandoned attempt
    if (OnTokenEvent(event.request_id(), event)) continue;
    const std::string id = worker->info.worker_id();
    Forget(id, metrics.forgotten_fault,
           {Code::kUnavailable, fmt::format("worker {} broke the order of tokens", id)},
           /*close=*/true);
    return;
  }
}

// Other ids would reach the client and, after a takeover, the next worker, which refuses them.
bool Router::Impl::IdsOfTheModel(const v1::TokenEvent& event) const {
  const int32_t end = options.vocabulary > 0 ? options.vocabulary : INT32_MAX;
  const auto known = [end](int32_t id) { return id >= 0 && id < end; };
  const auto all_known = [&known](const v1::TokenLogprobs& each) {
    return std::all_of(each.top_ids().begin(), each.top_ids().end(), known);
  };
  const auto& prompt = event.prompt_logprobs().logprobs();
  return std::all_of(event.tokens().begin(), event.tokens().end(), known) &&
         std::all_of(event.logprobs().begin(), event.logprobs().end(), all_known) &&
         std::all_of(prompt.begin(), prompt.end(), all_known);
}

bool Router::Impl::OnTokenEvent(uint64_t wire_id, const v1::TokenEvent& event) {
  if (!IdsOfTheModel(event)) return false;
  const RequestId id = by_wire.at(wire_id);
  if (event.has_prompt_logprobs()) {
    if (!DeliverPrompt(requests.at(id.value), event)) return false;
    const Request* const asking = Find(id);  // the observer may have cancelled it
    if (asking == nullptr || asking->wire_id != wire_id) return true;
  }
  Request& request = requests.at(id.value);
  OnPrefillLost(request, event);
  const auto next = static_cast<uint32_t>(request.length());
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
  if (event.embedding_size() > 0 && event.tokens_size() == 0) DeliverEmbedding(request, event);
  Request* left = Find(id);  // the observer may have cancelled it
  if (left != nullptr && left->wire_id == wire_id) OnAttemptEnded(*left, event);
  return true;
}

bool Router::Impl::DeliverPrompt(Request& request, const v1::TokenEvent& event) {
  const v1::PromptLogprobs& came = event.prompt_logprobs();
  const uint32_t next = request.prompt_scored;
  const auto count = static_cast<uint32_t>(came.logprobs_size());
  if (request.spec.prompt_logprobs < 0) return false;
  if (came.first_position() < 1 || came.first_position() > next) return false;
  if (count > request.prompt_tokens || came.first_position() > request.prompt_tokens - count)
    return false;
  const uint32_t skip = std::min(next - came.first_position(), count);
  if (skip == count) return true;
  v1::PromptLogprobs fresh;
  fresh.set_first_position(next);
  fresh.mutable_logprobs()->Add(came.logprobs().begin() + static_cast<int>(skip),
                                came.logprobs().end());
  request.prompt_scored = next + count - skip;
  request.observer->OnPromptLogprobs(fresh);
  return true;
}

// The worker's timing, bounded by the time measured here; the wait here counts as queueing.
v1::Timing Router::Impl::TimingOf(const Request& request, const v1::TokenEvent& event) const {
  v1::Timing timing = event.timing();
  BoundTiming({.elapsed = clock->Now() - request.dispatched,
               .tokens = static_cast<int64_t>(request.length())},
              &timing);
  timing.set_queue_ns(timing.queue_ns() + (request.dispatched - request.submitted).count());
  return timing;
}

void Router::Impl::DeliverEmbedding(Request& request, const v1::TokenEvent& event) {
  if (request.spec.pooling == v1::POOL_NONE) return;
  v1::TokenEvent out = event;
  out.set_request_id(request.id.value);
  *out.mutable_timing() = TimingOf(request, event);
  request.observer->OnEmbedding(out);
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
  EndPromise(request);
  if (request.first_token == kNever) {
    request.first_token = now;
    *out.mutable_timing() = TimingOf(request, event);
    metrics.ObserveFirstToken(now - request.submitted, out.timing(),
                              request.spec.tenant.service_class);
    LearnFromPull(request, out.timing().pull());
    LearnFromFirstToken(request, out.timing());
  } else {
    metrics.itl_s.Observe(ToSeconds(now - request.last_token));
  }
  request.last_token = now;
  Clear(request);
  request.prefill_workers.clear();
  request.prefill_lost.clear();
  request.prefill_untold.clear();
  request.on_trial = false;
  request.answer.insert(request.answer.end(), out.tokens().begin(), out.tokens().end());
  request.emitted += static_cast<uint32_t>(out.tokens_size());
  FairShare::Charge(request.account, out.tokens_size());
  metrics.generation_tokens.Add(out.tokens_size());
  request.observer->OnTokens(out);
}

void Router::Impl::LearnFromPull(const Request& request, const v1::PrefixPull& pull) {
  if (request.pulls_from.empty() || pull.result() == v1::PrefixPull::NONE) return;
  // Another prefill worker than the first was used; it pulled nothing.
  if (pull.holder() != request.pulls_from) return;
  pull_rates.Learn(request.pulls_from, request.pulls_to, pull, clock->Now());
}

// Only from requests that ran as placed: no other way was predicted.
void Router::Impl::LearnFromFirstToken(const Request& request, const v1::Timing& timing) {
  const Placement& placed = request.placed;
  WorkerState* worker = WorkerNamed(request.worker);
  const bool as_placed =
      timing.fallback().empty() && timing.prefill_worker().empty() == (placed.prefill < 0);
  if (request.placements != 1 || !as_placed || worker == nullptr || placed.ttft_ms <= 0) return;
  const double measured_ms = ToMs(request.first_token - request.dispatched);
  const double error_ms = std::abs(measured_ms - placed.ttft_ms);
  if (measured_ms > 0) metrics.ObserveTtftError(error_ms, measured_ms, request.prompt_step_ms);
  // Streams with no time to spare leave a prompt no steps (common/token_limits.h): too many run.
  const Objective& asked = request.spec.objective;
  const double since_ms = ToMs(request.first_token - request.submitted);
  if (placed.prefill < 0 && asked.ttft_ms > 0 && since_ms > asked.ttft_ms &&
      NearTpot(placed, asked))
    pool.margin.Learn(/*missed=*/true);
  if (placed.pull.holder >= 0) return LearnFromFetch(request, timing.pull(), measured_ms);
  TtftCorrection& correction =
      placed.prefill < 0 ? worker->correction.local : worker->correction.remote;
  correction.Learn(placed.ttft_own_ms, placed.ttft_wait_ms, measured_ms, clock->Now());
}

// The pull's error: measured time minus the prediction of the pull and of the rest.
void Router::Impl::LearnFromFetch(const Request& request, const v1::PrefixPull& pull,
                                  double measured_ms) {
  WorkerState* const puller = WorkerNamed(request.pulls_to);
  if (puller == nullptr || pull.result() != v1::PrefixPull::FILLED) return;
  const Placement& placed = request.placed;
  puller->correction.fetch_ms.Add(measured_ms - (placed.ttft_ms - placed.ttft_fetch_ms),
                                  clock->Now());
}

// Only from answers long enough to have a TPOT.
void Router::Impl::LearnFromEnd(const Request& request, Duration tpot) {
  constexpr uint32_t kEnough = 8;
  const Placement& placed = request.placed;
  if (request.placements != 1 || request.emitted < kEnough || !placed.known ||
      placed.step_ms <= 0 || tpot <= Duration{})
    return;
  const double measured_ms = ToMs(tpot);
  metrics.tpot_error_ratio.Observe(std::abs(measured_ms - placed.tpot_ms) / measured_ms);
  const Objective& asked = request.spec.objective;
  if (NearTpot(placed, asked)) pool.margin.Learn(measured_ms > asked.tpot_ms);
  pool.tpot_extra_ms.Add(measured_ms - placed.step_ms, clock->Now());
  pool.tpot.Learn(request.predicted_tpot_ms, measured_ms, static_cast<double>(by_wire.size()),
                  clock->Now());
}

void Router::Impl::OnAttemptEnded(Request& request, const v1::TokenEvent& event) {
  if (event.finish() == v1::FINISH_STOP || event.finish() == v1::FINISH_LENGTH) {
    Finish(request, event.finish(), {Code::kOk, ""}, {});
    return;
  }
  Error error{CodeOf(event.error()), event.error().message()};
  if (event.handed_back() && request.moves < kMaxMoves) return OnHandedBack(request, error);
  // No cancellation was requested here: the worker gave the request up by itself.
  const bool given_up = event.finish() == v1::FINISH_CANCELLED;
  if (given_up)
    error = {Code::kUnavailable, fmt::format("worker {} gave the request up", request.worker)};
  if (!given_up && !event.error().retryable()) {
    Finish(request, v1::FINISH_ERROR, std::move(error), {});
    return;
  }
  WorkerState* const worker = WorkerNamed(request.worker);
  const bool to_be_judged = event.lost_prefill_size() > 0;
  if (worker != nullptr && !to_be_judged)
    request.failed_on.insert({request.worker, worker->info.incarnation()});
  Detach(request);
  if (to_be_judged && MayHaveEndedTwo(request)) HoldBack(request);
  TakeOver(request, error);
}

void Router::Impl::OnHandedBack(Request& request, const Error& why) {
  // Its drain notice and this request crossed on the wire.
  if (WorkerState* worker = WorkerNamed(request.worker); worker != nullptr) worker->draining = true;
  Detach(request);
  ++request.moves;
  metrics.moves.Add();
  const Instant now = clock->Now();
  request.last_error = why;
  request.give_up = now + options.takeover_wait;
  PlaceOrWait(request, now + options.retry_backoff);
}

void Router::Impl::Detach(Request& request) {
  if (request.wire_id == 0) return;
  NoteUntold(request);
  EndPromise(request);
  aged.erase(request.id);
  if (WorkerState* worker = WorkerNamed(request.worker); worker != nullptr) {
    if (worker->attempts.erase(request.wire_id) > 0) worker->ages.Remove(request.dispatched);
    worker->not_started.erase(request.wire_id);
    ReleasePrompt(*worker, request.prompt_id);
  }
  request.prompt_id = 0;
  by_wire.erase(request.wire_id);
  request.wire_id = 0;
  ForgetKeyed(request);
}

void Router::Impl::SendCancelled(const Request& request) {
  if (request.wire_id == 0) return;
  WorkerState* worker = WorkerNamed(request.worker);
  AISP_CHECK(worker != nullptr);
  if (WaitsForToken(request)) worker->TakenAway(request.id, clock->Now());
  v1::RouterMessage message;
  message.mutable_cancel()->set_request_id(request.wire_id);
  sender->Send(worker->link, std::move(message));
}

void Router::Impl::TakeOver(Request& request, const Error& why) {
  AISP_CHECK(request.wire_id == 0);
  const Instant now = clock->Now();
  request.last_error = why;
  const bool scored =
      request.spec.prompt_logprobs < 0 || request.prompt_scored >= request.prompt_tokens;
  if (request.spec.pooling == v1::POOL_NONE && scored &&
      request.emitted >= request.spec.max_new_tokens) {
    // Its last token arrived, but not the finish event.
    Finish(request, v1::FINISH_LENGTH, {Code::kOk, ""}, {});
    return;
  }
  if (now >= request.deadline) {
    OnRequestTimer(request.id, now);
    return;
  }
  if (!request.spec.adapter.empty() && !ServesAdapter(request.spec.adapter))
    return Finish(request, v1::FINISH_ERROR, UnservedError(), {});
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
  PlaceOrWait(request, request.not_before);
}

void Router::Impl::PlaceOrWait(Request& request, Instant not_before) {
  if (Status placed = Place(request); !placed) Wait(request, not_before);
}

// Yielding requests wait for room without limit, unless held back for another reason.
void Router::Impl::Wait(Request& request, Instant not_before) {
  const bool held = request.verdict != kNever || request.on_trial;
  if (held || !YieldsAt(request, clock->Now())) return MakePending(request, not_before);
  request.not_before = not_before;
  Enqueue(request);
}

void Router::Impl::MakePending(Request& request, Instant not_before) {
  request.not_before = not_before;
  pending.insert(request.id);
  metrics.pending.Set(static_cast<double>(pending.size()));
  request_timers.Set(request.id.value, std::min({request.deadline, request.give_up, not_before}));
}

void Router::Impl::PlacePending() {
  for (RequestId id : InTurn(pending)) {
    if (pending.erase(id) == 0) continue;
    Request& request = requests.at(id.value);
    PlaceOrWait(request, request.not_before);
  }
  metrics.pending.Set(static_cast<double>(pending.size()));
}

void Router::Impl::CountSuccess(const Request& request, v1::FinishReason reason) {
  LogInfo("request finished", {{"request", request.spec.trace_id},
                               {"choice", request.spec.choice},
                               {"tokens", request.emitted},
                               {"finish", reason == v1::FINISH_STOP ? "stop" : "length"},
                               {"ms", ToMs(clock->Now() - request.submitted)}});
  metrics.CountRequest(RequestStatus::kOk, request.spec.tenant.service_class);
  ++totals.finished;
  totals.new_tokens += request.emitted;
  (reason == v1::FINISH_STOP ? metrics.finished_stop : metrics.finished_length).Add();
  if (request.emitted > 0) {
    std::optional<Duration> tpot;
    if (request.emitted > 1)
      tpot = (request.last_token - request.first_token) / (request.emitted - 1);
    metrics.CountServed(request.first_token - request.submitted, tpot,
                        request.spec.tenant.service_class);
    if (tpot) LearnFromEnd(request, *tpot);
  }
  answer_lengths.Add(request.spec.max_new_tokens, request.emitted);
  pool.short_answers.Add(request.emitted);
}

void Router::Impl::Remove(Request& request) {
  const RequestId id = request.id;
  Detach(request);
  pending.erase(id);
  RemoveFromQueue(request);
  ForgetPrefillWorkers(request);
  ForgetSuspect(request);
  request_timers.Erase(id.value);
  request.accounts->Leave(request.account);
  requests.erase(id.value);
  metrics.active.Set(static_cast<double>(requests.size()));
  metrics.pending.Set(static_cast<double>(pending.size()));
}

void Router::Impl::Finish(Request& request, v1::FinishReason reason, Error error,
                          Duration retry_after) {
  RequestObserver* observer = request.observer;
  if (reason == v1::FINISH_STOP || reason == v1::FINISH_LENGTH) {
    Clear(request);
    CountSuccess(request, reason);
  } else {
    LogInfo("request ended", {{"request", request.spec.trace_id},
                              {"choice", request.spec.choice},
                              {"tokens", request.emitted},
                              {"error", error.message}});
    const bool late = error.code == Code::kDeadlineExceeded;
    metrics.CountRequest(late ? RequestStatus::kDeadline : RequestStatus::kError,
                         request.spec.tenant.service_class);
  }
  metrics.e2e_s.Observe(ToSeconds(clock->Now() - request.submitted));
  Remove(request);
  observer->OnFinish(reason, error, retry_after);
}

}  // namespace aisp
