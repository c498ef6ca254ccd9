#include "frontend/generation_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "common/hash.h"

namespace aisp {
namespace {

constexpr Duration kBusyRetry = std::chrono::seconds(1);
// Inputs of one request that are embedded concurrently.
constexpr size_t kMostEmbeddedAtOnce = 64;

ApiError BusyError() {
  return ApiError(Code::kResourceExhausted,
                  "too many requests are being tokenized; try again shortly");
}

// Every router derives the same seed, so that a retry with the same idempotency key draws the same
// tokens anywhere. Never 0, which means no seed.
uint64_t SeedOfKey(std::string_view tenant, std::string_view key) {
  return HashBytes(fmt::format("{} {} {}", tenant.size(), tenant, key)).lo | 1;
}

double NsToMs(int64_t ns) { return static_cast<double>(ns) * 1e-6; }

}  // namespace

std::string RouteText(const RouteDecision& route, Duration waited) {
  const double ttft_ms = route.predicted_ttft_ms > 0 ? ToMs(waited) + route.predicted_ttft_ms : 0;
  std::string text = fmt::format(
      "decode={} prefill={} reason={} predicted-ttft-ms={:.1f} predicted-tpot-ms={:.2f} "
      "cached-tokens={}",
      route.decode_worker, route.prefill_worker.empty() ? "local" : route.prefill_worker,
      route.reason, ttft_ms, route.predicted_tpot_ms, route.cached_tokens_decode);
  if (!route.pull_worker.empty())
    text += fmt::format(" pull={}:{}", route.pull_worker, route.pull_tokens);
  return text;
}

PrefillPreference PrefillPreferenceOf(std::string_view header) {
  if (header == "remote") return PrefillPreference::kRemote;
  if (header == "local") return PrefillPreference::kLocal;
  return PrefillPreference::kAuto;
}

ApiResult<Objective> ObjectiveOf(const std::function<std::string_view(std::string_view)>& header) {
  const auto target = [&](std::string_view name,
                          std::string_view name_in_llm_d) -> ApiResult<double> {
    AISP_ASSIGN_OR_RETURN(const double own, ParseTargetHeader(name, header(name)));
    AISP_ASSIGN_OR_RETURN(const double other,
                          ParseTargetHeader(name_in_llm_d, header(name_in_llm_d)));
    return own > 0 && other > 0 ? std::min(own, other) : std::max(own, other);
  };
  Objective out;
  AISP_ASSIGN_OR_RETURN(out.ttft_ms, target("x-slo-ttft-ms", "x-llm-d-slo-ttft-ms"));
  AISP_ASSIGN_OR_RETURN(out.tpot_ms, target("x-slo-tpot-ms", "x-llm-d-slo-tpot-ms"));
  return out;
}

std::shared_ptr<GenerationJob> GenerationJob::Start(FrontendContext* context, Request request,
                                                    std::unique_ptr<AnswerSink> sink) {
  std::shared_ptr<GenerationJob> job(
      new GenerationJob(context, std::move(request), std::move(sink)));
  job->self_ = job;
  job->Begin();
  return job;
}

GenerationJob::GenerationJob(FrontendContext* context, Request request,
                             std::unique_ptr<AnswerSink> sink)
    : context_(context),
      request_(std::move(request)),
      sink_(std::move(sink)),
      trace_(context->traces, context->clock, request_.caller, request_.trace),
      turn_(context->clock,
            request_.caller.received +
                (request_.timeout > Duration{} ? request_.timeout : context->default_timeout)) {}

void GenerationJob::Begin() {
  context_->stats->Started();
  sink_->OnTraced(trace_.Traceparent());
  trace_.Preparing();
  auto slot = context_->tenants->Enter(request_.caller.tenant, context_->clock->Now());
  if (!slot) return Reject(Rejection::kKeyLimit, slot.error().error, slot.error().retry_after);
  slot_ = std::move(*slot);
  const TenantShare share = context_->tenants->ShareOf(request_.caller.tenant, 0);
  const bool taken = context_->pool->TrySubmit(
      request_.bytes,
      [job = shared_from_this(), share]() mutable {
        auto prepared = job->PrepareInTime();
        Compile(std::move(job), std::move(prepared), share);
      },
      share);
  if (!taken) Reject(Rejection::kTokenizerQueue, BusyError(), kBusyRetry);
}

ApiResult<PreparedRequest> GenerationJob::PrepareInTime() const {
  AISP_RETURN_IF_ERROR(turn_.Check());
  return request_.prepare();
}

void GenerationJob::Compile(std::shared_ptr<GenerationJob> job, ApiResult<PreparedRequest> prepared,
                            const TenantShare& share) {
  const TextModel& model = *job->context_->model;
  if (!prepared || prepared->compiled.empty()) {
    return TellPrepared(std::move(job), std::move(prepared));
  }
  if (!TakesLong(model, *prepared)) {
    if (const auto ok = CheckConstraints(model, *prepared, share.name); !ok)
      prepared = tl::unexpected(ok.error());
    return TellPrepared(std::move(job), std::move(prepared));
  }
  const auto held = std::make_shared<ApiResult<PreparedRequest>>(std::move(prepared));
  auto compile = [job, held, &model, tenant = share.name]() mutable {
    ApiResult<void> ok = job->turn_.Check();
    if (ok) ok = CheckConstraints(model, **held, tenant);
    if (!ok) *held = tl::unexpected(ok.error());
    TellPrepared(std::move(job), std::move(*held));
  };
  if (!job->context_->pool->TrySubmitLong(std::move(compile), share))
    return TellPrepared(std::move(job), tl::unexpected(BusyError()));
  EventLoop* const loop = job->context_->loop;
  loop->Post([job = std::move(job)] {});
}

void GenerationJob::TellPrepared(std::shared_ptr<GenerationJob> job,
                                 ApiResult<PreparedRequest> prepared) {
  // The loop's thread must release the last reference to the job.
  EventLoop* const loop = job->context_->loop;
  const auto held = std::make_shared<ApiResult<PreparedRequest>>(std::move(prepared));
  loop->Post([job = std::move(job), held] { job->OnPrepared(std::move(*held)); });
}

void GenerationJob::OnPrepared(ApiResult<PreparedRequest> prepared) {
  if (closed_) return;
  if (!prepared) {
    const Code code = prepared.error().code;
    if (code == Code::kResourceExhausted)
      return Reject(Rejection::kTokenizerQueue, prepared.error(), kBusyRetry);
    const bool late = code == Code::kDeadlineExceeded;
    return Reject(late ? Rejection::kDeadline : Rejection::kBadRequest, prepared.error());
  }
  prepared_ = std::move(*prepared);
  trace_.Prepared(MakeUsage(), prepared_.choices());
  if (const auto ok = CheckClass(); !ok) return Reject(Rejection::kBadRequest, ok.error());
  const auto room =
      context_->tenants->Widen(request_.caller.tenant, &slot_, static_cast<int64_t>(MostAtOnce()));
  if (!room) return Reject(Rejection::kKeyLimit, room.error().error, room.error().retry_after);
  SubmitAll();
}

Duration GenerationJob::TimeLeft() const {
  Duration limit = prepared_.options.timeout;
  if (request_.timeout > Duration{}) {
    limit = limit > Duration{} ? std::min(limit, request_.timeout) : request_.timeout;
  }
  if (limit <= Duration{}) limit = context_->default_timeout;
  return std::max(Duration{}, request_.caller.received + limit - context_->clock->Now());
}

// Clients: lower priority first; internally: larger first.
int32_t GenerationJob::Priority() const {
  return -std::max(prepared_.options.priority, -INT32_MAX);
}

TenantShare GenerationJob::ShareOfTenant() const {
  const auto asked =
      request_.service_class ? request_.service_class : prepared_.options.service_class;
  return context_->tenants->ShareOf(request_.caller.tenant, Priority(), asked);
}

ApiResult<void> GenerationJob::CheckClass() const {
  const ServiceClass service_class = ShareOfTenant().service_class;
  if (!request_.objective.any() || !Yields(service_class)) return {};
  return tl::unexpected(ApiError(
      Code::kInvalidArgument,
      fmt::format("x-slo-ttft-ms and x-slo-tpot-ms are kept for requests of class interactive, and "
                  "this one is of class {}, which waits for room; leave them out or ask for "
                  "x-aisp-class: interactive",
                  ServiceClassName(service_class)),
      "x-aisp-class"));
}

RouterRequest GenerationJob::MakeRequest(uint32_t choice) const {
  const GenerationOptions& o = prepared_.options;
  RouterRequest r;
  r.trace_id = request_.caller.request_id;
  r.tokens = prepared_.PromptOf(choice);
  r.shares_tokens = o.n > 1;
  r.sampling = o.sampling;
  if (r.sampling.seed() == 0 && !request_.idempotency_key.empty())
    r.sampling.set_seed(SeedOfKey(request_.caller.tenant, request_.idempotency_key));
  r.choice = choice % o.n;
  r.answer_key = request_.idempotency_key;
  r.answer_index = choice;
  r.content = request_.content;
  const auto room =
      static_cast<uint32_t>(context_->model->max_model_len - static_cast<int64_t>(r.tokens.size()));
  r.max_new_tokens =
      o.max_tokens
          ? *o.max_tokens
          : std::max(o.min_tokens, context_->model->DefaultMaxTokens(prepared_.endpoint, room));
  r.min_new_tokens = o.min_tokens;
  r.stop_token_ids = o.stop_token_ids;
  if (!o.ignore_eos) {
    r.stop_token_ids.insert(r.stop_token_ids.end(), context_->model->eos.begin(),
                            context_->model->eos.end());
  }
  r.priority = Priority();
  r.tenant = ShareOfTenant();
  r.cache_scope = CacheScope(request_.caller.tenant, o.cache_salt);
  r.adapter = prepared_.adapter;
  r.pooling = prepared_.pooling;
  r.prompt_logprobs = prepared_.ScoresPrompt(choice) ? prepared_.prompt_logprobs : -1;
  // A prefill worker delivers KV only, not the outputs of prompt positions.
  r.prefill = prepared_.WantsEveryPosition() ? PrefillPreference::kLocal : request_.prefill;
  if (!Yields(r.tenant.service_class))
    r.objective = context_->tenants->ObjectiveOf(request_.caller.tenant, request_.objective);
  return r;
}

size_t GenerationJob::MostAtOnce() const {
  const size_t all = prepared_.choices();
  return prepared_.pooling == v1::POOL_NONE ? all : std::min(all, kMostEmbeddedAtOnce);
}

void GenerationJob::SubmitMore() {
  while (!closed_ && choices_.size() < prepared_.choices() &&
         choices_.size() - ended_ < MostAtOnce()) {
    SubmitOne(static_cast<uint32_t>(choices_.size()));
  }
}

void GenerationJob::SubmitAll() {
  counted_.assign(prepared_.choices(), 0);
  held_of_.assign(prepared_.choices(), 0);
  if (!prepared_.adapter.empty()) lora_ = context_->loras->Enter(prepared_.model_name);
  sink_->OnPrepared(prepared_);
  context_->metrics.frontend_s.Observe(
      ToSeconds(context_->clock->Now() - request_.caller.received));
  SubmitMore();
}

void GenerationJob::SubmitOne(uint32_t index) {
  const GenerationOptions& o = prepared_.options;
  const bool scores = prepared_.ScoresPrompt(index);
  choices_.push_back(std::make_unique<ChoiceStream>(
      context_->model->tokenizer.get(),
      ChoiceStream::Options{.index = index,
                            .stop = o.stop,
                            .include_stop = o.include_stop_in_output,
                            .skip_special_tokens = o.skip_special_tokens,
                            .num_logprobs = o.sampling.num_logprobs(),
                            .keep_token_ids = o.return_token_ids,
                            .tokens_as_ids = o.tokens_as_ids,
                            .min_tokens = o.min_tokens,
                            .parser = prepared_.Parses() && context_->model->tokenizer
                                          ? MakeAnswerParser(prepared_.parse)
                                          : nullptr,
                            .shown = context_->model->markers,
                            .prompt = scores ? prepared_.PromptOf(index) : SharedTokens(),
                            .prompt_logprobs = scores ? prepared_.prompt_logprobs : -1,
                            .pooled = prepared_.pooling != v1::POOL_NONE},
      this));
  RouterRequest request = MakeRequest(index);
  request.timeout = TimeLeft();
  if (request.timeout == Duration{}) {
    choices_.pop_back();
    return Reject(
        Rejection::kDeadline,
        ApiError(Code::kDeadlineExceeded,
                 "the request's time was over before it could be placed; allow more time"));
  }
  Duration retry_after{};
  trace_.Submitting(index);
  auto id = context_->router->Submit(std::move(request), choices_.back().get(), &retry_after);
  if (!id) {
    choices_.pop_back();
    return Fail(ApiError(id.error()), retry_after);
  }
  choices_.back()->request = *id;
}

void GenerationJob::Abandon(std::string_view why) {
  if (closed_) return;
  context_->metrics.disconnected.Add();
  Outcome outcome;
  outcome.code = Code::kCancelled;
  outcome.error = fmt::format("the client went away: {}", why);
  Close(std::move(outcome));
}

void GenerationJob::OnChoiceRouted(ChoiceStream& choice, const RouteDecision& route) {
  trace_.Routed(choice.index(), route);
  if (choice.index() != 0 || !route_.empty()) return;
  route_ = RouteText(route, context_->clock->Now() - request_.caller.received);
  sink_->OnRouted(route_);
}

void GenerationJob::OnChoiceStopped(ChoiceStream& choice) {
  context_->router->Complete(choice.request);
  choice.request = {};
}

void GenerationJob::OnChoiceAdvanced(ChoiceStream& choice) {
  if (closed_) return;
  CountTokens(choice);
  if (const auto too_much = HoldAnswer(choice)) return Fail(*too_much, {});
  if (choice.error()) {
    choice.request = {};
    return Fail(*choice.error(), choice.retry_after());
  }
  if (choice.ended()) {
    choice.request = {};
    trace_.ChoiceEnded(choice);
    ++ended_;
  }
  if (choice.HasNews() || choice.ended()) sink_->OnProgress(choice);
  SubmitMore();
  if (closed_ || ended_ < prepared_.choices()) return;
  sink_->OnDone(choices_, MakeUsage());
  Close({});
}

std::optional<ApiError> GenerationJob::HoldAnswer(const ChoiceStream& choice) {
  // Streams and all gRPC answers are sent as they are produced. Only logprobs of the prompt are
  // held, until the first event.
  const bool http = request_.caller.surface == Caller::Surface::kHttp;
  const bool stream = prepared_.options.stream || !http;
  const bool scores = prepared_.prompt_logprobs >= 0;
  const bool gathers = http && prepared_.gathers_answer;
  const bool may_stream = !gathers && !scores && prepared_.pooling == v1::POOL_NONE;
  if (stream && !gathers && !scores) return std::nullopt;
  const size_t copies = http && !stream ? prepared_.PromptCopies() : 1;
  const size_t said = choice.said_bytes() + choice.prompt_bytes() * (copies - 1);
  const size_t more = said - std::exchange(held_of_[choice.index()], said);
  held_ += more;
  context_->answers_bytes += more;
  if (held_ > context_->max_answer_bytes) {
    return ApiError(Code::kOutOfRange,
                    fmt::format("the answer takes more than {} bytes, the limit of one that is {} "
                                "(http.max_answer); {}ask for fewer tokens, choices, logprobs or "
                                "inputs",
                                context_->max_answer_bytes, stream ? "gathered" : "not streamed",
                                may_stream ? "set \"stream\": true, or " : ""));
  }
  if (context_->answers_bytes > context_->max_answers_bytes) {
    return ApiError(
        Code::kResourceExhausted,
        fmt::format("the answers that are gathered take {} bytes, the limit "
                    "(http.max_total_body); {}try again",
                    context_->max_answers_bytes, may_stream ? "set \"stream\": true or " : ""));
  }
  return std::nullopt;
}

void GenerationJob::Reject(Rejection reason, const ApiError& error, Duration retry_after) {
  context_->metrics.Count(reason);
  Fail(error, retry_after);
}

void GenerationJob::Fail(const ApiError& error, Duration retry_after) {
  if (closed_) return;
  Outcome outcome;
  outcome.code = error.code;
  outcome.error = error.message;
  sink_->OnFailed(error, retry_after);
  Close(std::move(outcome));
}

void GenerationJob::Close(Outcome outcome) {
  if (closed_) return;
  closed_ = true;
  turn_.Abandon();
  context_->answers_bytes -= std::exchange(held_, 0);
  for (auto& choice : choices_) {
    if (choice->request != RequestId{})
      context_->router->Cancel(std::exchange(choice->request, RequestId{}));
  }
  slot_ = {};
  lora_ = {};
  const AnswerUsage usage = MakeUsage();
  // A request that was refused before placement is not charged.
  if (!choices_.empty()) {
    context_->tenants->Charge(request_.caller.tenant,
                              int64_t{usage.prompt_tokens} + usage.completion_tokens,
                              context_->clock->Now());
  }
  outcome.http_status = HttpStatus(outcome.code);
  outcome.usage = &usage;
  outcome.choices = static_cast<uint32_t>(choices_.size());
  if (first_token_ != kNever) outcome.ttft = first_token_ - request_.caller.received;
  outcome.trace_id = trace_.trace_id();
  trace_.Close(outcome);
  CountEnd(outcome);
  context_->log->Finished(request_.caller, outcome);
  // The caller may be one of our choices or our sink, so we are destroyed in the loop's next turn.
  context_->loop->Post([self = std::move(self_)] {});
}

void GenerationJob::CountTokens(const ChoiceStream& choice) {
  if (choice.completion_tokens() == 0) return;
  last_token_ = context_->clock->Now();
  const uint32_t before = std::exchange(counted_[choice.index()], choice.completion_tokens());
  if (before == 0) trace_.FirstToken(choice.index(), choice.timing() ? &*choice.timing() : nullptr);
  if (first_token_ == kNever) {
    first_token_ = last_token_;
    first_choice_ = choice.index();
    lora_.Running();
  }
  context_->stats->Tokens(choice.completion_tokens() - before);
}

void GenerationJob::CountEnd(const Outcome& outcome) {
  LiveStats::Ended ended;
  ended.ok = outcome.code == Code::kOk;
  ended.cancelled = outcome.code == Code::kCancelled;
  if (outcome.ttft) ended.ttft_ms = ToMs(*outcome.ttft);
  // As in vLLM, TPOT is per choice, hence the mean over choices that decode concurrently.
  const uint64_t all = std::accumulate(counted_.begin(), counted_.end(), uint64_t{0});
  const uint64_t tokens = all / std::max<size_t>(1, counted_.size());
  if (tokens > 1)
    ended.tpot_ms = ToMs(last_token_ - first_token_) / static_cast<double>(tokens - 1);
  context_->stats->Finished(ended);
  for (const auto& choice : choices_) {
    if (!choice->timing() || choice->timing()->kv_blocks_moved() == 0) continue;
    const v1::Timing& t = *choice->timing();
    context_->stats->Moved(t.prefill_worker(), choice->decode_worker(), t.kv_transport(),
                           t.kv_blocks_moved());
  }
}

AnswerUsage GenerationJob::MakeUsage() const {
  AnswerUsage usage;
  for (const auto& prompt : prepared_.prompts)
    usage.prompt_tokens += static_cast<uint32_t>(prompt.size());
  for (const auto& choice : choices_) {
    usage.completion_tokens += choice->completion_tokens();
    usage.reasoning_tokens += choice->reasoning_tokens();
    usage.preemptions += choice->preemptions();
    usage.draft_steps += choice->drafts().steps();
    usage.drafted += choice->drafts().drafted();
    usage.accepted += choice->drafts().accepted();
    if (choice->timing())
      usage.cached_tokens = std::max(usage.cached_tokens, choice->timing()->cached_tokens());
  }
  usage.route = route_;
  if (first_token_ == kNever || !choices_[first_choice_]->timing()) return usage;
  // The client's TTFT is that of the choice whose token came first.
  const ChoiceStream& first = *choices_[first_choice_];
  usage.timed = true;
  usage.timing = *first.timing();
  usage.route_taken = first.RouteTaken();
  usage.fallback = usage.timing.fallback();
  const v1::Timing& t = usage.timing;
  usage.ttft_ms = ToMs(first_token_ - request_.caller.received);
  usage.frontend_ms =
      usage.ttft_ms - NsToMs(t.queue_ns() + t.prefill_ns() + t.transfer_ns() + t.first_decode_ns());
  return usage;
}

}  // namespace aisp
