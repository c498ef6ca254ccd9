// Frontend: which path of the HTTP surface is answered by whom. Completions become GenerationJobs; models, health, readiness and
// metrics are answered here; everything else gets OpenAI-shaped 404 and 405.
// The I/O thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/metrics.h"
#include "common/random.h"
#include "server/generation_job.h"

namespace aisp {

// Answers GET /health, /ready and /metrics; the whole surface of a worker, and a part of the router's. False when the path is not
// one of them.
bool AnswerAdmin(HttpExchange& exchange, const std::function<Status()>& ready,
                 const Metrics& metrics);

// 404 for an unknown path, 405 for a known one with a wrong method.
void AnswerUnknown(HttpExchange& exchange, const std::vector<std::string>& allowed_methods);

class Frontend {
 public:
  struct Deps {
    const ServedModel* model = nullptr;
    Router* router = nullptr;
    WorkPool* pool = nullptr;
    IoLoop* loop = nullptr;
    const Clock* clock = nullptr;
    Metrics* metrics = nullptr;
    Duration keepalive_comment{};
    uint64_t seed = 0;  // for request ids
  };
  explicit Frontend(const Deps& deps);
  void Handle(std::shared_ptr<HttpExchange> exchange);

 private:
  // The client's x-request-id when it is a sensible one, else a new one.
  std::string TraceIdOf(const HttpRequest& request);
  void AnswerModels(HttpExchange& exchange);
  void Count(Endpoint endpoint, int status);

  const Deps deps_;
  FrontendContext context_;
  SplitMix64 random_;
  int64_t started_unix_s_;
  std::map<std::pair<std::string, int>, Counter> counters_;
};

}  // namespace aisp
