#include "frontend/http_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "api/messages_encoder.h"
#include "frontend/choice_news.h"
#include "frontend/whole_answer.h"

namespace aisp {
namespace {

int64_t RetrySeconds(Duration d) {
  return std::max<int64_t>(1, (d.count() + 999'999'999) / 1'000'000'000);
}

double NsToMs(int64_t ns) { return static_cast<double>(ns) * 1e-6; }

// The `aisp` object of usage: route, and TTFT with its parts in milliseconds.
std::string PullJson(const v1::Timing& timing) {
  static constexpr std::string_view kResults[] = {"none", "filled",  "missed", "cached",
                                                  "late", "refused", "failed"};
  const v1::PrefixPull& pull = timing.pull();
  const auto result = static_cast<size_t>(pull.result());
  if (result == 0 || result >= std::size(kResults)) return "";
  std::string holder;
  AppendJsonString(pull.holder(), &holder);
  return fmt::format(
      R"(,"pull":{{"result":"{}","holder":{},"tokens":{},"bytes":{},"ms":{:.3f},"transport":"{}"}})",
      kResults[result], holder, pull.tokens(), pull.bytes(), NsToMs(pull.duration_ns()),
      pull.transport());
}

std::string TimingJson(const AnswerUsage& usage) {
  if (!usage.timed) return "";
  const v1::Timing& t = usage.timing;
  std::string speculation;
  if (usage.draft_steps > 0) {
    speculation = fmt::format(
        R"(,"speculation":{{"drafts":{},"drafted":{},"accepted":{},"mean_acceptance_length":{:.3f}}})",
        usage.draft_steps, usage.drafted, usage.accepted, usage.mean_acceptance_length());
  }
  std::string route, taken, fallback;
  AppendJsonString(usage.route, &route);
  AppendJsonString(usage.route_taken, &taken);
  AppendJsonString(usage.fallback, &fallback);
  return fmt::format(
      R"({{"route":{},"route_taken":{},"fallback":{},"ttft_ms":{:.3f},"frontend_ms":{:.3f},"queue_ms":{:.3f},"prefill_ms":{:.3f},)"
      R"("transfer_ms":{:.3f},"transfer_total_ms":{:.3f},"first_decode_ms":{:.3f},"kv_blocks_moved":{},"kv_transport":"{}","preemptions":{}{}{}}})",
      route, taken, fallback, usage.ttft_ms, usage.frontend_ms, NsToMs(t.queue_ns()),
      NsToMs(t.prefill_ns()), NsToMs(t.transfer_ns()), NsToMs(t.transfer_total_ns()),
      NsToMs(t.first_decode_ns()), t.kv_blocks_moved(), t.kv_transport(), usage.preemptions,
      speculation, PullJson(t));
}

Usage UsageOf(const AnswerUsage& usage) {
  return {usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens,
          TimingJson(usage)};
}

bool IsMessages(std::string_view path) {
  constexpr std::string_view kPath = "/v1/messages";
  return path == kPath || (path.starts_with(kPath) && path[kPath.size()] == '/');
}
bool IsMessages(const HttpRequest& request) { return IsMessages(request.path); }

// Anthropic's clients read the request id from this header.
void NameRequest(const HttpRequest& request, HttpHeaders* headers) {
  if (IsMessages(request)) headers->emplace_back("request-id", request.id);
}

}  // namespace

std::string ErrorBodyFor(const HttpRequest& request, int status, std::string_view message) {
  return ErrorBodyFor(request.path, request.id, status, message);
}

std::string ErrorBodyFor(std::string_view path, std::string_view request_id, int status,
                         std::string_view message) {
  if (IsMessages(path)) return MessagesErrorBody(status, message, request_id);
  return ErrorBody(status, message);
}

void AddIgnored(const PreparedRequest* prepared, HttpHeaders* headers) {
  constexpr size_t kNames = 16;
  constexpr size_t kNameBytes = 64;
  if (prepared == nullptr || prepared->options.ignored.empty()) return;
  const std::vector<std::string>& names = prepared->options.ignored;
  std::string out;
  for (size_t i = 0; i < std::min(names.size(), kNames); ++i) {
    if (i > 0) out += ", ";
    for (const char c : names[i].substr(0, kNameBytes))
      out.push_back(c > ' ' && c < 127 && c != ',' ? c : '?');
  }
  if (names.size() > kNames) out += ", ...";
  headers->emplace_back("x-aisp-ignored", std::move(out));
}

int RespondError(HttpExchange& exchange, const ApiError& error, Duration retry_after,
                 HttpHeaders headers) {
  const int status = HttpStatus(error.code);
  headers.emplace_back("content-type", std::string(kJsonContentType));
  if (status == 401) headers.emplace_back("www-authenticate", "Bearer");
  if (status == 429 || status == 503)
    headers.emplace_back("retry-after", std::to_string(RetrySeconds(retry_after)));
  const HttpRequest& request = exchange.request();
  NameRequest(request, &headers);
  exchange.Respond(status, std::move(headers),
                   IsMessages(request) ? MessagesErrorBody(error, request.id) : ErrorBody(error));
  return status;
}

HttpTextAnswer::HttpTextAnswer(FrontendContext* context, std::shared_ptr<HttpExchange> exchange,
                               TenantShare tenant)
    : context_(context), exchange_(std::move(exchange)), tenant_(std::move(tenant)) {}

std::unique_ptr<AnswerEncoder> HttpTextAnswer::MakeEncoder() const {
  if (prepared_->make_encoder) return prepared_->make_encoder();
  const HttpRequest& request = exchange_->request();
  const bool chat = prepared_->endpoint == Endpoint::kChat;
  const StreamShape shape{.usage_field = prepared_->options.include_usage,
                          .event_ids = request.Header("x-aisp-event-ids") == "true"};
  return std::make_unique<ResponseEncoder>(
      prepared_->endpoint, fmt::format("{}-{}", chat ? "chatcmpl" : "cmpl", request.id),
      prepared_->model_name, UnixTimeS(), shape);
}

void HttpTextAnswer::OnPrepared(const PreparedRequest& prepared) {
  prepared_ = &prepared;
  encoder_ = MakeEncoder();
  opened_.assign(prepared.choices(), false);
  if (!prepared.options.stream) return;
  events_ = std::make_shared<EventStream>(context_, exchange_, std::move(encoder_), tenant_);
  ArmKeepAlive();
}

void HttpTextAnswer::OnProgress(ChoiceStream& choice) {
  if (taken_.empty()) taken_ = choice.RouteTaken();
  if (!prepared_->options.stream) return;
  BeginStream();
  const bool opens = !opened_[choice.index()];
  opened_[choice.index()] = true;
  if (prepared_->gathers_answer) gathered_ = choice.said_bytes();
  ChoiceNews news(*prepared_, choice, opens,
                  [this](uint32_t index, uint32_t call) { return CallId(index, call); });
  const size_t bytes = news.bytes();
  events_->Say(bytes, [news = std::move(news)](AnswerEncoder* encoder, std::string* out) {
    news.Write(encoder, out);
  });
}

std::string HttpTextAnswer::CallId(uint32_t choice, uint32_t call) const {
  const std::string& seed = prepared_->call_seed;
  return MakeCallId(seed.empty() ? exchange_->request().id : seed, choice, call,
                    prepared_->parse.calls);
}

void HttpTextAnswer::OnDone(std::span<const std::unique_ptr<ChoiceStream>> choices,
                            const AnswerUsage& usage) {
  keepalive_.reset();
  if (!prepared_->options.stream) return AnswerWhole(choices, UsageOf(usage));
  events_->Say(gathered_, [used = UsageOf(usage)](AnswerEncoder* encoder, std::string* out) {
    encoder->End(used, out);
  });
  events_->End();
}

void HttpTextAnswer::AnswerWhole(std::span<const std::unique_ptr<ChoiceStream>> choices,
                                 const Usage& usage) {
  const auto answer = std::make_shared<WholeAnswer>(
      *prepared_, choices, [this](uint32_t choice, uint32_t call) { return CallId(choice, call); },
      usage);
  HttpHeaders headers = Headers(kJsonContentType);
  const size_t bytes = answer->bytes();
  if (bytes <= EventStream::kWrittenAtOnce)
    return exchange_->Respond(200, std::move(headers), answer->Write(encoder_.get()));
  // Counted here as well, since the job that counted them ends before the pool is done.
  context_->answers_bytes += bytes;
  // If the pool is full, write here rather than fail a finished answer.
  const std::function<void()> write = [context = context_, loop = context_->loop,
                                       exchange = exchange_, answer, bytes, headers,
                                       encoder = std::shared_ptr(std::move(encoder_))]() mutable {
    loop->Post([context, exchange = std::move(exchange), bytes, headers = std::move(headers),
                body = answer->Write(encoder.get())]() mutable {
      context->answers_bytes -= bytes;
      exchange->Respond(200, std::move(headers), std::move(body));
    });
  };
  if (!context_->pool->TrySubmit(bytes, write, tenant_)) write();
}

void HttpTextAnswer::OnFailed(const ApiError& error, Duration retry_after) {
  keepalive_.reset();
  if (!streaming_) {
    HttpHeaders headers;
    AddOwnHeaders(&headers);
    RespondError(*exchange_, error, retry_after, std::move(headers));
    return;
  }
  events_->Say(gathered_,
               [error](AnswerEncoder* encoder, std::string* out) { encoder->Fail(error, out); });
  events_->End();
}

void HttpTextAnswer::BeginStream() {
  if (streaming_) return;
  streaming_ = true;
  HttpHeaders headers = Headers(kSseContentType);
  headers.emplace_back("cache-control", "no-cache");
  exchange_->BeginStream(200, std::move(headers));
}

void HttpTextAnswer::ArmKeepAlive() {
  const Instant now = context_->clock->Now();
  Instant next = events_->last_write() + context_->keepalive_comment;
  if (next <= now) {
    BeginStream();
    events_->Say(0, [](AnswerEncoder*, std::string* out) { *out += kKeepAliveComment; });
    next = now + context_->keepalive_comment;
  }
  keepalive_ = context_->loop->RunAt(next, [this] { ArmKeepAlive(); });
}

HttpHeaders HttpTextAnswer::Headers(std::string_view content_type) const {
  HttpHeaders headers{{"content-type", std::string(content_type)}};
  NameRequest(exchange_->request(), &headers);
  AddOwnHeaders(&headers);
  return headers;
}

void HttpTextAnswer::AddOwnHeaders(HttpHeaders* headers) const {
  if (!traceparent_.empty()) headers->emplace_back("traceparent", traceparent_);
  if (!route_.empty()) headers->emplace_back("x-aisp-route", route_);
  if (!taken_.empty()) headers->emplace_back("x-aisp-route-taken", taken_);
  AddIgnored(prepared_, headers);
}

}  // namespace aisp
