// Frontend: which path of the HTTP surface is answered by whom. Requests for text become
// GenerationJobs; tokenizing goes to the pool; models, version, health, readiness and metrics are
// answered here; everything else gets OpenAI-shaped 401, 404 and 405. The I/O thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/metrics.h"
#include "frontend/http_answer.h"
#include "frontend/metrics_page.h"

namespace aisp {

// Answers GET /health, /ready and /metrics; the whole surface of a worker, and a part of the
// router's. False when the path is not one of them.
bool AnswerAdmin(HttpExchange& exchange, const std::function<Status()>& ready, MetricsPage* metrics,
                 const Clock& clock);

// 404 for an unknown path, 405 for a known one with a wrong method; 204 for OPTIONS. Returns the
// status.
int AnswerUnknown(HttpExchange& exchange, const std::vector<std::string>& allowed_methods);

class Frontend {
 public:
  Frontend(FrontendContext* context, Metrics* metrics) : context_(context), metrics_(metrics) {}
  void Handle(const std::shared_ptr<HttpExchange>& exchange);
  // By its head: whose request it is, and that nobody's body is read for a path or a key that is
  // refused anyway.
  HttpIntake Intake(const HttpRequest& head) const;

 private:
  struct Route;
  struct Verb;
  // Null when the path is none of ours.
  static const Route* Find(std::string_view path);
  // Null when the path knows no such method.
  static const Verb* Find(const Route& route, std::string_view method);

  // `prepare` runs on the pool.
  void Generate(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller,
                std::function<ApiResult<PreparedRequest>()> prepare);
  // The same, answered through prepared.vectors.
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

  // Runs `work`, which makes the body of the answer, on the pool.
  // `bytes`: how much work it is.
  void OnPool(const std::shared_ptr<HttpExchange>& exchange, const Caller& caller, size_t bytes,
              std::function<ApiResult<std::string>()> work);
  void Respond(HttpExchange& exchange, const Caller& caller, ApiResult<std::string> body);
  void Log(const Caller& caller, int status, std::string_view error = {});

  FrontendContext* const context_;
  MetricsPage metrics_;
};

}  // namespace aisp
