#include "frontend/request_log.h"

#include "common/log.h"

namespace aisp {
namespace {

double NsToMs(int64_t ns) { return static_cast<double>(ns) * 1e-6; }

std::string StatusOf(const Caller& caller, const Outcome& outcome) {
  return caller.surface == Caller::Surface::kHttp ? std::to_string(outcome.http_status)
                                                  : std::string(CodeName(outcome.code));
}

}  // namespace

void RequestLog::Finished(const Caller& caller, const Outcome& outcome, bool quiet) {
  if (!quiet) CounterOf(caller, StatusOf(caller, outcome)).Add();
  const LogLevel level = quiet ? LogLevel::kDebug : LogLevel::kInfo;
  if (!LogEnabled(level)) return;
  if (outcome.usage != nullptr) return LogText(level, caller, outcome, *outcome.usage);
  Log(level, "request answered",
      {{"request", caller.request_id},
       {"method", caller.surface == Caller::Surface::kHttp ? caller.method : "gRPC"},
       {"path", caller.path},
       {"status", StatusOf(caller, outcome)},
       {"tenant", caller.tenant},
       {"duration_ms", ToMs(clock_->Now() - caller.received)},
       {"error", outcome.error}});
}

void RequestLog::LogText(LogLevel level, const Caller& caller, const Outcome& outcome,
                         const AnswerUsage& usage) const {
  const v1::Timing& t = usage.timing;
  Log(level, "request answered",
      {{"request", caller.request_id},
       {"trace", outcome.trace_id},
       {"method", caller.surface == Caller::Surface::kHttp ? caller.method : "gRPC"},
       {"path", caller.path},
       {"status", StatusOf(caller, outcome)},
       {"tenant", caller.tenant},
       {"choices", outcome.choices},
       {"prompt_tokens", usage.prompt_tokens},
       {"cached_tokens", usage.cached_tokens},
       {"completion_tokens", usage.completion_tokens},
       {"ttft_ms", outcome.ttft ? ToMs(*outcome.ttft) : 0.0},
       {"frontend_ms", usage.frontend_ms},
       {"queue_ms", NsToMs(t.queue_ns())},
       {"prefill_ms", NsToMs(t.prefill_ns())},
       {"transfer_ms", NsToMs(t.transfer_ns())},
       {"first_decode_ms", NsToMs(t.first_decode_ns())},
       {"duration_ms", ToMs(clock_->Now() - caller.received)},
       {"kv_blocks_moved", t.kv_blocks_moved()},
       {"kv_transport", t.kv_transport()},
       {"preemptions", usage.preemptions},
       {"route", usage.route},
       {"route_taken", usage.route_taken},
       {"fallback", usage.fallback},
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
