#include "loadgen/http_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/strings.h"
#include "net/sse_client.h"

namespace aisp::loadgen {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxErrorBody = 64 << 10;

// "HTTP 503: message", with the message of the error body.
std::string ErrorText(int status, const std::string& body) {
  Chunk chunk;
  std::string message = Excerpt(Trim(body), 200);
  if (ReadChunk(body, &chunk) && chunk.is_error && !chunk.raw_error.empty()) {
    message = UnescapeJson(chunk.raw_error);
  }
  return fmt::format("HTTP {}{}{}", status, message.empty() ? "" : ": ", Excerpt(message, 300));
}

class HttpCall final : public BackendCall, public SseListener {
 public:
  HttpCall(BackendListener* listener, size_t choices)
      : listener_(listener), reader_(listener, choices) {}
  void Post(SseClient* client, SseRequest request) {
    call_ = client->Post(std::move(request), this);
  }

  void OnResent() override { listener_->OnResent(); }
  void OnHead(int status, const HttpHeaders& headers) override {
    status_ = status;
    for (const auto& [name, value] : headers) {
      if (EqualsIgnoreCaseAscii(name, "x-aisp-route")) listener_->OnRoute(value);
      if (EqualsIgnoreCaseAscii(name, "content-type")) type_ = value;
      if (EqualsIgnoreCaseAscii(name, "retry-after")) {
        if (const auto seconds = ParseDouble(value); seconds && *seconds >= 0 && *seconds < 1e6) {
          retry_after_ = FromMs(*seconds * 1e3);
        }
      }
    }
  }
  void OnEvent(const SseEvent& event) override {
    if (!event.data.empty()) reader_.OnData(event.data);
  }
  void OnBody(std::string_view piece) override {
    if (body_.size() < kMaxErrorBody) body_ += piece;
  }
  void OnEnd(const Status& status, bool sent) override {
    Ending ending;
    ending.http_status = status_;
    ending.retry_after = retry_after_;
    ending.reason = Reason(status);
    ending.completed = ending.reason.empty();
    ending.may_retry = !sent || status_ == 503;
    listener_->OnEnd(ending);
  }

 private:
  std::string Reason(const Status& status) const {
    if (status_ != 0 && status_ != 200) return ErrorText(status_, body_);
    if (!status) return status.error().message;
    if (!type_.starts_with("text/event-stream")) {
      return fmt::format("the answer is no stream but '{}': {}", Excerpt(type_), Excerpt(body_));
    }
    return reader_.Problem();
  }

  BackendListener* listener_;
  StreamReader reader_;
  std::unique_ptr<SseCall> call_;
  int status_ = 0;
  std::string type_;
  std::string body_;
  std::optional<Duration> retry_after_;
};

class HttpBackend final : public Backend {
 public:
  HttpBackend(std::unique_ptr<SseClient> client, RequestBodies bodies, std::string target,
              HttpHeaders headers, const PromptMaker* prompts)
      : client_(std::move(client)),
        bodies_(std::move(bodies)),
        target_(std::move(target)),
        headers_(std::move(headers)),
        prompts_(prompts) {}

  std::unique_ptr<BackendCall> Start(const WorkItem& item, BackendListener* listener) override {
    auto call = std::make_unique<HttpCall>(listener, bodies_.choices());
    call->Post(client_.get(), SseRequest{target_, headers_, bodies_.Make(item, *prompts_)});
    return call;
  }

 private:
  std::unique_ptr<SseClient> client_;
  RequestBodies bodies_;
  std::string target_;
  HttpHeaders headers_;
  const PromptMaker* prompts_;
};

}  // namespace

RequestBodies::RequestBodies(const Options& o, const std::string& model)
    : chat_(o.kind() == BackendKind::kChat) {
  Json body = {{"model", model}, {"stream", true}, {"stream_options", {{"include_usage", true}}}};
  const auto set = [&body](const char* name, const auto& value) {
    if (value) body[name] = *value;
  };
  set("temperature", o.temperature);
  set("top_p", o.top_p);
  set("top_k", o.top_k);
  set("min_p", o.min_p);
  set("frequency_penalty", o.frequency_penalty);
  set("presence_penalty", o.presence_penalty);
  set("repetition_penalty", o.repetition_penalty);
  if (o.ignore_eos) body["ignore_eos"] = true;
  if (!o.extra_body.empty()) {
    const Json extra = Json::parse(o.extra_body);
    for (const auto& [name, value] : extra.items()) body[name] = value;
    sets_max_tokens_ = !extra.contains("max_tokens") && !extra.contains("max_completion_tokens");
    if (extra.contains("n") && extra["n"].is_number_unsigned()) {
      choices_ = std::clamp<size_t>(extra["n"].get<size_t>(), 1, 1024);
    }
  }
  tail_ = body.dump().substr(1);
}

namespace {

std::string Quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string TextOf(const WorkItem& item, const PromptMaker& prompts) {
  return item.made_up() ? prompts.Words(item.parts) : item.text;
}

// The list of messages, history first.
std::string Messages(const WorkItem& item, const PromptMaker& prompts) {
  const auto message = [](const char* role, const std::string& text) {
    return fmt::format(R"({{"role":"{}","content":{}}})", role, Quoted(text));
  };
  std::string out = "[";
  if (item.history != nullptr) {
    for (const SpokenTurn& turn : *item.history) {
      out += message("user", TextOf(*turn.asked, prompts)) + ",";
      out += message("assistant", turn.answer) + ",";
    }
  }
  return out + message("user", TextOf(item, prompts)) + "]";
}

std::string LongText(const WorkItem& item, const PromptMaker& prompts) {
  std::string out;
  if (item.history != nullptr) {
    for (const SpokenTurn& turn : *item.history) {
      out += TextOf(*turn.asked, prompts) + turn.answer + "\n";
    }
  }
  return out + TextOf(item, prompts);
}

}  // namespace

std::string RequestBodies::Make(const WorkItem& item, const PromptMaker& prompts) const {
  std::string out = "{";
  if (!item.messages_json.empty()) {
    out += "\"messages\":" + item.messages_json;
  } else if (chat_) {
    out += "\"messages\":" + Messages(item, prompts);
  } else if (item.made_up() && prompts.ids) {
    out += fmt::format("\"prompt\":[{}]", fmt::join(prompts.LongIds(item), ","));
    if (item.conversation >= 0) out += ",\"return_token_ids\":true";
  } else {
    out += "\"prompt\":" + Quoted(LongText(item, prompts));
  }
  if (sets_max_tokens_) out += fmt::format(",\"max_tokens\":{}", item.output_tokens);
  return out + "," + tail_;
}

void StreamReader::OnData(std::string_view data) {
  if (!error_.empty()) return;
  if (Trim(data) == "[DONE]") {
    done_ = true;
    return;
  }
  if (!ReadChunk(data, &chunk_)) {
    error_ = "the stream has an event that is no JSON object: " + Excerpt(data);
    return;
  }
  if (chunk_.is_error) {
    error_ = "error event in the stream: " + Excerpt(UnescapeJson(chunk_.raw_error), 300);
    return;
  }
  for (const ChunkChoice& choice : chunk_.choices) {
    Delta delta;
    delta.has_output = choice.has_output;
    delta.finished = !choice.finish_reason.empty();
    delta.finish_reason = choice.finish_reason;
    delta.choice = static_cast<size_t>(std::clamp<int64_t>(choice.index, 0, 1023));
    delta.raw_text = choice.raw_text;
    delta.escaped = true;
    delta.token_ids = choice.token_ids;
    if (delta.finished && open_ > 0) --open_;
    listener_->OnDelta(delta);
  }
  if (chunk_.usage) {
    listener_->OnUsage(
        {chunk_.usage->prompt_tokens, chunk_.usage->completion_tokens, chunk_.usage->cached_tokens,
         chunk_.usage->raw_aisp.empty() ? ServerValues() : ReadNumbers(chunk_.usage->raw_aisp)});
  }
}

std::string StreamReader::Problem() const {
  if (!error_.empty()) return error_;
  if (open_ > 0) return "the stream was truncated: no finish_reason came";
  if (!done_) return "the stream was truncated: no [DONE] came";
  return "";
}

Result<std::unique_ptr<Backend>> MakeHttpBackend(IoLoop* loop, const Options& options,
                                                 const Url& url, const std::string& model,
                                                 const PromptMaker* prompts,
                                                 std::shared_ptr<const TlsDialer> tls) {
  AISP_ASSIGN_OR_RETURN(auto client, SseClient::Create(loop, url.host, url.port, std::move(tls)));
  HttpHeaders headers = {{"Content-Type", "application/json"}, {"Accept", "text/event-stream"}};
  if (!options.api_key.empty()) {
    headers.emplace_back("Authorization", "Bearer " + options.api_key);
  }
  headers.insert(headers.end(), options.headers.begin(), options.headers.end());
  return std::make_unique<HttpBackend>(std::move(client), RequestBodies(options, model),
                                       url.prefix + options.target(), std::move(headers), prompts);
}

}  // namespace aisp::loadgen
