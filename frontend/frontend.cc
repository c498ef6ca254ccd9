#include "frontend/frontend.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "api/messages_encoder.h"
#include "common/strings.h"
#include "common/version.h"
#include "frontend/embedding_answer.h"
#include "frontend/embedding_service.h"
#include "frontend/lora_admin.h"
#include "frontend/messages_service.h"
#include "frontend/responses_service.h"
#include "frontend/text_service.h"

namespace aisp {
namespace {

constexpr std::string_view kModelsPath = "/v1/models";
constexpr std::string_view kResponsesPath = "/v1/responses";

HttpHeaders Json() { return {{"content-type", std::string(kJsonContentType)}}; }

// Anthropic's clients send the key in their own header.
std::string CredentialOf(const HttpRequest& request) {
  const std::string_view authorization = request.Header("authorization");
  const std::string_view key = request.Header("x-api-key");
  if (!authorization.empty() || key.empty()) return std::string(authorization);
  return fmt::format("Bearer {}", key);
}

std::string GoneText(HttpExchange::Gone why) {
  switch (why) {
    case HttpExchange::Gone::kSlowReader:
      return "slow reader";
    case HttpExchange::Gone::kShutdown:
      return "shutdown";
    case HttpExchange::Gone::kClosed:
      break;
  }
  return "closed";
}

}  // namespace

struct Frontend::Verb {
  std::string_view method;
  void (Frontend::*handler)(const std::shared_ptr<HttpExchange>&, const Caller&);
};

struct Frontend::Route {
  std::string_view path;
  enum class Scope : uint8_t { kPath, kPathAndChildren, kChildren } scope;
  std::array<Verb, 2> verbs;  // one per method; the second may be empty

  bool Holds(std::string_view other) const {
    if (other == path) return scope != Scope::kChildren;
    return scope != Scope::kPath && other.size() > path.size() && other.starts_with(path) &&
           other[path.size()] == '/';
  }
};

const Frontend::Route* Frontend::Find(std::string_view path) {
  using enum Route::Scope;
  static constexpr std::array<Route, 17> kRoutes = {{
      {"/v1/chat/completions", kPath, {{{"POST", &Frontend::Chat}}}},
      {"/v1/completions", kPath, {{{"POST", &Frontend::Completions}}}},
      {"/v1/embeddings", kPath, {{{"POST", &Frontend::Embeddings}}}},
      {"/v1/score", kPath, {{{"POST", &Frontend::Score}}}},
      {"/v1/rerank", kPath, {{{"POST", &Frontend::Rerank}}}},
      // Paths that clients of vLLM, Jina and Cohere use for the same endpoints.
      {"/score", kPath, {{{"POST", &Frontend::Score}}}},
      {"/rerank", kPath, {{{"POST", &Frontend::Rerank}}}},
      {"/v2/rerank", kPath, {{{"POST", &Frontend::Rerank}}}},
      {kResponsesPath, kPath, {{{"POST", &Frontend::CreateResponse}}}},
      {"/v1/responses/input_tokens", kPath, {{{"POST", &Frontend::CountResponseTokens}}}},
      {kResponsesPath,
       kChildren,
       {{{"GET", &Frontend::GetResponse}, {"DELETE", &Frontend::DeleteResponse}}}},
      {"/v1/messages", kPath, {{{"POST", &Frontend::CreateMessage}}}},
      {"/v1/messages/count_tokens", kPath, {{{"POST", &Frontend::CountMessageTokens}}}},
      {kModelsPath, kPathAndChildren, {{{"GET", &Frontend::Models}}}},
      {"/tokenize", kPath, {{{"POST", &Frontend::Tokenize}}}},
      {"/detokenize", kPath, {{{"POST", &Frontend::Detokenize}}}},
      {"/version", kPath, {{{"GET", &Frontend::Version}}}},
  }};
  const auto found = std::find_if(kRoutes.begin(), kRoutes.end(),
                                  [path](const Route& route) { return route.Holds(path); });
  return found == kRoutes.end() ? nullptr : &*found;
}

const Frontend::Verb* Frontend::Find(const Route& route, std::string_view method) {
  for (const Verb& verb : route.verbs) {
    if (verb.handler == nullptr) continue;
    if (verb.method == method || (verb.method == "GET" && method == "HEAD")) return &verb;
  }
  return nullptr;
}

bool AnswerAdmin(HttpExchange& exchange, const std::function<Status()>& ready, MetricsPage* metrics,
                 const Clock& clock) {
  const std::string& path = exchange.request().path;
  if (path != "/health" && path != "/ready" && path != "/metrics") return false;
  const std::string& method = exchange.request().method;
  if (method != "GET" && method != "HEAD") {
    AnswerUnknown(exchange, {"GET", "HEAD"});
  } else if (path == "/health") {
    exchange.Respond(200, Json(), R"({"status":"alive"})");
  } else if (path == "/metrics") {
    exchange.Respond(200, {{"content-type", "text/plain; version=0.0.4; charset=utf-8"}},
                     metrics->Text(clock));
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

int AnswerUnknown(HttpExchange& exchange, const std::vector<std::string>& allowed_methods) {
  const HttpRequest& request = exchange.request();
  if (request.path == "*") {  // OPTIONS for the whole server: allowed methods depend on the path
    exchange.Respond(204, {}, "");
    return 204;
  }
  HttpHeaders headers = Json();
  if (IsLoraAdminPath(request.path) && allowed_methods.empty()) {
    exchange.Respond(404, std::move(headers),
                     ErrorBodyFor(request, 404,
                                  fmt::format("'{}' is answered on the admin port alone "
                                              "(router.admin_port)",
                                              request.path)));
    return 404;
  }
  if (allowed_methods.empty()) {
    exchange.Respond(
        404, std::move(headers),
        ErrorBodyFor(request, 404,
                     fmt::format("unknown path '{}'; known: /v1/chat/completions, "
                                 "/v1/completions, /v1/responses, /v1/messages, /v1/embeddings, "
                                 "/v1/score, /v1/rerank, /v1/models, /tokenize, /detokenize, "
                                 "/version, /health, /ready, /metrics",
                                 Excerpt(request.path))));
    return 404;
  }
  const std::string allowed = Join(allowed_methods, ", ");
  headers.emplace_back("allow", allowed + ", OPTIONS");
  if (request.method == "OPTIONS") {
    headers.erase(headers.begin());  // a 204 has no content
    exchange.Respond(204, std::move(headers), "");
    return 204;
  }
  exchange.Respond(
      405, std::move(headers),
      ErrorBodyFor(request, 405,
                   fmt::format("method {} is not allowed on {}; use {}",
                               Excerpt(request.method, 16), Excerpt(request.path), allowed)));
  return 405;
}

HttpIntake Frontend::Intake(const HttpRequest& head) const {
  const Route* route = Find(head.path);
  if (route == nullptr || Find(*route, head.method) == nullptr)
    return {.read_body = false, .party = ""};
  auto tenant = context_->tenants->Authenticate(CredentialOf(head));
  if (!tenant) return {.read_body = false, .party = ""};
  return {.read_body = true, .party = std::move(*tenant)};
}

void Frontend::Handle(const std::shared_ptr<HttpExchange>& exchange) {
  const HttpRequest& request = exchange->request();
  Caller caller{Caller::Surface::kHttp, request.id, "", request.method, "", request.received};
  const Route* route = Find(request.path);
  // Only known paths are logged and counted, since the number of others is unbounded.
  caller.path = route == nullptr ? "other" : std::string(route->path);
  if (AnswerAdmin(
          *exchange, [this] { return context_->router->Ready(); }, &metrics_, *context_->clock)) {
    caller.path = request.path;
    return context_->log->Finished(caller, {}, /*quiet=*/true);
  }
  if (route == nullptr) {
    return Log(caller, AnswerUnknown(*exchange, {}), "unknown path");
  }
  const Verb* verb = Find(*route, request.method);
  if (verb == nullptr) {
    std::vector<std::string> allowed;
    for (const Verb& each : route->verbs) {
      if (each.handler != nullptr) allowed.emplace_back(each.method);
      if (each.handler != nullptr && each.method == "GET") allowed.emplace_back("HEAD");
    }
    return Log(caller, AnswerUnknown(*exchange, allowed));
  }
  auto tenant = context_->tenants->Authenticate(CredentialOf(request));
  if (!tenant) {
    context_->metrics.Count(Rejection::kUnauthenticated);
    return Respond(*exchange, caller, tl::unexpected(tenant.error()));
  }
  caller.tenant = std::move(*tenant);
  (this->*verb->handler)(exchange, caller);
}

void Frontend::Chat(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller) {
  Generate(exchange, caller, [exchange, model = context_->model]() -> ApiResult<PreparedRequest> {
    AISP_ASSIGN_OR_RETURN(auto chat, ParseChat(exchange->request().body, model->limits));
    return Prepare(*model, std::move(chat));
  });
}

void Frontend::Completions(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller) {
  Generate(exchange, caller, [exchange, model = context_->model]() -> ApiResult<PreparedRequest> {
    AISP_ASSIGN_OR_RETURN(auto text, ParseCompletion(exchange->request().body, model->limits));
    return Prepare(*model, std::move(text));
  });
}

void Frontend::Embeddings(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller) {
  Embed(exchange, caller, [exchange, model = context_->model] {
    return PrepareEmbedding(*model, exchange->request().body);
  });
}

void Frontend::Score(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller) {
  Embed(exchange, caller, [exchange, model = context_->model] {
    return PrepareScore(*model, exchange->request().body);
  });
}

void Frontend::Rerank(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller) {
  Embed(exchange, caller, [exchange, model = context_->model] {
    return PrepareRerank(*model, exchange->request().body);
  });
}

void Frontend::CreateResponse(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller) {
  Generate(exchange, caller,
           [exchange, model = context_->model, store = context_->responses,
            tenant = caller.tenant]() -> ApiResult<PreparedRequest> {
             return PrepareResponse(*model, store, tenant, exchange->request().body);
           });
}

void Frontend::GetResponse(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller) {
  if (exchange->request().query.find("stream=true") != std::string::npos) {
    return Respond(*exchange, caller,
                   tl::unexpected(ApiError(Code::kInvalidArgument,
                                           "stream is not supported for a response that is kept; "
                                           "leave it out",
                                           "stream")));
  }
  std::string id = exchange->request().path.substr(kResponsesPath.size() + 1);
  constexpr std::string_view kItems = "/input_items";
  if (id.ends_with(kItems)) {
    id.resize(id.size() - kItems.size());
    // A page of large items costs as much as a large request, so it runs on the pool.
    const auto kept = context_->responses->Find(caller.tenant, id);
    return OnPool(exchange, caller, kept == nullptr ? 0 : kept->bytes,
                  [exchange, store = context_->responses, tenant = caller.tenant, id] {
                    return InputItemsBody(*store, tenant, id, exchange->request().query);
                  });
  }
  Respond(*exchange, caller, StoredResponseBody(*context_->responses, caller.tenant, id));
}

void Frontend::DeleteResponse(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller) {
  const std::string id = exchange->request().path.substr(kResponsesPath.size() + 1);
  Respond(*exchange, caller, aisp::DeleteResponse(*context_->responses, caller.tenant, id));
}

void Frontend::CreateMessage(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller) {
  Generate(exchange, caller, [exchange, model = context_->model] {
    return PrepareMessage(*model, exchange->request().body, exchange->request().id);
  });
}

void Frontend::CountMessageTokens(const std::shared_ptr<HttpExchange>& exchange,
                                  const Caller& caller) {
  OnPool(exchange, caller, exchange->request().body.size(), [exchange, model = context_->model] {
    return CountTokens(*model, exchange->request().body);
  });
}

void Frontend::CountResponseTokens(const std::shared_ptr<HttpExchange>& exchange,
                                   const Caller& caller) {
  OnPool(exchange, caller, exchange->request().body.size(),
         [exchange, model = context_->model, store = context_->responses, tenant = caller.tenant] {
           return CountInputTokens(*model, *store, tenant, exchange->request().body);
         });
}

void Frontend::Generate(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller,
                        std::function<ApiResult<PreparedRequest>()> prepare) {
  StartJob(exchange, caller, std::move(prepare),
           std::make_unique<HttpTextAnswer>(context_, exchange,
                                            context_->tenants->ShareOf(caller.tenant, 0)));
}

void Frontend::Embed(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller,
                     std::function<ApiResult<PreparedRequest>()> prepare) {
  StartJob(exchange, caller, std::move(prepare),
           std::make_unique<EmbeddingAnswer>(context_, exchange));
}

void Frontend::StartJob(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller,
                        std::function<ApiResult<PreparedRequest>()> prepare,
                        std::unique_ptr<AnswerSink> sink) {
  const HttpRequest& request = exchange->request();
  auto timeout = ParseTimeoutHeader(request.Header("x-request-timeout"), context_->model->limits);
  if (!timeout) return Respond(*exchange, caller, tl::unexpected(timeout.error()));
  auto objective = ObjectiveOf([&](std::string_view name) { return request.Header(name); });
  if (!objective) return Respond(*exchange, caller, tl::unexpected(objective.error()));
  auto service_class = ParseClassHeader(request.Header("x-aisp-class"));
  if (!service_class) return Respond(*exchange, caller, tl::unexpected(service_class.error()));
  auto key = ParseIdempotencyKey(request.Header("idempotency-key"));
  if (!key) return Respond(*exchange, caller, tl::unexpected(key.error()));
  GenerationJob::Request job{
      caller,
      *timeout,
      PrefillPreferenceOf(request.Header("x-aisp-prefill")),
      *objective,
      *service_class,
      std::move(*key),
      /*content=*/{},
      request.body.size(),
      {std::string(request.Header("traceparent")), std::string(request.Header("tracestate"))},
      std::move(prepare)};
  if (!job.idempotency_key.empty())
    job.content = HashBytes(fmt::format("{} {}", request.path, request.body));
  const auto started = GenerationJob::Start(context_, std::move(job), std::move(sink));
  exchange->OnDisconnect([weak = std::weak_ptr(started)](HttpExchange::Gone why) {
    if (const auto alive = weak.lock()) alive->Abandon(GoneText(why));
  });
}

void Frontend::Tokenize(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller) {
  OnPool(exchange, caller, exchange->request().body.size(),
         [exchange, model = context_->model]() -> ApiResult<std::string> {
           AISP_ASSIGN_OR_RETURN(const TokenizeRequest request,
                                 ParseTokenize(exchange->request().body, model->limits));
           AISP_ASSIGN_OR_RETURN(const Tokenized out, aisp::Tokenize(*model, request));
           return TokenizeResponse(out.tokens, model->max_model_len, out.pieces);
         });
}

void Frontend::Detokenize(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller) {
  OnPool(exchange, caller, exchange->request().body.size(),
         [exchange, model = context_->model]() -> ApiResult<std::string> {
           AISP_ASSIGN_OR_RETURN(const DetokenizeRequest request,
                                 ParseDetokenize(exchange->request().body, model->limits));
           AISP_ASSIGN_OR_RETURN(const std::string text, aisp::Detokenize(*model, request));
           return DetokenizeResponse(text);
         });
}

void Frontend::Models(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller) {
  const TextModel& model = *context_->model;
  std::vector<ModelInfo> all{{model.name, context_->started_unix_s, model.max_model_len}};
  for (const std::string& adapter : model.adapters->Names())
    all.push_back({adapter, context_->started_unix_s, model.max_model_len, model.name});
  const std::string& path = exchange->request().path;
  const bool messages = !exchange->request().Header("anthropic-version").empty();
  if (path == kModelsPath)
    return Respond(*exchange, caller, messages ? MessagesModelList(all) : ModelList(all));
  const std::string name = path.substr(kModelsPath.size() + 1);
  if (auto known = model.CheckName(name); !known) {
    return Respond(*exchange, caller, tl::unexpected(known.error()));
  }
  if (name.empty()) {
    return Respond(*exchange, caller,
                   tl::unexpected(ApiError(Code::kNotFound, "no model is named ''", "model",
                                           "model_not_found")));
  }
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const ModelInfo& each) { return each.id == name; });
  Respond(*exchange, caller, messages ? MessagesModel(*found) : ModelObject(*found));
}

void Frontend::Version(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller) {
  Respond(*exchange, caller, fmt::format(R"({{"version":"{}"}})", aisp::Version()));
}

void Frontend::OnPool(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller,
                      size_t bytes, std::function<ApiResult<std::string>()> work) {
  // It counts against the tenant's requests in flight, as any request.
  auto entered = context_->tenants->Enter(caller.tenant, context_->clock->Now());
  if (!entered) {
    const auto& [error, retry_after] = entered.error();
    return Log(caller, RespondError(*exchange, error, retry_after), error.message);
  }
  auto slot = std::make_shared<Tenants::Slot>(std::move(*entered));
  const auto turn =
      std::make_shared<PoolTurn>(context_->clock, caller.received + context_->default_timeout);
  exchange->OnDisconnect([turn](HttpExchange::Gone) { turn->Abandon(); });
  // The pool may outlive this object, but the loop then runs nothing that we posted.
  EventLoop* const loop = context_->loop;
  const bool taken = context_->pool->TrySubmit(
      bytes,
      [this, loop, exchange, caller, slot, turn, work = std::move(work)]() mutable {
        const ApiResult<void> wanted = turn->Check();
        ApiResult<std::string> body = wanted ? work() : tl::unexpected(wanted.error());
        loop->Post(
            [this, exchange, caller, slot = std::move(slot), body = std::move(body)]() mutable {
              Respond(*exchange, caller, std::move(body));
            });
      },
      context_->tenants->ShareOf(caller.tenant, 0));
  if (taken) return;
  context_->metrics.Count(Rejection::kTokenizerQueue);
  Respond(*exchange, caller,
          tl::unexpected(ApiError(Code::kResourceExhausted,
                                  "too many requests are being tokenized; try again shortly")));
}

void Frontend::Respond(HttpExchange& exchange, const Caller& caller, ApiResult<std::string> body) {
  if (!body) {
    const int status = RespondError(exchange, body.error());
    return Log(caller, status, body.error().message);
  }
  exchange.Respond(200, Json(), std::move(*body));
  Log(caller, 200);
}

void Frontend::Log(const Caller& caller, int status, std::string_view error) {
  Outcome outcome;
  outcome.http_status = status;
  outcome.error = std::string(error);
  context_->log->Finished(caller, outcome);
}

}  // namespace aisp
