#include "server/generation_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace aisp {
namespace {

constexpr Duration kBusyRetry = std::chrono::seconds(1);

ApiError BusyError() {
  return ApiError(Code::kResourceExhausted,
                  "too many requests are being tokenized; try again shortly");
}

std::string RouteText(const RouteDecision& route) {
  return fmt::format(
      "decode={} prefill={} reason={} predicted-ttft-ms={:.1f} predicted-tpot-ms={:.2f} "
      "cached-tokens={}",
      route.decode_worker, route.prefill_worker.empty() ? "local" : route.prefill_worker,
      route.reason, route.predicted_ttft_ms, route.predicted_tpot_ms, route.cached_tokens_decode);
}

double NsToMs(int64_t ns) { return static_cast<double>(ns) * 1e-6; }

}  // namespace

int64_t UnixTimeS() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

PrefillPreference PrefillPreferenceOf(std::string_view header) {
  if (header == "remote") return PrefillPreference::kRemote;
  if (header == "local") return PrefillPreference::kLocal;
  return PrefillPreference::kAuto;
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
    : context_(context), request_(std::move(request)), sink_(std::move(sink)) {}

void GenerationJob::Begin() {
  auto slot = context_->tenants->Enter(request_.caller.tenant);
  if (!slot) return Fail(slot.error(), kBusyRetry);
  slot_ = std::move(*slot);
  const bool taken = context_->pool->TrySubmit([job = shared_from_this()] {
    auto prepared = std::make_shared<ApiResult<PreparedRequest>>(job->request_.prepare());
    job->context_->loop->Post([job, prepared] { job->OnPrepared(std::move(*prepared)); });
  });
  if (!taken) Fail(BusyError(), kBusyRetry);
}

void GenerationJob::OnPrepared(ApiResult<PreparedRequest> prepared) {
  if (closed_) return;
  if (!prepared) return Fail(prepared.error(), {});
  prepared_ = std::move(*prepared);
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

RouterRequest GenerationJob::MakeRequest(uint32_t choice) const {
  const GenerationOptions& o = prepared_.options;
  RouterRequest r;
  r.trace_id = request_.caller.request_id;
  r.tokens = prepared_.PromptOf(choice);
  r.sampling = o.sampling;
  r.choice = choice % o.n;
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
  r.priority = -std::max(o.priority, -INT32_MAX);  // clients: lower first; inside: greater first
  r.cache_scope = CacheScope(request_.caller.tenant, o.cache_salt);
  r.prefill = request_.prefill;
  return r;
}

void GenerationJob::SubmitAll() {
  const GenerationOptions& o = prepared_.options;
  sink_->OnPrepared(prepared_);
  for (uint32_t index = 0; index < prepared_.choices() && !closed_; ++index) {
    choices_.push_back(std::make_unique<ChoiceStream>(
        context_->model->tokenizer.get(),
        ChoiceStream::Options{.index = index,
                              .stop = o.stop,
                              .include_stop = o.include_stop_in_output,
                              .skip_special_tokens = o.skip_special_tokens,
                              .num_logprobs = o.sampling.num_logprobs(),
                              .keep_token_ids = o.return_token_ids,
                              .min_tokens = o.min_tokens},
        this));
    RouterRequest request = MakeRequest(index);
    request.timeout = TimeLeft();
    if (request.timeout == Duration{}) {
      choices_.pop_back();
      return Fail(
          ApiError(Code::kDeadlineExceeded,
                   "the request's time was over before it could be placed; allow more time"),
          {});
    }
    Duration retry_after{};
    auto id = context_->router->Submit(std::move(request), choices_.back().get(), &retry_after);
    if (!id) {
      choices_.pop_back();
      return Fail(ApiError(id.error()), retry_after);
    }
    choices_.back()->request = *id;
  }
}

void GenerationJob::Abandon(std::string_view why) {
  if (closed_) return;
  context_->disconnected.Add();
  Outcome outcome;
  outcome.code = Code::kCancelled;
  outcome.error = fmt::format("the client went away: {}", why);
  Close(std::move(outcome));
}

void GenerationJob::OnChoiceRouted(ChoiceStream& choice, const RouteDecision& route) {
  if (choice.index() != 0 || !route_.empty()) return;
  route_ = RouteText(route);
  sink_->OnRouted(route_);
}

void GenerationJob::OnChoiceStopped(ChoiceStream& choice) {
  context_->router->Complete(choice.request);
  choice.request = {};
}

void GenerationJob::OnChoiceAdvanced(ChoiceStream& choice) {
  if (closed_) return;
  if (first_token_ == kNever && choice.completion_tokens() > 0)
    first_token_ = context_->clock->Now();
  if (choice.error()) {
    choice.request = {};
    return Fail(*choice.error(), choice.retry_after());
  }
  if (choice.ended()) {
    choice.request = {};
    ++ended_;
  }
  if (choice.HasNews() || choice.ended()) sink_->OnProgress(choice);
  if (ended_ < prepared_.choices()) return;
  sink_->OnDone(choices_, MakeUsage());
  Close({});
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
  for (auto& choice : choices_) {
    if (choice->request != RequestId{})
      context_->router->Cancel(std::exchange(choice->request, RequestId{}));
  }
  slot_ = {};
  const AnswerUsage usage = MakeUsage();
  outcome.http_status = HttpStatus(outcome.code);
  outcome.prompt_tokens = usage.prompt_tokens;
  outcome.cached_tokens = usage.cached_tokens;
  outcome.completion_tokens = usage.completion_tokens;
  if (first_token_ != kNever) outcome.ttft = first_token_ - request_.caller.received;
  outcome.route = route_;
  context_->log->Finished(request_.caller, outcome);
  // The caller may be one of our choices, or our sink: let the loop's next turn end us.
  context_->loop->Post([self = std::move(self_)] {});
}

AnswerUsage GenerationJob::MakeUsage() const {
  AnswerUsage usage;
  for (const auto& prompt : prepared_.prompts)
    usage.prompt_tokens += static_cast<uint32_t>(prompt.size());
  for (const auto& choice : choices_) {
    usage.completion_tokens += choice->completion_tokens();
    if (choice->timing())
      usage.cached_tokens = std::max(usage.cached_tokens, choice->timing()->cached_tokens());
  }
  usage.route = route_;
  if (choices_.empty() || !choices_.front()->timing() || first_token_ == kNever) return usage;
  usage.timed = true;
  usage.timing = *choices_.front()->timing();
  const v1::Timing& t = usage.timing;
  usage.ttft_ms = ToMs(first_token_ - request_.caller.received);
  usage.frontend_ms =
      usage.ttft_ms - NsToMs(t.queue_ns() + t.prefill_ns() + t.transfer_ns() + t.first_decode_ns());
  return usage;
}

}  // namespace aisp
