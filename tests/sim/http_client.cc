#include "tests/sim/http_client.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "api/json_value.h"

namespace aisp {
namespace {

constexpr int kJsonDepth = 16;

SequenceRequest AsSequence(const SimHttpRequest& request, uint32_t choice) {
  SequenceRequest s;
  s.tokens = request.prompt;
  s.prompt_tokens = static_cast<int32_t>(request.prompt.size());
  s.sampling.temperature = static_cast<float>(request.temperature);
  s.sampling.seed = request.seed;
  s.sampling.choice = choice;
  s.max_new_tokens = static_cast<int32_t>(request.max_tokens);
  s.min_new_tokens = static_cast<int32_t>(request.min_tokens);
  s.stop_token_ids = request.stop_token_ids;
  return s;
}

std::string_view HeaderOf(const HttpHeaders& headers, std::string_view name) {
  const auto it =
      std::find_if(headers.begin(), headers.end(), [&](const auto& h) { return h.first == name; });
  return it == headers.end() ? std::string_view() : std::string_view(it->second);
}

}  // namespace

SimHttpClient::SimHttpClient(SimWorld* world, SimCoverage* coverage, std::string name,
                             const ProvenanceOptions& model, SimHttpRequest request, Duration grace)
    : world_(world),
      coverage_(coverage),
      name_(std::move(name)),
      request_(std::move(request)),
      grace_(grace),
      model_(SimFrontend::MakeModel(model)) {
  for (uint32_t i = 0; i < request_.choices; ++i) {
    const ExpectedEnd expected = ExpectedOutput(model, AsSequence(request_, i));
    choices_.push_back({expected.tokens,
                        model_->tokenizer->Decode(expected.tokens, /*skip_special=*/true),
                        expected.finish == FinishReason::kStop ? "stop" : "length",
                        {},
                        "",
                        ""});
  }
  if (request_.stops_at_text) ExpectStopString();
}

// A substring of the first choice's answer that cannot overlap another one; every choice that
// contains it ends before it.
void SimHttpClient::ExpectStopString() {
  const std::vector<TokenId>& tokens = choices_[0].tokens;
  const auto spelled = std::find_if(tokens.begin() + static_cast<std::ptrdiff_t>(tokens.size() / 2),
                                    tokens.end(), [](TokenId id) { return id >= 256; });
  if (spelled == tokens.end()) return;
  stop_ = model_->tokenizer->IdToPiece(*spelled);
  for (Choice& choice : choices_) {
    const size_t at = choice.text.find(stop_);
    if (at == std::string::npos) continue;
    const auto last = std::find(choice.tokens.begin(), choice.tokens.end(), *spelled);
    choice.tokens.erase(last + 1, choice.tokens.end());
    choice.text.resize(at);
    choice.finish = "stop";
  }
}

void SimHttpClient::Fail(const std::string& what) {
  world_->Fail(fmt::format("{}: {}", name_, what));
}

std::string SimHttpClient::Body() const {
  std::string body = fmt::format(
      R"({{"model":"provenance","prompt":[{}],"max_tokens":{},"min_tokens":{},"n":{},"temperature":{},"seed":{},)"
      R"("stream":{},"return_token_ids":true,"stop_token_ids":[{}])",
      fmt::join(request_.prompt, ","), request_.max_tokens, request_.min_tokens, request_.choices,
      request_.temperature, request_.seed, request_.stream,
      fmt::join(request_.stop_token_ids, ","));
  if (!stop_.empty()) body += fmt::format(R"(,"stop":"{}")", stop_);
  return body + "}";
}

std::shared_ptr<SimExchange> SimHttpClient::Send() {
  HttpRequest request;
  request.method = "POST";
  request.path = "/v1/completions";
  request.id = name_;
  request.body = Body();
  request.headers = {{"x-request-timeout", fmt::format("{}", ToSeconds(request_.timeout))}};
  auto exchange = std::make_shared<SimExchange>(std::move(request), weak_from_this());
  exchange_ = exchange;
  state_ = State::kWaiting;
  sent_ = world_->Now();
  world_->Trace(name_, fmt::format("{} tokens over HTTP, {} choices of at most {}",
                                   request_.prompt.size(), request_.choices, request_.max_tokens));
  return exchange;
}

void SimHttpClient::OnDropped(bool arrived) {
  if (!waiting()) return;
  if (arrived) return Fail("the exchange was dropped without an answer");
  // It waited in the backlog of a process that ended.
  Leave("its connection ended before it was read");
}

void SimHttpClient::Leave(const std::string& why) {
  state_ = State::kGone;
  outcome_ = why;
}

void SimHttpClient::OnAnswer(int status, const HttpHeaders& headers, const std::string& body) {
  if (state_ != State::kWaiting) return Fail("an answer that nobody waits for");
  const auto parsed = ParseJson(body, kJsonDepth);
  if (!parsed || !parsed->IsMap()) return Fail("an answer that is not JSON: " + body);
  if (const Value* error = parsed->AsMap().Find("error")) {
    if (status == 200) return Fail("an error with status 200");
    if ((status == 429 || status == 503) && HeaderOf(headers, "retry-after").empty())
      return Fail("a refusal that does not say when to come again");
    TakeError(*error);
    return Finish();
  }
  if (status != 200 || request_.stream) return Fail(fmt::format("a whole answer, {}", status));
  coverage_->Count("whole answer over HTTP");
  TakeChoices(*parsed);
  ended_ = ok_ = true;
  Finish();
}

void SimHttpClient::OnStream(int status, const HttpHeaders& headers) {
  if (state_ != State::kWaiting) return Fail("a stream that nobody waits for");
  if (!request_.stream || status != 200) return Fail("a stream that nobody asked for");
  if (HeaderOf(headers, "content-type").find("text/event-stream") == std::string_view::npos)
    return Fail("a stream that is no SSE");
  state_ = State::kStreams;
}

void SimHttpClient::OnBytes(std::string_view bytes) {
  if (state_ != State::kStreams) return Fail("bytes outside of a stream");
  unread_ += bytes;
  for (size_t end = unread_.find("\n\n"); end != std::string::npos; end = unread_.find("\n\n")) {
    const std::string event = unread_.substr(0, end);
    unread_.erase(0, end + 2);
    if (!event.empty()) TakeEvent(event);
  }
}

void SimHttpClient::TakeEvent(std::string_view event) {
  if (event.starts_with(":")) return coverage_->Count("comment in a silent stream");
  if (ended_) return Fail("an event after the last one");
  constexpr std::string_view kData = "data: ";
  if (!event.starts_with(kData)) return Fail("an event without data: " + std::string(event));
  const std::string_view data = event.substr(kData.size());
  if (data == "[DONE]") {
    ended_ = true;
    ok_ = outcome_.empty();
    return;
  }
  if (!outcome_.empty()) return Fail("an event after an error");
  const auto parsed = ParseJson(data, kJsonDepth);
  if (!parsed || !parsed->IsMap()) return Fail("an event that is not JSON: " + std::string(data));
  if (const Value* error = parsed->AsMap().Find("error")) return TakeError(*error);
  TakeChoices(*parsed);
}

void SimHttpClient::TakeChoices(const Value& body) {
  const Value* choices = body.AsMap().Find("choices");
  if (choices == nullptr || !choices->IsList()) return Fail("an answer without choices");
  for (const Value& choice : choices->AsList()) TakeChoice(choice.AsMap());
}

void SimHttpClient::TakeChoice(const Value::Map& fields) {
  const Value* index = fields.Find("index");
  if (index == nullptr || index->AsInt() < 0 ||
      static_cast<size_t>(index->AsInt()) >= choices_.size())
    return Fail("a choice that nobody asked for");
  Choice& choice = choices_[static_cast<size_t>(index->AsInt())];
  if (!choice.received_finish.empty()) return Fail("a choice that goes on after its end");
  if (const Value* text = fields.Find("text")) choice.received_text += text->AsString();
  if (const Value* ids = fields.Find("token_ids")) {
    for (const Value& id : ids->AsList()) {
      const auto token = static_cast<TokenId>(id.AsInt());
      const size_t at = choice.received.size();
      if (at >= choice.tokens.size() || choice.tokens[at] != token)
        return Fail(fmt::format("token {} of choice {} is {}, which the oracle does not say", at,
                                index->AsInt(), token));
      choice.received.push_back(token);
      world_->Digest(static_cast<uint64_t>(token));
    }
  }
  const Value* finish = fields.Find("finish_reason");
  if (finish != nullptr && finish->IsString()) choice.received_finish = finish->AsString();
}

void SimHttpClient::TakeError(const Value& error) {
  const Value* message = error.IsMap() ? error.AsMap().Find("message") : nullptr;
  if (message == nullptr || !message->IsString() || message->AsString().empty())
    return Fail("an error without a message");
  outcome_ = message->AsString();
}

void SimHttpClient::OnEnd() {
  if (state_ != State::kStreams) return Fail("the end of a stream that there is not");
  if (!unread_.empty()) return Fail("a stream that ends inside an event");
  if (!ended_) return Fail("a stream that ends without its last event");
  coverage_->Count(ok_ ? "stream over HTTP" : "error in a stream over HTTP");
  Finish();
}

void SimHttpClient::Finish() {
  state_ = State::kDone;
  if (!ok_) {
    world_->Trace(name_, "failed: " + outcome_);
    return coverage_->Count("request over HTTP failed");
  }
  outcome_ = "ok";
  world_->Trace(name_, "answered");
  for (const Choice& choice : choices_) {
    if (choice.received != choice.tokens)
      return Fail(fmt::format("{} of {} tokens", choice.received.size(), choice.tokens.size()));
    if (choice.received_text != choice.text)
      return Fail(fmt::format("the text is '{}', not '{}'", choice.received_text, choice.text));
    if (choice.received_finish != choice.finish)
      return Fail(fmt::format("finish reason {}, not {}", choice.received_finish, choice.finish));
  }
  coverage_->Count("request over HTTP ok");
  if (choices_.size() > 1) coverage_->Count("choices over HTTP ok");
  if (!stop_.empty()) coverage_->Count("stop string over HTTP");
}

void SimHttpClient::CheckOverdue(Instant now) {
  if (waiting() && now > sent_ + request_.timeout + grace_)
    Fail(fmt::format("no end {:.0f} ms after its deadline", ToMs(now - sent_ - request_.timeout)));
}

}  // namespace aisp
