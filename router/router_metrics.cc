#include "router/router_metrics.h"

namespace aisp {
namespace {

constexpr std::array<const char*, 5> kStatusNames = {"ok", "error", "deadline", "cancelled",
                                                     "refused"};

MetricLabels With(MetricLabels labels, const char* name, std::string value) {
  labels.emplace_back(name, std::move(value));
  return labels;
}

}  // namespace

RouterMetrics::RouterMetrics(Metrics* m, const std::string& model)
    : metrics_(m), labels_({{"role", "router"}, {"model", model}}) {
  if (m == nullptr) return;
  for (size_t i = 0; i < kStatusNames.size(); ++i) {
    requests_[i] = m->AddCounter("aisp_requests_total", "Requests by how they ended at the router",
                                 With(labels_, "status", kStatusNames[i]));
  }
  for (RouteReason reason : kRouteReasons) {
    routes_[static_cast<size_t>(reason)] =
        m->AddCounter("aisp_route_decisions_total", "Placements by reason",
                      With(labels_, "reason", std::string(RouteReasonName(reason))));
  }
  const char* success = "aisp_request_success_total";
  const char* success_help = "Requests that ended normally, by finish reason";
  finished_stop = m->AddCounter(success, success_help, With(labels_, "finished_reason", "stop"));
  finished_length =
      m->AddCounter(success, success_help, With(labels_, "finished_reason", "length"));

  active = m->AddGauge("aisp_active_requests", "Requests submitted and not finished", labels_);
  pending = m->AddGauge("aisp_pending_takeovers",
                        "Requests that wait for a worker after theirs was lost", labels_);
  const char* workers = "aisp_router_workers";
  const char* workers_help = "Registered workers";
  prefill_workers = m->AddGauge(workers, workers_help, With(labels_, "worker_role", "prefill"));
  decode_workers = m->AddGauge(workers, workers_help, With(labels_, "worker_role", "decode"));

  prompt_tokens =
      m->AddCounter("aisp_prompt_tokens_total", "Prompt tokens of accepted requests", labels_);
  generation_tokens =
      m->AddCounter("aisp_generation_tokens_total", "Tokens given to clients", labels_);
  moves = m->AddCounter("aisp_request_moves_total",
                        "Requests placed on another decode worker because theirs drains", labels_);
  takeovers = m->AddCounter("aisp_takeovers_total",
                            "Requests moved off a lost or refusing decode worker", labels_);
  cancelled = m->AddCounter("aisp_cancelled_requests_total", "Requests cancelled before their end",
                            labels_);
  registrations_refused =
      m->AddCounter("aisp_registrations_refused_total", "Workers that did not fit", labels_);
  const char* forgotten = "aisp_workers_forgotten_total";
  const char* forgotten_help = "Workers dropped by the router, by cause";
  forgotten_link = m->AddCounter(forgotten, forgotten_help, With(labels_, "cause", "link"));
  forgotten_silent = m->AddCounter(forgotten, forgotten_help, With(labels_, "cause", "silent"));
  forgotten_replaced = m->AddCounter(forgotten, forgotten_help, With(labels_, "cause", "replaced"));
  forgotten_fault = m->AddCounter(forgotten, forgotten_help, With(labels_, "cause", "fault"));

  looked_up_tokens_ =
      m->AddCounter("aisp_router_lookup_tokens_total", "Tokens of placed requests", labels_);
  cached_tokens_ =
      m->AddCounter("aisp_router_cached_tokens_total",
                    "Of them, expected in the prefix cache where they are computed", labels_);
  hit_rate_ =
      m->AddGauge("aisp_router_kv_hit_rate", "Cached over looked up tokens since start", labels_);
  prefix_gaps =
      m->AddCounter("aisp_router_prefix_gaps_total", "Gaps seen in workers' KV events", labels_);
  prefix_snapshots_asked = m->AddCounter("aisp_router_prefix_snapshots_asked_total",
                                         "KV snapshots asked of workers", labels_);
  prefix_units_dropped = m->AddCounter("aisp_router_prefix_units_dropped_total",
                                       "KV units not remembered because the view is full", labels_);

  ttft_s = m->AddHistogram("aisp_time_to_first_token_seconds", "Submit to first token",
                           LatencyBuckets(), labels_);
  tpot_s = m->AddHistogram("aisp_request_time_per_output_token_seconds",
                           "(last token - first token) / (tokens - 1) of one request",
                           StepBuckets(), labels_);
  itl_s = m->AddHistogram("aisp_inter_token_latency_seconds",
                          "Between two token messages of one request", StepBuckets(), labels_);
  e2e_s = m->AddHistogram("aisp_e2e_request_latency_seconds", "Submit to finish", LatencyBuckets(),
                          labels_);
  ttft_error_s = m->AddHistogram("aisp_router_ttft_prediction_error_seconds",
                                 "|predicted - measured| TTFT", StepBuckets(), labels_);
}

void RouterMetrics::CountPrefix(int64_t prompt_tokens_looked_up, int64_t cached_tokens) {
  looked_up_ += static_cast<double>(prompt_tokens_looked_up);
  cached_ += static_cast<double>(cached_tokens);
  looked_up_tokens_.Add(static_cast<double>(prompt_tokens_looked_up));
  cached_tokens_.Add(static_cast<double>(cached_tokens));
  if (looked_up_ > 0) hit_rate_.Set(cached_ / looked_up_);
}

void RouterMetrics::SetBlind(const std::string& worker, bool blind) {
  if (metrics_ == nullptr) return;
  metrics_
      ->AddGauge("aisp_router_prefix_view_blind",
                 "1 while the router does not know the worker's prefix cache",
                 With(labels_, "worker", worker))
      .Set(blind ? 1 : 0);
}

void RouterMetrics::RemoveWorker(const std::string& worker) {
  if (metrics_ != nullptr) metrics_->Remove("aisp_router_prefix_view_blind", {{"worker", worker}});
}

}  // namespace aisp
