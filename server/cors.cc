#include "server/cors.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/strings.h"

namespace aisp {
namespace {

constexpr const char* kMethods = "GET, HEAD, POST, DELETE";
constexpr const char* kRequestHeaders =
    "authorization, content-type, x-api-key, anthropic-version, x-request-id, x-request-timeout, "
    "x-aisp-prefill, x-aisp-class, x-aisp-event-ids, x-slo-ttft-ms, x-slo-tpot-ms, "
    "x-llm-d-slo-ttft-ms, x-llm-d-slo-tpot-ms, idempotency-key, traceparent, "
    // Headers that the browser clients of OpenAI and Anthropic add to every request.
    "anthropic-beta, anthropic-dangerous-direct-browser-access, openai-organization, "
    "openai-project, x-stainless-arch, x-stainless-helper, x-stainless-helper-method, "
    "x-stainless-lang, x-stainless-os, x-stainless-package-version, x-stainless-retry-count, "
    "x-stainless-runtime, x-stainless-runtime-version, x-stainless-timeout";
constexpr const char* kAnswerHeaders =
    "x-request-id, request-id, x-aisp-route, x-aisp-ignored, retry-after";
constexpr const char* kPreflightAgeS = "600";

// Adds headers to every answer.
class CorsExchange final : public HttpExchange {
 public:
  CorsExchange(std::shared_ptr<HttpExchange> inner, std::string origin)
      : inner_(std::move(inner)), origin_(std::move(origin)) {}

  const HttpRequest& request() const override { return inner_->request(); }
  void Respond(int status, HttpHeaders headers, std::string body) override {
    inner_->Respond(status, With(std::move(headers)), std::move(body));
  }
  void BeginStream(int status, HttpHeaders headers) override {
    inner_->BeginStream(status, With(std::move(headers)));
  }
  void Write(std::string_view bytes) override { inner_->Write(bytes); }
  void End() override { inner_->End(); }
  size_t unsent_bytes() const override { return inner_->unsent_bytes(); }
  bool alive() const override { return inner_->alive(); }
  void OnDisconnect(std::function<void(Gone)> handler) override {
    inner_->OnDisconnect(std::move(handler));
  }

 private:
  HttpHeaders With(HttpHeaders headers) const {
    headers.emplace_back("access-control-allow-origin", origin_);
    headers.emplace_back("access-control-expose-headers", kAnswerHeaders);
    headers.emplace_back("vary", "origin");
    return headers;
  }

  const std::shared_ptr<HttpExchange> inner_;
  const std::string origin_;
};

}  // namespace

Result<Cors> Cors::Create(std::vector<std::string> origins) {
  for (const std::string& origin : origins) {
    const size_t scheme = origin.find("://");
    const bool plain = scheme != std::string::npos && scheme > 0 &&
                       origin.find('/', scheme + 3) == std::string::npos &&
                       origin.size() > scheme + 3;
    if (origin == "*" || plain) continue;
    return InvalidArgument(fmt::format(
        "http.cors_origins (--cors-origins): '{}' is no origin; write https://example.org, without "
        "a path, or *",
        Excerpt(origin)));
  }
  Cors cors;
  cors.origins_ = std::move(origins);
  return cors;
}

std::string Cors::AllowedOrigin(std::string_view origin) const {
  if (origin.empty()) return "";
  for (const std::string& known : origins_) {
    if (known == "*") return "*";
    if (EqualsIgnoreCaseAscii(known, origin)) return std::string(origin);
  }
  return "";
}

std::shared_ptr<HttpExchange> Cors::Admit(std::shared_ptr<HttpExchange> exchange) const {
  const HttpRequest& request = exchange->request();
  const std::string origin = AllowedOrigin(request.Header("origin"));
  // Admin calls are never accepted from web pages.
  if (origin.empty() || request.path.starts_with("/admin")) return exchange;
  auto wrapped = std::make_shared<CorsExchange>(std::move(exchange), origin);
  const bool preflight =
      request.method == "OPTIONS" && !request.Header("access-control-request-method").empty();
  if (!preflight) return wrapped;
  wrapped->Respond(204,
                   {{"access-control-allow-methods", kMethods},
                    {"access-control-allow-headers", kRequestHeaders},
                    {"access-control-max-age", kPreflightAgeS}},
                   "");
  return nullptr;
}

}  // namespace aisp
