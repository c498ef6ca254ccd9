// Placement of requests and their dispatch to workers.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/log.h"
#include "common/prefix_hash.h"
#include "proto/fingerprint.h"
#include "proto/hash_wire.h"
#include "proto/tenant.h"
#include "router/prediction.h"
#include "router/prefix_pulls.h"
#include "router/router_impl.h"

namespace aisp {
namespace {

// Yielding requests fill this part of the running streams' TPOT limit; the rest is for the next
// interactive requests.
constexpr double kFilled = 0.8;

// Cap on the estimated number of routers: early on, this router's own rate says little.
constexpr double kMostRouters = 16;

// The client's limits, with the defaults for those that it does not name.
Objective ObjectiveOf(const Objective& asked, const Objective& usual) {
  return {asked.ttft_ms > 0 ? asked.ttft_ms : usual.ttft_ms,
          asked.tpot_ms > 0 ? asked.tpot_ms : usual.tpot_ms};
}

}  // namespace

std::vector<TokenId> Router::Impl::Request::Sequence() const {
  std::vector<TokenId> all = spec.tokens;
  all.insert(all.end(), answer.begin(), answer.end());
  return all;
}

void Router::Impl::SetViews(const Request& request, bool yields, bool quiet, Choice* choice) {
  choice->states = roster;
  choice->views.resize(roster.size());
  const auto most_cached = static_cast<int32_t>(request.length() / kHashUnitTokens);
  directory.Match(request.unit_hashes, &units_held);
  PrefixPromises::Strides(request.unit_hashes, &strides_asked);
  promised.Match(strides_asked, &strides_promised);
  host_directory.Match(request.unit_hashes, &units_in_host);
  disk_directory.Match(request.unit_hashes, &units_on_disk);
  const bool tiers = host_directory.units() > 0 || disk_directory.units() > 0 ||
                     roster.size() > PrefixDirectory::kMaxSlots;
  const auto tokens_of = [&](const std::optional<uint16_t>& place, const PrefixView& prefix,
                             const std::vector<int32_t>& held) {
    const int32_t units = place ? held[*place] : prefix.MatchUnits(request.unit_hashes);
    return std::min(units, most_cached) * kHashUnitTokens;
  };
  const Instant now = clock->Now();
  for (size_t i = 0; i < roster.size(); ++i) {
    const WorkerState& worker = *roster[i];
    WorkerView& view = choice->views[i];
    worker.SetView(now, pool, yields, &view);
    const Places& place = places[i];
    view.cached_tokens = tokens_of(place.held, worker.prefix, units_held);
    view.host_tokens = tiers ? tokens_of(place.in_host, worker.host_prefix, units_in_host) : 0;
    view.disk_tokens = tiers ? tokens_of(place.on_disk, worker.disk_prefix, units_on_disk) : 0;
    const int32_t strides = place.promised ? strides_promised[*place.promised] : 0;
    view.promised_tokens =
        std::min(strides * static_cast<int32_t>(PrefixPromises::kStride), most_cached) *
        kHashUnitTokens;
    if (worker.quiet && !quiet) view.available = false;
    const std::string& adapter = request.spec.adapter;
    if (!adapter.empty() && worker.adapters.count(adapter) == 0) view.available = false;
    if (!view.prefill && !request.failed_on.empty() &&
        request.failed_on.count({worker.info.worker_id(), worker.info.incarnation()}) != 0)
      view.available = false;
    if (!view.prefill && request.length() >= std::max(1u, worker.info.max_sequence_tokens())) {
      view.available = false;
    }
  }
}

// Requests of all routers for each of this one's: other routers' are assumed to be like its own.
double Router::Impl::OfAllRouters(Instant now) const {
  const double own = arrivals.PerSecond(now), others = pool.others.PerSecond(now);
  return own > 0 ? std::min((own + others) / own, kMostRouters) : 1;
}

// Yielding requests are judged by the present load only: they make room for what comes later.
void Router::Impl::SetRates(RequestSummary* summary) {
  const Instant now = clock->Now();
  const auto each = static_cast<double>(std::max<ptrdiff_t>(1, decode_workers));
  const double own = arrivals.PerSecond(now), others = pool.others.PerSecond(now);
  summary->arrivals_per_s =
      (own + others) / static_cast<double>(std::max<size_t>(1, workers.size()));
  const double all = OfAllRouters(now);
  summary->prompt_steps_per_s = all * prompt_steps.PerSecond(now) / each;
  summary->prompt_ms_per_s = all * prompt_ms.PerSecond(now) / each;
  summary->prompt_delay_ms_per_s = all * prompt_delay_ms.PerSecond(now) / each;
  // With prefill workers the load differs between roles; one common factor would move prompts to
  // decode workers and delay their streams. A load that just began may not last.
  if (summary->aggregated) {
    const double lasting = all * prompt_load.Lasting(now) / each;
    summary->prompts_part = 1e-3 * std::min(summary->prompt_ms_per_s, lasting);
  }
}

RequestSummary Router::Impl::Summarize(const Request& request, bool yields) {
  const v1::KvLayoutDesc& kv = PoolFingerprint().kv_layout();
  RequestSummary summary;
  summary.tokens = static_cast<int32_t>(request.length());
  summary.expected_new_tokens =
      std::max(1.0, answer_lengths.Expected(request.spec.max_new_tokens) - request.emitted);
  summary.num_layers = static_cast<int32_t>(kv.num_layers());
  summary.takeover = request.placements > 0;
  summary.first_token_anywhere = request.spec.max_new_tokens > 0 &&
                                 request.spec.pooling == v1::POOL_NONE &&
                                 request.spec.sampling.constraint().kind() == v1::Constraint::NONE;
  summary.preference = Suspect(request) ? PrefillPreference::kLocal : request.spec.prefill;
  summary.others = {ToMs(options.slo_ttft), ToMs(options.slo_tpot)};
  summary.asked = request.spec.objective;
  summary.refusable = yields || summary.asked.any();
  summary.aggregated = std::ssize(roster) == decode_workers;
  summary.objective = ObjectiveOf(summary.asked, summary.others);
  if (yields) {
    summary.others.tpot_ms *= kFilled;
    summary.objective = {0, summary.others.tpot_ms};
  } else {
    SetRates(&summary);
  }
  // Requested prompt outputs need every row computed, whatever is cached. A suspect does not wait
  // for a pull, so that a crash finds it running.
  const bool every_row = request.spec.prompt_logprobs >= 0 ||
                         request.spec.pooling == v1::POOL_MEAN ||
                         request.spec.pooling == v1::POOL_FIRST;
  const bool computes = every_row || Suspect(request);
  if (options.pulls != PrefixPulls::kOff && !computes) summary.pulls = &pull_rates;
  summary.pull_whenever = options.pulls == PrefixPulls::kAlways;
  summary.now = clock->Now();
  summary.ordinal = next_placement++;
  summary.tie_break = random.Next();
  return summary;
}

Hash128 Router::Impl::RootOf(const RouterRequest& spec) {
  std::string digest = PrefixDigest(PoolFingerprint());
  Root& known = roots[(Hash64(spec.cache_scope) ^ Hash64(spec.adapter)) % roots.size()];
  if (known.digest != digest || known.adapter != spec.adapter || known.scope != spec.cache_scope) {
    const Hash128 root = PrefixRoot(digest, "", spec.adapter, spec.cache_scope);
    known = {std::move(digest), spec.adapter, spec.cache_scope, root};
  }
  return known.root;
}

Result<Router::Impl::Choice> Router::Impl::Choose(Request& request, bool quiet) {
  const Hash128 root = RootOf(request.spec);
  request.unit_hashes = request.answer.empty() ? UnitHashes(root, request.spec.tokens.get())
                                               : UnitHashes(root, request.Sequence());
  const bool yields = YieldsAt(request, clock->Now());
  const RequestSummary summary = Summarize(request, yields);
  Choice choice = std::move(spare);
  SetViews(request, yields, false, &choice);
  Result<Placement> placement = policy->Pick(summary, choice.views);
  quiet =
      quiet && std::any_of(roster.begin(), roster.end(), [](const auto* w) { return w->quiet; });
  if (!placement && quiet) {
    SetViews(request, yields, true, &choice);
    placement = policy->Pick(summary, choice.views);
  }
  if (!placement && !request.failed_on.empty() && clock->Now() >= request.not_before) {
    // No other worker: one that failed this request may take it after a pause.
    request.failed_on.clear();
    SetViews(request, yields, quiet, &choice);
    placement = policy->Pick(summary, choice.views);
  }
  if (!placement && !HasReadyWorker(request.spec.adapter)) {
    return Unavailable(
        "no decode worker that is ready has the LoRA adapter of this request; retry later");
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
  const bool yields = YieldsAt(request, clock->Now());
  const Objective asked = request.spec.objective;
  if (WorkerState* const holder = Holder(request); holder != nullptr) {
    if (Dispatch(request, AtHolder(request, *holder))) return {};
  }
  Status sent;
  for (size_t tried = 0; tried < workers.size(); ++tried) {
    Result<Choice> choice = Choose(request);
    if (!choice) return tl::unexpected(sent ? choice.error() : sent.error());
    const Placement& placement = choice->placement;
    if (request.placements == 0 && asked.any() && !placement.keeps_asked) {
      request.retry_after = PredictedWait(request, *choice);
      return tl::unexpected(BeyondObjective(asked, placement));
    }
    if (yields) AISP_RETURN_IF_ERROR(CheckRoom(request, *choice));
    WorkerState& decode = *choice->states[static_cast<size_t>(placement.decode)];
    const std::string worker = decode.info.worker_id();
    const bool displaces = placement.displaces;
    sent = Dispatch(request, *choice);
    spare = std::move(*choice);
    if (sent) {
      // Its observer may have ended the request, and a full link may have dropped its worker.
      if (displaces) TakeBack(worker, asked);
      return sent;
    }
    request.last_error = sent.error();
    if (sent.error().code != Code::kResourceExhausted) return sent;
    // Another worker's link may have room.
    request.failed_on.insert({worker, decode.info.incarnation()});
  }
  return sent ? Status(Unavailable("no decode worker is registered")) : sent;
}

bool Router::Impl::Move(Request& request, std::string_view reason) {
  Result<Choice> choice = Choose(request, /*quiet=*/false);
  if (!choice) return false;
  LogInfo("request moves to another worker", {{"request", request.spec.trace_id},
                                              {"from", request.worker},
                                              {"emitted", request.emitted},
                                              {"reason", reason}});
  metrics.moves.Add();
  // Later messages of the old worker match no request. The new one starts from the delivered
  // tokens.
  SendCancelled(request);
  Detach(request);
  ++request.moves;
  if (Status sent = Dispatch(request, *choice); !sent) {
    const Instant now = clock->Now();
    request.last_error = sent.error();
    request.give_up = now + options.takeover_wait;
    Wait(request, now + options.retry_backoff);
  }
  return true;
}

Status Router::Impl::Offer(Request& request, WorkerState& worker, v1::GenerateRequest generate) {
  v1::RouterMessage message;
  uint64_t prompt_id = 0;
  if (request.spec.shares_tokens) {
    const SharedPromptsOut::Use use = worker.prompts.Take(request.spec.tokens);
    prompt_id = use.id;
    if (use.first) {
      *message.mutable_shared_prompt() = SharedPromptsOut::MakeMessage(use.id, request.spec.tokens);
      if (Status sent = sender->Offer(worker.link, std::move(message)); !sent) {
        worker.prompts.Release(use.id);
        return sent;
      }
      message.Clear();
    }
    generate.set_prompt_id(prompt_id);
  }
  *message.mutable_generate() = std::move(generate);
  Status sent = sender->Offer(worker.link, std::move(message));
  if (sent) {
    request.prompt_id = prompt_id;
  } else {
    ReleasePrompt(worker, prompt_id);
  }
  return sent;
}

void Router::Impl::ReleasePrompt(WorkerState& worker, uint64_t prompt_id) {
  if (!worker.prompts.Release(prompt_id)) return;
  v1::RouterMessage message;
  message.mutable_drop_prompt()->set_prompt_id(prompt_id);
  sender->Send(worker.link, std::move(message));
}

void Router::Impl::EnterPlaced(Request& request, WorkerState& decode) {
  request.worker = decode.info.worker_id();
  request.preemptions_before = request.preemptions;
  request.drafts_before = request.drafts;
  ++request.placements;
  by_wire[request.wire_id] = request.id;
  RemoveFromQueue(request);
  FairShare::Charge(request.account, static_cast<int64_t>(request.length()));
  if (Yields(request.spec.tenant.service_class) && !YieldsAt(request, request.dispatched))
    aged.insert(request.id);
  decode.attempts.insert(request.wire_id);
  decode.ages.Add(request.dispatched);
  ++decode.requests_sent;
  request_timers.Set(request.id.value, request.deadline + options.deadline_grace);
}

RouteDecision Router::Impl::RouteOf(const Request& request, const Choice& choice) const {
  const Placement& placement = choice.placement;
  RouteDecision route;
  route.decode_worker = request.worker;
  route.reason = placement.reason;
  route.predicted_ttft_ms = placement.ttft_ms;
  route.predicted_tpot_ms = request.placed.tpot_ms;
  route.cached_tokens_decode =
      static_cast<uint32_t>(choice.views[static_cast<size_t>(placement.decode)].cached_tokens);
  route.pull_worker = request.pulls_from;
  route.pull_tokens = static_cast<uint32_t>(placement.pull.tokens);
  if (placement.prefill >= 0) {
    const WorkerView& on_prefill = choice.views[static_cast<size_t>(placement.prefill)];
    route.prefill_worker = on_prefill.worker_id;
    route.cached_tokens_prefill = static_cast<uint32_t>(on_prefill.cached_tokens);
  }
  return route;
}

void Router::Impl::ChargeWorkers(Request& request, const Choice& choice) {
  const Placement& placement = choice.placement;
  const Instant now = request.dispatched;
  const bool remote = placement.prefill >= 0;
  const auto at = static_cast<size_t>(remote ? placement.prefill : placement.decode);
  if (placement.pull.holder >= 0) {
    pull_rates.Started(choice.views[static_cast<size_t>(placement.pull.holder)], choice.views[at],
                       now);
  }
  WorkerState& computes = *choice.states[at];
  WorkerState& decode = *choice.states[static_cast<size_t>(placement.decode)];
  // The puller will have it.
  const WorkerView view = WithPrefix(choice.views[at], placement.pull.tokens);
  const auto tokens = static_cast<int64_t>(request.length());
  // The last token is always computed.
  const int64_t known = std::min<int64_t>(KnownTokens(view), tokens - 1);
  const bool yields = YieldsAt(request, now);
  if (remote) {
    computes.Charge(now, PromptWork::Of(known, tokens - 1 - known), 0, 0, yields);
    decode.Charge(now, {}, tokens, 1, yields);
  } else {
    const PromptWork work = PromptWork::Of(known, tokens - known);
    decode.Charge(now, work, tokens, 1, yields);
    const double ms = PromptMs(view, work);
    prompt_steps.Add(now,
                     std::ceil(static_cast<double>(work.tokens) / std::max(1, view.chunk_tokens)));
    prompt_ms.Add(now, ms);
    prompt_load.Add(now, ms);
    prompt_delay_ms.Add(now, AddedMs(view, work, ms));
  }
  Promise(request, computes);
}

void Router::Impl::CountPlaced(const Request& request, const Choice& choice) {
  const Placement& placement = choice.placement;
  metrics.CountRoute(placement.reason);
  if (options.pulls != PrefixPulls::kOff) metrics.CountPull(placement.pull.verdict);
  if (placement.reason == route_reason::kRepeat) return;
  const bool remote = placement.prefill >= 0;
  const auto tokens = static_cast<int64_t>(request.length());
  const WorkerView& decode = choice.views[static_cast<size_t>(placement.decode)];
  int64_t cached = WithPrefix(decode, remote ? 0 : placement.pull.tokens).cached_tokens;
  if (remote) {
    const WorkerView& prefill = choice.views[static_cast<size_t>(placement.prefill)];
    cached = std::max<int64_t>(cached, prefill.cached_tokens);
  }
  cached = std::min(cached, tokens - 1);
  metrics.CountPrefix(tokens, cached);
  if (request.placements != 1) return;
  if (!YieldsAt(request, request.dispatched)) arrivals.Add(request.dispatched);
  totals.placed_tokens += static_cast<uint64_t>(tokens);
  totals.uncached_tokens += static_cast<uint64_t>(tokens - cached);
}

Status Router::Impl::Dispatch(Request& request, const Choice& choice) {
  const Placement& placement = choice.placement;
  WorkerState& decode = *choice.states[static_cast<size_t>(placement.decode)];
  request.dispatched = clock->Now();
  request.wire_id = next_wire;
  if (Status sent = Offer(request, decode, GenerateFor(request, choice)); !sent) {
    request.wire_id = 0;
    return sent;
  }
  ++next_wire;
  EnterPlaced(request, decode);
  request.placed = placement;
  // Placements are compared by means; the caller gets the median.
  if (placement.step_ms > 0) PredictTpot(request, choice);
  ChargeWorkers(request, choice);
  if (!request.spec.answer_key.empty()) keyed.try_emplace(AnswerName(request.spec), request.id);
  CountPlaced(request, choice);
  const RouteDecision route = RouteOf(request, choice);
  RequestObserver* observer = request.observer;
  LogInfo("request placed", {{"request", request.spec.trace_id},
                             {"choice", request.spec.choice},
                             {"decode", route.decode_worker},
                             {"prefill", route.prefill_worker},
                             {"pull", route.pull_worker},
                             {"reason", route.reason},
                             {"tokens", static_cast<int64_t>(request.length())}});
  observer->OnRouted(route);
  return {};
}

void Router::Impl::Promise(Request& request, WorkerState& worker) {
  request.computed_by = {worker.info.worker_id(), worker.info.incarnation()};
  ++worker.queued_prompts;
  worker.promises.Add(request.unit_hashes);
}

void Router::Impl::EndPromise(Request& request) {
  if (!request.computed_by) return;
  WorkerState* worker = WorkerNamed(request.computed_by->first);
  if (worker != nullptr && worker->info.incarnation() == request.computed_by->second) {
    --worker->queued_prompts;
    worker->promises.Remove(request.unit_hashes);
  }
  request.computed_by.reset();
}

}  // namespace aisp
