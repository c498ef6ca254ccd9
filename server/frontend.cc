#include "server/frontend.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "common/strings.h"

namespace aisp {
namespace {

constexpr std::string_view kChatPath = "/v1/chat/completions";
constexpr std::string_view kCompletionsPath = "/v1/completions";
constexpr std::string_view kModelsPath = "/v1/models";

int64_t UnixTimeS() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

HttpHeaders Json() { return {{"content-type", std::string(kJsonContentType)}}; }

bool IsTraceChar(char c) { return c > 0x20 && c < 0x7F; }

}  // namespace

bool AnswerAdmin(HttpExchange& exchange, const std::function<Status()>& ready,
                 const Metrics& metrics) {
  const std::string& path = exchange.request().path;
  if (path != "/health" && path != "/ready" && path != "/metrics") return false;
  const std::string& method = exchange.request().method;
  if (method != "GET" && method != "HEAD") {
    AnswerUnknown(exchange, {"GET", "HEAD"});
  } else if (path == "/health") {
    exchange.Respond(200, Json(), R"({"status":"alive"})");
  } else if (path == "/metrics") {
    exchange.Respond(200, {{"content-type", "text/plain; version=0.0.4; charset=utf-8"}},
                     metrics.Render());
  } else if (const Status status = ready(); status) {
    exchange.Respond(200, Json(), R"({"status":"ready"})");
  } else {
    std::string reason;
    AppendJsonString(status.error().message, &reason);
    HttpHeaders headers = Json();
    headers.emplace_back("retry-after", "1");
    exchange.Respond(503, std::move(headers),
                     fmt::format(R"({{"status":"not ready","reason":{}}})", reason));
  }
  return true;
}

void AnswerUnknown(HttpExchange& exchange, const std::vector<std::string>& allowed_methods) {
  const HttpRequest& request = exchange.request();
  HttpHeaders headers = Json();
  if (allowed_methods.empty()) {
    exchange.Respond(
        404, std::move(headers),
        ErrorBody(404,
                  fmt::format("unknown path '{}'; known: {}, {}, {}, /health, /ready, /metrics",
                              Excerpt(request.path), kChatPath, kCompletionsPath, kModelsPath)));
    return;
  }
  const std::string allowed = Join(allowed_methods, ", ");
  headers.emplace_back("allow", allowed);
  exchange.Respond(
      405, std::move(headers),
      ErrorBody(405, fmt::format("method {} is not allowed on {}; use {}",
                                 Excerpt(request.method, 16), Excerpt(request.path), allowed)));
}

Frontend::Frontend(const Deps& deps)
    : deps_(deps), random_(deps.seed), started_unix_s_(UnixTimeS()) {
  context_.model = deps.model;
  context_.router = deps.router;
  context_.pool = deps.pool;
  context_.loop = deps.loop;
  context_.clock = deps.clock;
  context_.keepalive_comment = deps.keepalive_comment;
  context_.unix_time_s = UnixTimeS;
  context_.count_request = [this](Endpoint endpoint, int status) { Count(endpoint, status); };
  const MetricLabels labels{{"role", "router"}, {"model", deps.model->name}};
  context_.disconnected =
      deps.metrics->AddCounter("aisp_disconnected_clients_total",
                               "Clients that went away before their answer was complete.", labels);
}

void Frontend::Handle(std::shared_ptr<HttpExchange> exchange) {
  if (AnswerAdmin(
          *exchange, [this] { return deps_.router->Ready(); }, *deps_.metrics))
    return;
  const HttpRequest& request = exchange->request();
  const bool chat = request.path == kChatPath;
  if (chat || request.path == kCompletionsPath) {
    if (request.method != "POST") return AnswerUnknown(*exchange, {"POST"});
    std::string trace_id = TraceIdOf(request);
    return GenerationJob::Start(&context_, std::move(exchange),
                                chat ? Endpoint::kChat : Endpoint::kCompletions,
                                std::move(trace_id));
  }
  if (request.path == kModelsPath || request.path.starts_with(fmt::format("{}/", kModelsPath))) {
    if (request.method != "GET" && request.method != "HEAD")
      return AnswerUnknown(*exchange, {"GET", "HEAD"});
    return AnswerModels(*exchange);
  }
  AnswerUnknown(*exchange, {});
}

void Frontend::AnswerModels(HttpExchange& exchange) {
  const ModelInfo info{deps_.model->name, started_unix_s_, deps_.model->max_model_len};
  const std::string& path = exchange.request().path;
  if (path == kModelsPath) return exchange.Respond(200, Json(), ModelList({&info, 1}));
  const std::string name = path.substr(kModelsPath.size() + 1);
  if (auto known = deps_.model->CheckName(name); !known || name.empty()) {
    const ApiError error =
        known ? ApiError(Code::kNotFound, "no model is named ''", "model") : known.error();
    return exchange.Respond(404, Json(), ErrorBody(error));
  }
  exchange.Respond(200, Json(), ModelObject(info));
}

std::string Frontend::TraceIdOf(const HttpRequest& request) {
  const std::string_view given = request.Header("x-request-id");
  if (!given.empty() && given.size() <= 128 &&
      std::all_of(given.begin(), given.end(), IsTraceChar)) {
    return std::string(given);
  }
  return fmt::format("{:016x}{:016x}", random_.Next(), random_.Next());
}

void Frontend::Count(Endpoint endpoint, int status) {
  const std::string path(endpoint == Endpoint::kChat ? kChatPath : kCompletionsPath);
  auto [it, added] = counters_.try_emplace({path, status});
  if (added) {
    it->second = deps_.metrics->AddCounter("aisp_http_requests_total",
                                           "Answered requests by path and HTTP status.",
                                           {{"path", path}, {"code", std::to_string(status)}});
  }
  it->second.Add();
}

}  // namespace aisp
