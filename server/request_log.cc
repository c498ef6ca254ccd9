#include "server/request_log.h"

#include "common/log.h"

namespace aisp {

void RequestLog::Finished(const Caller& caller, const Outcome& outcome, bool quiet) {
  const bool http = caller.surface == Caller::Surface::kHttp;
  const std::string status =
      http ? std::to_string(outcome.http_status) : std::string(CodeName(outcome.code));
  if (!quiet) CounterOf(caller, status).Add();
  Log(quiet ? LogLevel::kDebug : LogLevel::kInfo, "request answered",
      {{"request", caller.request_id},
       {"method", http ? caller.method : "gRPC"},
       {"path", caller.path},
       {"status", status},
       {"tenant", caller.tenant},
       {"prompt_tokens", outcome.prompt_tokens},
       {"cached_tokens", outcome.cached_tokens},
       {"completion_tokens", outcome.completion_tokens},
       {"ttft_ms", outcome.ttft ? ToMs(*outcome.ttft) : 0.0},
       {"duration_ms", ToMs(clock_->Now() - caller.received)},
       {"route", outcome.route},
       {"error", outcome.error}});
}

Counter& RequestLog::CounterOf(const Caller& caller, const std::string& status) {
  auto [it, added] = counters_.try_emplace({caller.path, status});
  if (added && caller.surface == Caller::Surface::kHttp) {
    it->second = metrics_->AddCounter("aisp_http_requests_total",
                                      "Answered requests by path and HTTP status.",
                                      {{"path", caller.path}, {"code", status}});
  } else if (added) {
    it->second = metrics_->AddCounter("aisp_grpc_requests_total",
                                      "Answered gRPC calls of clients by method and code.",
                                      {{"method", caller.path}, {"code", status}});
  }
  return it->second;
}

}  // namespace aisp
