#include "server/generation_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "common/strings.h"

namespace aisp {
namespace {

ApiError BusyError() {
  return ApiError(Code::kResourceExhausted,
                  "too many requests are being tokenized; try again shortly");
}

std::string RouteHeader(const RouteDecision& route) {
  return fmt::format(
      "decode={} prefill={} reason={} predicted-ttft-ms={:.1f} predicted-tpot-ms={:.2f} "
      "cached-tokens={}",
      route.decode_worker, route.prefill_worker.empty() ? "local" : route.prefill_worker,
      route.reason, route.predicted_ttft_ms, route.predicted_tpot_ms, route.cached_tokens_decode);
}

PrefillPreference PreferenceOf(std::string_view header) {
  if (header == "remote") return PrefillPreference::kRemote;
  if (header == "local") return PrefillPreference::kLocal;
  return PrefillPreference::kAuto;
}

int64_t RetrySeconds(Duration d) {
  return std::max<int64_t>(1, (d.count() + 999'999'999) / 1'000'000'000);
}

}  // namespace

void GenerationJob::Start(FrontendContext* context, std::shared_ptr<HttpExchange> exchange,
                          Endpoint endpoint, std::string trace_id) {
  std::shared_ptr<GenerationJob> job(
      new GenerationJob(context, std::move(exchange), endpoint, std::move(trace_id)));
  job->self_ = job;
  job->exchange_->OnDisconnect([weak = job->weak_from_this()](HttpExchange::Gone why) {
    if (auto alive = weak.lock()) alive->OnGone(why);
  });
  const bool taken = context->pool->TrySubmit([job] {
    auto prepared = std::make_shared<ApiResult<Prepared>>(
        Prepare(*job->context_->model, job->endpoint_, job->exchange_->request().body));
    job->context_->loop->Post([job, prepared] { job->OnPrepared(std::move(*prepared)); });
  });
  if (!taken) job->Fail(BusyError(), std::chrono::seconds(1));
}

GenerationJob::GenerationJob(FrontendContext* context, std::shared_ptr<HttpExchange> exchange,
                             Endpoint endpoint, std::string trace_id)
    : context_(context),
      exchange_(std::move(exchange)),
      endpoint_(endpoint),
      trace_id_(std::move(trace_id)),
      received_(exchange_->request().received) {}

ApiResult<GenerationJob::Prepared> GenerationJob::Prepare(const ServedModel& model,
                                                          Endpoint endpoint,
                                                          const std::string& body) {
  Prepared out;
  if (endpoint == Endpoint::kChat) {
    AISP_ASSIGN_OR_RETURN(ChatRequest request, ParseChat(body, model.limits));
    AISP_RETURN_IF_ERROR(model.CheckName(request.model));
    AISP_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, model.RenderChat(request));
    out.prompts.push_back(std::move(tokens));
    out.options = std::move(static_cast<GenerationOptions&>(request));
    return out;
  }
  AISP_ASSIGN_OR_RETURN(CompletionRequest request, ParseCompletion(body, model.limits));
  AISP_RETURN_IF_ERROR(model.CheckName(request.model));
  for (Prompt& prompt : request.prompts) {
    AISP_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, model.EncodePrompt(prompt));
    if (request.echo) out.echoes.push_back(model.TextOf(prompt));
    out.prompts.push_back(std::move(tokens));
  }
  out.options = std::move(static_cast<GenerationOptions&>(request));
  return out;
}

void GenerationJob::OnPrepared(ApiResult<Prepared> prepared) {
  if (closed_) return;
  if (!prepared) return Fail(prepared.error(), {});
  prepared_ = std::move(*prepared);
  if (auto checked = CheckLengths(); !checked) return Fail(checked.error(), {});
  const std::string id =
      fmt::format("{}-{}", endpoint_ == Endpoint::kChat ? "chatcmpl" : "cmpl", trace_id_);
  encoder_ =
      std::make_unique<ResponseEncoder>(endpoint_, id, context_->model->name,
                                        context_->unix_time_s(), prepared_.options.include_usage);
  SubmitAll();
}

ApiResult<void> GenerationJob::CheckLengths() const {
  const int64_t limit = context_->model->max_model_len;
  for (const auto& prompt : prepared_.prompts) {
    const auto length = static_cast<int64_t>(prompt.size());
    const std::string param = endpoint_ == Endpoint::kChat ? "messages" : "prompt";
    if (length == 0) {
      return tl::unexpected(
          ApiError(Code::kInvalidArgument, "the prompt has no tokens; give at least one", param));
    }
    if (length >= limit) {
      return tl::unexpected(
          ApiError(Code::kInvalidArgument,
                   fmt::format("the prompt has {} tokens, and this model's context is {} tokens, "
                               "of which the answer needs at "
                               "least one; shorten the prompt to {} tokens or fewer",
                               length, limit, limit - 1),
                   param, "context_length_exceeded"));
    }
    if (prepared_.options.max_tokens && length + *prepared_.options.max_tokens > limit) {
      return tl::unexpected(
          ApiError(Code::kInvalidArgument,
                   fmt::format("the prompt has {} tokens and max_tokens is {}, together {}; this "
                               "model's context is {} "
                               "tokens: lower max_tokens to {} or shorten the prompt",
                               length, *prepared_.options.max_tokens,
                               length + *prepared_.options.max_tokens, limit, limit - length),
                   "max_tokens", "context_length_exceeded"));
    }
  }
  return {};
}

RouterRequest GenerationJob::MakeRequest(size_t prompt, uint32_t choice) const {
  const GenerationOptions& o = prepared_.options;
  RouterRequest r;
  r.trace_id = trace_id_;
  r.tokens = prepared_.prompts[prompt];
  r.sampling = o.sampling;
  r.choice = choice;
  const auto room =
      static_cast<uint32_t>(context_->model->max_model_len - static_cast<int64_t>(r.tokens.size()));
  r.max_new_tokens =
      o.max_tokens ? *o.max_tokens : context_->model->DefaultMaxTokens(endpoint_, room);
  r.min_new_tokens = o.min_tokens;
  r.stop_token_ids = o.stop_token_ids;
  if (!o.ignore_eos) {
    r.stop_token_ids.insert(r.stop_token_ids.end(), context_->model->eos.begin(),
                            context_->model->eos.end());
  }
  r.timeout = o.timeout;
  r.priority = -o.priority;  // clients: lower runs earlier; inside: greater runs earlier
  r.cache_scope = o.cache_salt;
  r.prefill = PreferenceOf(exchange_->request().Header("x-aisp-prefill"));
  return r;
}

void GenerationJob::SubmitAll() {
  const GenerationOptions& o = prepared_.options;
  submitted_ = context_->clock->Now();
  submitting_ = true;
  for (size_t p = 0; p < prepared_.prompts.size(); ++p) {
    for (uint32_t i = 0; i < o.n && !closed_; ++i) {
      const auto index = static_cast<uint32_t>(choices_.size());
      choices_.push_back(std::make_unique<ChoiceStream>(
          context_->model->tokenizer.get(),
          ChoiceStream::Options{index, o.stop, o.include_stop_in_output, o.skip_special_tokens,
                                o.sampling.num_logprobs(), o.return_token_ids},
          this));
      role_sent_.push_back(false);
      Duration retry_after{};
      auto id = context_->router->Submit(MakeRequest(p, i), choices_.back().get(), &retry_after);
      if (!id) {
        choices_.pop_back();
        return Fail(ApiError(id.error()), retry_after);
      }
      choices_.back()->request = *id;
    }
  }
  submitting_ = false;
  if (o.stream) ArmKeepAlive();
}

void GenerationJob::OnGone(HttpExchange::Gone why) {
  if (closed_) return;
  context_->disconnected.Add();
  LogInfo("client went away",
          {{"request", trace_id_},
           {"why", why == HttpExchange::Gone::kSlowReader ? "slow reader" : "closed"},
           {"ms", ToMs(context_->clock->Now() - received_)}});
  Close();
}

void GenerationJob::OnChoiceRouted(ChoiceStream& choice, const RouteDecision& route) {
  if (choice.index() == 0 && !routed_) {
    routed_ = true;
    route_ = route;
  }
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
  const bool all_ended = ended_ == prepared_.prompts.size() * prepared_.options.n;
  if (prepared_.options.stream) {
    if (choice.HasNews() || choice.ended()) StreamChoice(choice);
    if (all_ended) FinishStream();
  } else if (all_ended) {
    AnswerWhole();
  }
}

void GenerationJob::BeginStream() {
  if (streaming_) return;
  streaming_ = true;
  HttpHeaders headers = MakeHeaders(kSseContentType);
  headers.emplace_back("cache-control", "no-cache");
  exchange_->BeginStream(200, std::move(headers));
}

void GenerationJob::StreamChoice(ChoiceStream& choice) {
  BeginStream();
  if (!role_sent_[choice.index()]) {
    role_sent_[choice.index()] = true;
    encoder_->Role(choice.index(), &out_);
    if (!prepared_.echoes.empty()) {
      encoder_->Text(choice.index(), 0, prepared_.echoes[choice.index() / prepared_.options.n],
                     &out_);
    }
  }
  if (choice.HasNews()) {
    const auto logprobs = choice.TakeLogprobs();
    const auto token_ids = choice.TakeTokenIds();
    encoder_->Text(choice.index(), choice.completion_tokens(), choice.TakeText(), logprobs,
                   token_ids, &out_);
  }
  if (choice.ended()) {
    encoder_->Finish(choice.index(), choice.completion_tokens(), choice.finish_reason(), &out_);
  }
  Flush();
}

void GenerationJob::Flush() {
  if (out_.empty()) return;
  exchange_->Write(out_);
  out_.clear();
  last_write_ = context_->clock->Now();
}

// A stream that is silent, before its first token too, gets a comment, so that no proxy takes it for dead.
void GenerationJob::ArmKeepAlive() {
  if (closed_) return;
  const Duration period = context_->keepalive_comment;
  const Instant now = context_->clock->Now();
  Instant next = std::max(last_write_, submitted_) + period;
  if (next <= now) {
    BeginStream();
    out_ += kKeepAliveComment;
    Flush();
    next = now + period;
  }
  keepalive_ = context_->loop->RunAt(next, [weak = weak_from_this()] {
    if (auto job = weak.lock()) job->ArmKeepAlive();
  });
}

void GenerationJob::FinishStream() {
  BeginStream();
  if (prepared_.options.include_usage) encoder_->UsageEvent(MakeUsage(), &out_);
  ResponseEncoder::Done(&out_);
  Flush();
  exchange_->End();
  context_->count_request(endpoint_, 200);
  Close();
}

void GenerationJob::AnswerWhole() {
  std::vector<Choice> out;
  for (auto& choice : choices_) {
    Choice c;
    c.index = choice->index();
    if (!prepared_.echoes.empty()) c.text = prepared_.echoes[choice->index() / prepared_.options.n];
    c.text += choice->TakeText();
    c.finish_reason = choice->finish_reason();
    c.has_logprobs = prepared_.options.sampling.num_logprobs() >= 0;
    c.logprobs = choice->TakeLogprobs();
    c.token_ids = choice->TakeTokenIds();
    out.push_back(std::move(c));
  }
  exchange_->Respond(200, MakeHeaders(kJsonContentType), encoder_->Whole(out, MakeUsage()));
  context_->count_request(endpoint_, 200);
  Close();
}

void GenerationJob::Fail(const ApiError& error, Duration retry_after) {
  if (closed_) return;
  const int status = HttpStatus(error.code);
  LogInfo("request failed", {{"request", trace_id_},
                             {"code", CodeName(error.code)},
                             {"status", status},
                             {"streaming", streaming_},
                             {"message", error.message}});
  if (streaming_) {
    ResponseEncoder::ErrorEvent(error, &out_);
    ResponseEncoder::Done(&out_);
    Flush();
    exchange_->End();
  } else {
    HttpHeaders headers = MakeHeaders(kJsonContentType);
    const bool retryable = status == 429 || status == 503;
    if (retryable) headers.emplace_back("retry-after", std::to_string(RetrySeconds(retry_after)));
    exchange_->Respond(status, std::move(headers), ErrorBody(error));
  }
  context_->count_request(endpoint_, status);
  Close();
}

// Cancels what still runs and lets go of itself; nothing is called after it.
void GenerationJob::Close() {
  if (closed_) return;
  closed_ = true;
  for (auto& choice : choices_) {
    if (choice->request != RequestId{})
      context_->router->Cancel(std::exchange(choice->request, RequestId{}));
  }
  keepalive_.reset();
  // The caller may be one of our choices: let the loop's next turn end us.
  context_->loop->Post([self = std::move(self_)] {});
}

Usage GenerationJob::MakeUsage() const {
  Usage usage;
  for (const auto& prompt : prepared_.prompts)
    usage.prompt_tokens += static_cast<uint32_t>(prompt.size());
  for (const auto& choice : choices_) {
    usage.completion_tokens += choice->completion_tokens();
    if (choice->timing())
      usage.cached_tokens = std::max(usage.cached_tokens, choice->timing()->cached_tokens());
  }
  usage.extension = MakeTimingJson();
  return usage;
}

std::string GenerationJob::MakeTimingJson() const {
  if (choices_.empty() || !choices_.front()->timing() || first_token_ == kNever) return "";
  const v1::Timing& t = *choices_.front()->timing();
  const auto ms = [](int64_t ns) { return static_cast<double>(ns) * 1e-6; };
  const double ttft = ToMs(first_token_ - received_);
  const double on_workers =
      ms(t.queue_ns() + t.prefill_ns() + t.transfer_ns() + t.first_decode_ns());
  std::string route;
  AppendJsonString(RouteHeader(route_), &route);
  return fmt::format(
      R"({{"route":{},"ttft_ms":{:.3f},"frontend_ms":{:.3f},"queue_ms":{:.3f},"prefill_ms":{:.3f},)"
      R"("transfer_ms":{:.3f},"first_decode_ms":{:.3f},"kv_blocks_moved":{},"kv_transport":"{}","preemptions":{}}})",
      route, ttft, ttft - on_workers, ms(t.queue_ns()), ms(t.prefill_ns()), ms(t.transfer_ns()),
      ms(t.first_decode_ns()), t.kv_blocks_moved(), t.kv_transport(), t.preemptions());
}

HttpHeaders GenerationJob::MakeHeaders(std::string_view content_type) const {
  HttpHeaders headers{{"content-type", std::string(content_type)}, {"x-request-id", trace_id_}};
  if (routed_) headers.emplace_back("x-aisp-route", RouteHeader(route_));
  return headers;
}

}  // namespace aisp
