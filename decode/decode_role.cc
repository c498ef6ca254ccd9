#include "decode/decode_role.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/check.h"
#include "common/log.h"
#include "decode/codec.h"
#include "decode/decode_role_impl.h"
#include "decode/first_token.h"
#include "decode/ttft.h"
#include "proto/wire_time.h"
#include "worker/sampling_codec.h"

namespace aisp {

namespace {

// Whether it needs outputs of prompt rows; a prefill worker delivers KV only.
bool WantsEveryRow(const v1::GenerateRequest& wire) {
  return wire.has_prompt_logprobs() || wire.pooling() == v1::POOL_MEAN ||
         wire.pooling() == v1::POOL_FIRST;
}

}  // namespace

// --- requests ---

DecodeRequest* DecodeRole::Impl::Find(LinkId router, uint64_t request_id) {
  const auto it = by_router_id.find({router, request_id});
  return it == by_router_id.end() ? nullptr : &requests.at(it->second);
}

void DecodeRole::Impl::Refuse(LinkId link, const v1::GenerateRequest& wire, const Error& error,
                              bool handed_back) {
  LogInfo("request refused",
          {{"request", wire.trace_id()}, {"choice", wire.choice()}, {"error", error.message}});
  v1::WorkerMessage message;
  v1::TokenEvent* event = message.mutable_tokens()->add_events();
  event->set_request_id(wire.request_id());
  event->set_finish(v1::FINISH_ERROR);
  event->set_handed_back(handed_back);
  ErrorToWire(error, FaultOf(error.code), event->mutable_error());
  shell->Send(link, std::move(message));
}

std::vector<std::string> DecodeRole::Impl::TargetsOf(const v1::GenerateRequest& wire,
                                                     std::span<const TokenId> tokens) const {
  std::vector<std::string> targets;
  if (deps.transports.empty() || !wire.has_prefill() || WantsEveryRow(wire)) return targets;
  const Engine& engine = *deps.engine;
  const auto wanted = static_cast<int32_t>(tokens.size()) - 1;
  const int32_t match = engine.blocks().MatchLength(
      engine.RootOf(wire.cache_salt(), wire.adapter()), tokens, std::max(0, wanted));
  const int32_t worthwhile = options.min_remote_tokens > 0 ? options.min_remote_tokens
                                                           : engine.blocks().layout().block_tokens;
  if (wanted - match < worthwhile) return targets;
  targets.push_back(wire.prefill().kv_address());
  for (const v1::PrefillTarget& target : wire.prefill_fallbacks())
    targets.push_back(target.kv_address());
  std::erase(targets, std::string());
  return targets;
}

void DecodeRole::Impl::OnGenerate(LinkId link, v1::GenerateRequest wire) {
  if (Find(link, wire.request_id()) != nullptr || unguided.contains({link, wire.request_id()})) {
    LogError("a router used a request id twice",
             {{"request_id", wire.request_id()}, {"request", wire.trace_id()}});
    return;
  }
  if (SayAgain(link, &wire)) return;
  if (shell->draining()) {
    // Sent before the router knew of the drain.
    Refuse(link, wire, Error{Code::kUnavailable, "this decode worker is draining; use another"},
           /*handed_back=*/true);
    return;
  }
  if (wire.sampling().constraint().kind() != v1::Constraint::NONE) return AwaitGuide(link, wire);
  Begin(link, wire, deps.clock->Now(), nullptr);
}

Result<SharedTokens> DecodeRole::Impl::SharedPromptOf(LinkId link,
                                                      const v1::GenerateRequest& wire) {
  if (wire.prompt_id() == 0) return SharedTokens();
  const auto known = prompts[link].Find(wire.prompt_id());
  if (known) return *known;
  return tl::unexpected(Error{Code::kUnavailable,
                              fmt::format("shared prompt {} is not known here", wire.prompt_id())});
}

Instant DecodeRole::Impl::DeadlineOf(const v1::GenerateRequest& wire, Instant received) const {
  const Duration timeout = MillisFromWire(wire.timeout_ms());
  return received + (timeout.count() > 0 ? timeout : options.default_timeout);
}

// The request before the engine knows it: its deadline, and who prefills it.
DecodeRequest DecodeRole::Impl::RequestOf(const v1::GenerateRequest& wire,
                                          const SequenceRequest& sequence,
                                          const SharedTokens& shared, Instant received) {
  DecodeRequest request;
  request.trace_id = wire.trace_id();
  request.received = received;
  request.deadline = DeadlineOf(wire, received);
  request.targets = TargetsOf(wire, sequence.tokens);
  if (wire.has_prefill() && request.targets.empty())
    request.fallback = WantsEveryRow(wire)
                           ? "outputs of every position of the prompt are wanted"
                           : "the decode worker's own cache holds the prompt, or it has no KV "
                             "transport";
  if (!request.targets.empty()) {
    request.shares_prompt = wire.prompt_id() != 0;
    request.prompt = request.shares_prompt ? shared : SharedTokens(sequence.tokens);
    if (request.shares_prompt) request.rest.assign(wire.tokens().begin(), wire.tokens().end());
  }
  PlacePull(wire, sequence.tokens, &request);
  return request;
}

void DecodeRole::Impl::Begin(LinkId link, const v1::GenerateRequest& wire, Instant received,
                             std::shared_ptr<DrawGuide> guide) {
  const Result<SharedTokens> shared = SharedPromptOf(link, wire);
  if (!shared) return Refuse(link, wire, shared.error(), /*handed_back=*/false);
  SequenceRequest sequence = SequenceFromWire(wire, *shared);
  DecodeRequest request = RequestOf(wire, sequence, *shared, received);
  sequence.deadline = request.deadline;
  sequence.guide = std::move(guide);
  if (!request.targets.empty() && MayBeDrawnElsewhere(sequence))
    request.draw = FirstDrawToWire(sequence, wire.sampling());
  sequence.kv_source =
      request.targets.empty() && request.pull == 0 ? KvSource::kLocal : KvSource::kRemote;
  Result<SequenceId> added = deps.engine->Add(std::move(sequence));
  if (!added) {
    puller->Abandon(request.pull);
    Refuse(link, wire, added.error(), /*handed_back=*/false);
    return;
  }
  const size_t tokens = shared->size() + static_cast<size_t>(wire.tokens_size());
  LogDebug("request accepted", {{"request", wire.trace_id()},
                                {"choice", wire.choice()},
                                {"tokens", tokens},
                                {"prompt_tokens", wire.prompt_tokens()},
                                {"prefill_targets", request.targets.size()}});
  request.sequence = *added;
  request.key = RequestKey(++last_request);
  by_sequence[*added] = request.key;
  AddReader(request, {link, wire.request_id()});
  Keep(wire, &request);
  shell->NoteLoad(/*request=*/true);
  AwaitKv(wire, requests.emplace(request.key, std::move(request)).first->second);
}

// Requests the KV of its prompt, or of its prefix.
void DecodeRole::Impl::AwaitKv(const v1::GenerateRequest& wire, DecodeRequest& request) {
  // A sequence that is already complete needs no KV.
  const bool local = request.targets.empty() && request.pull == 0;
  if (local || !deps.engine->Alive(request.sequence)) return;
  request.prefill.set_trace_id(wire.trace_id());
  request.prefill.set_cache_salt(wire.cache_salt());
  request.prefill.set_adapter(wire.adapter());
  request.prefill.set_priority(wire.priority());
  *request.prefill.mutable_tenant() = wire.tenant();
  if (request.pull == 0) return StartRemote(request);
  request.phase = RequestPhase::kPulling;
}

void DecodeRole::Impl::OnCancel(LinkId link, uint64_t request_id) {
  unguided.erase({link, request_id});
  DropReader({link, request_id});
}

void DecodeRole::Impl::Cancel(DecodeRequest& request) {
  LogInfo("request cancelled",
          {{"request", request.trace_id}, {"ms", ToMs(deps.clock->Now() - request.received)}});
  deps.engine->Cancel(request.sequence);
  EndAttempt(request);
  Erase(request);
}

void DecodeRole::Impl::Erase(DecodeRequest& request) {
  puller->Abandon(std::exchange(request.pull, 0));
  by_sequence.erase(request.sequence);
  for (const RouterRequestId& reader : request.readers) by_router_id.erase(reader);
  if (request.kept) answers.Stop(*request.kept, request.key, deps.clock->Now());
  requests.erase(RequestKey(request.key));
}

void DecodeRole::Impl::KeepPrompt(LinkId link, const v1::SharedPrompt& prompt) {
  if (Status kept = prompts[link].Keep(prompt); !kept)
    LogError("a shared prompt is not kept", {{"error", kept.error().message}});
}

void DecodeRole::Impl::DropRouter(LinkId link) {
  prompts.erase(link);
  std::erase_if(unguided, [link](const auto& each) { return each.first.first == link; });
  std::vector<RouterRequestId> gone;
  for (const auto& [id, key] : by_router_id) {
    if (id.first == link) gone.push_back(id);
  }
  for (const RouterRequestId& reader : gone) DropReader(reader);
}

// --- timers ---

Instant DecodeRole::Impl::NextTimer() const {
  Instant next = std::min(
      {shell->NextTimer(), peers->NextTimer(), puller->NextTimer(), next_fence_poll, move_at});
  // During a step, Collect checks deadlines.
  if (!deps.engine->InFlight()) next = std::min(next, deps.engine->NextDeadline());
  next = std::min(next, answers.NextExpiry());
  for (const auto& [id, waits] : unguided) next = std::min(next, waits.deadline);
  for (const auto& [transfer, key] : by_transfer) {
    const DecodeRequest& request = requests.at(key);
    if (request.phase == RequestPhase::kRequested) next = std::min(next, request.silent_at);
    if (request.phase == RequestPhase::kGranted) next = std::min(next, request.lease_end);
  }
  return next;
}

void DecodeRole::Impl::OnTimer(Instant now) {
  shell->OnTimer(now);
  peers->OnTimer(now);
  puller->OnTimer(now);
  answers.Expire(now);
  ReportKept();
  deps.engine->Expire(now);
  ExpireUnguided(now);
  std::vector<RequestKey> late;
  for (const auto& [key, request] : requests) {
    const bool silent = request.phase == RequestPhase::kRequested && now >= request.silent_at;
    const bool expired = request.phase == RequestPhase::kGranted && now >= request.lease_end;
    if (silent || expired) late.push_back(key);
  }
  for (const RequestKey key : late) {
    DecodeRequest& request = requests.at(key);
    if (request.phase == RequestPhase::kGranted) {
      FailRemote(request, "the lease ended before the KV was complete");
    } else {
      FailUnasked(request);
    }
  }
  PollFences(now);
  if (now >= move_at) {
    move_at = kNever;
    if (!requests.empty()) {
      LogInfo("running streams shall go to other workers", {{"requests", requests.size()}});
      ReportDraining(/*move=*/true);
    }
  }
  NoteDrained();
}

// --- the role ---

namespace {

v1::KvHello MakeHello(const DecodeOptions& options, const std::vector<KvTransport*>& transports) {
  v1::KvHello hello;
  hello.set_worker_id(options.worker.worker_id);
  hello.set_incarnation(options.worker.incarnation);
  *hello.mutable_fingerprint() = options.worker.fingerprint;
  hello.set_host_id(options.worker.host_id);
  for (KvTransport* transport : transports) {
    const std::string& name = transport->capabilities().name;
    Result<std::string> endpoint = transport->Descriptor();
    if (!endpoint) {
      LogError("KV transport not offered",
               {{"transport", name}, {"error", endpoint.error().message}});
      continue;
    }
    v1::TransportOffer* offer = hello.add_offers();
    offer->set_name(name);
    offer->set_endpoint(*endpoint);
  }
  return hello;
}

}  // namespace

DecodeRole::DecodeRole(const DecodeOptions& options) : impl_(std::make_unique<Impl>(options)) {}
DecodeRole::~DecodeRole() = default;

LinkHandler<v1::PrefillToDecode>* DecodeRole::peer_links() { return impl_.get(); }
PrefixFetcher* DecodeRole::fetcher() { return impl_.get(); }

void DecodeRole::Wire(const DecodeDeps& deps) {
  AISP_CHECK(deps.engine != nullptr && deps.clock != nullptr && deps.routers != nullptr &&
             deps.peers != nullptr && deps.death != nullptr);
  Impl& impl = *impl_;
  const WorkerOptions& worker = impl.options.worker;
  impl.deps = deps;
  WorkerShell::Profile profile;
  profile.role = v1::ROLE_DECODE;
  for (const KvTransport* transport : deps.transports)
    profile.transports.push_back(transport->capabilities().name);
  profile.max_sequence_tokens = impl.options.max_sequence_tokens;
  profile.max_running = impl.options.max_running;
  profile.queued_prompts = [&impl] { return impl.QueuedPrompts(); };
  impl.shell.emplace(worker, profile, deps.engine, deps.clock, deps.routers, deps.metrics);
  PrefillPeers::Options peers;
  peers.hello = MakeHello(impl.options, deps.transports);
  // The pool's size may have been chosen long after the fingerprint was made.
  peers.hello.mutable_fingerprint()->mutable_kv_layout()->set_num_blocks(
      static_cast<uint32_t>(deps.engine->blocks().layout().num_blocks));
  peers.hello.set_verify(deps.host_pool != nullptr);
  peers.seed = worker.incarnation;
  peers.attach_limit = impl.options.peer_attach_limit;
  peers.reconnect_min = worker.reconnect_min;
  peers.reconnect_max = worker.reconnect_max;
  peers.transports = deps.transports;
  impl.peers.emplace(std::move(peers), deps.clock, deps.peers, deps.death, impl_.get());
  impl.puller.emplace(impl.options.pulls,
                      PrefixPuller::Deps{deps.engine, deps.clock, &*impl.peers, &impl.leases,
                                         deps.host_pool, impl_.get()});
}

void DecodeRole::Start() { Activate(1); }
void DecodeRole::Activate(uint64_t role_epoch) {
  // A process that never takes this role shows none of its metrics.
  if (impl_->deps.metrics != nullptr && !std::exchange(impl_->metrics_added, true))
    impl_->AddMetrics(*impl_->deps.metrics);
  impl_->told_drained = impl_->stop_wanted = false;
  impl_->move_at = kNever;
  impl_->shell->Activate(role_epoch);
}
void DecodeRole::StandBy() {
  impl_->answers.Clear();
  impl_->shell->StandBy();
}
void DecodeRole::CallOffDrain() {
  impl_->told_drained = false;
  impl_->move_at = kNever;
  impl_->shell->CallOffDrain();
}
void DecodeRole::SetRouters(const std::vector<std::string>& addresses) {
  impl_->shell->SetRouters(addresses);
}
bool DecodeRole::CanLaunch() const { return impl_->deps.engine->CanLaunch(); }

void DecodeRole::Launch() {
  // A device error: the engine ends all requests with it, and the next Collect returns the outputs.
  if (Status launched = impl_->deps.engine->Launch(); !launched) {
    LogError("step failed", {{"error", launched.error().message}});
  }
  impl_->shell->PublishKvEvents();
}

bool DecodeRole::InFlight() const { return impl_->deps.engine->InFlight(); }
bool DecodeRole::StepDone() { return impl_->deps.engine->StepDone(); }
void DecodeRole::Collect() { impl_->Collect(); }

void DecodeRole::OnTransport() {
  // The owner has no completions to take; transports without their own thread make progress here.
  for (KvTransport* transport : impl_->deps.transports) transport->Progress();
  impl_->deps.engine->PollTiers();
  impl_->TakeNotes();
}

bool DecodeRole::ExpectsSoon() const { return impl_->leases.AwaitsNotes(); }
bool DecodeRole::HasNotes() const { return impl_->HasNotes(); }

Instant DecodeRole::NextTimer() const { return impl_->NextTimer(); }

void DecodeRole::OnTimer(Instant now) {
  impl_->OnTimer(now);
  impl_->shell->SetTransferRate(impl_->peers->MeasuredBytesPerSecond());
}

void DecodeRole::BeginDrain() {
  if (!impl_->shell->BeginDrain()) return;
  impl_->move_at = impl_->deps.clock->Now() + impl_->options.worker.drain_timeout;
  impl_->ReportDraining(/*move=*/false);
  impl_->NoteDrained();
}
void DecodeRole::MoveStreams() {
  BeginDrain();
  impl_->move_at = kNever;
  impl_->ReportDraining(/*move=*/true);
}
bool DecodeRole::Drained() const { return impl_->Drained(); }
void DecodeRole::CloseLinks() { impl_->shell->CloseLinks(); }
bool DecodeRole::StopWanted() const {
  return !impl_->shell->Ousted() || (impl_->stop_wanted && impl_->Drained());
}
Status DecodeRole::Ready() const { return impl_->shell->Ready(); }
const Engine& DecodeRole::engine() const { return *impl_->deps.engine; }
size_t DecodeRole::num_requests() const { return impl_->requests.size(); }
size_t DecodeRole::num_leases() const { return impl_->leases.size(); }

void DecodeRole::OnLinkUp(LinkId link, const std::string& /*peer_address*/) {
  impl_->shell->OnLinkUp(link);
}

void DecodeRole::OnMessage(LinkId link, v1::RouterMessage message) {
  Impl& impl = *impl_;
  const bool attached = impl.shell->Attached(link);
  if (impl.shell->OnMessage(link, message)) {
    // A router that refuses us after all accepts no more tokens.
    if (attached && !impl.shell->Attached(link)) impl.DropRouter(link);
    if (!attached && impl.shell->Attached(link)) impl.ReportAllKept(link);
    return impl.NoteDrained();
  }
  if (!attached) return;
  switch (message.body_case()) {
    case v1::RouterMessage::kGenerate:
      impl.OnGenerate(link, std::move(*message.mutable_generate()));
      break;
    case v1::RouterMessage::kSharedPrompt:
      impl.KeepPrompt(link, message.shared_prompt());
      break;
    case v1::RouterMessage::kDropPrompt:
      impl.prompts[link].Drop(message.drop_prompt().prompt_id());
      break;
    case v1::RouterMessage::kCancel:
      impl.OnCancel(link, message.cancel().request_id());
      impl.NoteDrained();
      break;
    case v1::RouterMessage::kDrain:
      impl.stop_wanted = impl.stop_wanted || message.drain().stop();
      if (message.drain().move()) {
        MoveStreams();
      } else {
        BeginDrain();
      }
      break;
    default:
      break;  // a newer router's message; unknown ones are ignored
  }
}

void DecodeRole::OnLinkDown(LinkId link, const Error& why) {
  if (impl_->shell->OnLinkDown(link, why)) impl_->DropRouter(link);
  impl_->NoteDrained();
}

}  // namespace aisp
