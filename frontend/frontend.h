// Frontend: routes the paths of the HTTP surface. Text requests become GenerationJobs; tokenizing
// runs on the pool; models, version, health, readiness and metrics are answered here; everything
// else gets OpenAI-shaped 401, 404 and 405. The I/O thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/metrics.h"
#include "frontend/http_answer.h"
#include "frontend/metrics_page.h"

namespace aisp {

// Answers GET /health, /ready and /metrics: all paths of a worker, and some of the router's. False
// for any other path.
bool AnswerAdmin(HttpExchange& exchange, const std::function<Status()>& ready, MetricsPage* metrics,
                 const Clock& clock);

// 404 for an unknown path, 405 for a known path with a wrong method, 204 for OPTIONS. Returns the
// status.
int AnswerUnknown(HttpExchange& exchange, const std::vector<std::string>& allowed_methods);

class Frontend {
 public:
  Frontend(FrontendContext* context, Metrics* metrics) : context_(context), metrics_(metrics) {}
  void Handle(const std::shared_ptr<HttpExchange>& exchange);
  // Decides from the request's head: finds the tenant, and refuses bad paths and keys before any
  // body is read.
  HttpIntake Intake(const HttpRequest& head) const;

 private:
  struct Route;
  struct Verb;
  // Null for an unknown path.
  static const Route* Find(std::string_view path);
  // Null when the path does not support the method.
  static const Verb* Find(const Route& route, std::string_view method);

  // `prepare` runs on the pool.
  void Generate(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller,
                std::function<ApiResult<PreparedRequest>()> prepare);
  // The same for requests answered through prepared.vectors.
  void Embed(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller,
             std::function<ApiResult<PreparedRequest>()> prepare);
  void StartJob(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller,
                std::function<ApiResult<PreparedRequest>()> prepare,
                std::unique_ptr<AnswerSink> sink);
  void Chat(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller);
  void Completions(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller);
  void Embeddings(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller);
  void Score(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller);
  void Rerank(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller);
  void CreateResponse(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller);
  void GetResponse(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller);
  void DeleteResponse(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller);
  void CreateMessage(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller);
  void CountMessageTokens(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller);
  void CountResponseTokens(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller);
  void Tokenize(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller);
  void Detokenize(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller);
  void Models(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller);
  void Version(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller);

  // Runs `work`, which produces the answer's body, on the pool. `bytes`: its estimated cost.
  void OnPool(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller, size_t bytes,
              std::function<ApiResult<std::string>()> work);
  void Respond(HttpExchange& exchange, const Caller& caller, ApiResult<std::string> body);
  void Log(const Caller& caller, int status, std::string_view error = {});

  FrontendContext* const context_;
  MetricsPage metrics_;
};

}  // namespace aisp
