#include "router/router_metrics.h"

#include <algorithm>
#include <string>

#include "router/policy.h"

namespace aisp {
namespace {

constexpr std::array<const char*, 5> kStatusNames = {"ok", "error", "deadline", "cancelled",
                                                     "refused"};

constexpr const char* kRejectedMetric = "aisp_requests_rejected_total";
constexpr const char* kRejectedHelp = "Requests refused before they were placed, by reason";

MetricLabels With(MetricLabels labels, const char* name, std::string value) {
  labels.emplace_back(name, std::move(value));
  return labels;
}

}  // namespace

RouterMetrics::RouterMetrics(Metrics* m, const std::string& model,
                             std::span<const std::string_view> route_reasons)
    : metrics_(m), labels_({{"role", "router"}, {"model", model}}) {
  if (m == nullptr) return;
  const auto add_reason = [&](std::string_view reason) {
    routes_[reason] = m->AddCounter("aisp_route_decisions_total", "Placements by reason",
                                    With(labels_, "reason", std::string(reason)));
  };
  for (const std::string_view reason : route_reasons) add_reason(reason);
  add_reason(route_reason::kRepeat);
  for (size_t i = 0; i < pulls_.size(); ++i) {
    pulls_[i] = m->AddCounter("aisp_router_pull_decisions_total",
                              "Placements by what was made of what other workers have cached",
                              With(labels_, "decision", std::string(kPullVerdicts[i])));
  }
  AddRequestMetrics(m);
  AddClassMetrics(m);
  AddWorkerMetrics(m);
  AddLatencyMetrics(m);
}

void RouterMetrics::AddRequestMetrics(Metrics* m) {
  for (size_t i = 0; i < kStatusNames.size(); ++i) {
    requests_[i] = m->AddCounter("aisp_requests_total", "Requests by how they ended at the router",
                                 With(labels_, "status", kStatusNames[i]));
  }
  const char* success = "aisp_request_success_total";
  const char* success_help = "Requests that ended normally, by finish reason";
  finished_stop = m->AddCounter(success, success_help, With(labels_, "finished_reason", "stop"));
  finished_length =
      m->AddCounter(success, success_help, With(labels_, "finished_reason", "length"));
  const auto rejected = [&](const char* reason) {
    return m->AddCounter(kRejectedMetric, kRejectedHelp, With(labels_, "reason", reason));
  };
  rejected_prompt = rejected("prompt");
  rejected_inflight = rejected("max_inflight");
  rejected_no_worker = rejected("no_worker");
  rejected_objective = rejected("objective");
  rejected_link = rejected("link");
  rejected_share = rejected("tenant_share");
  rejected_queue = rejected("max_queued");
  rejected_poison = rejected("poison");

  active = m->AddGauge("aisp_active_requests", "Requests submitted and not finished", labels_);
  pending = m->AddGauge("aisp_pending_takeovers",
                        "Requests that wait for a worker after theirs was lost", labels_);
  prompt_tokens =
      m->AddCounter("aisp_prompt_tokens_total", "Prompt tokens of accepted requests", labels_);
  generation_tokens =
      m->AddCounter("aisp_generation_tokens_total", "Tokens given to clients", labels_);
  kept_answers = m->AddGauge("aisp_router_kept_answers",
                             "Answers under an idempotency-key that decode workers keep", labels_);
  moves =
      m->AddCounter("aisp_request_moves_total",
                    "Requests placed on another worker because theirs drains or is quiet", labels_);
  quiet = m->AddCounter("aisp_router_quiet_workers_total",
                        "Times a worker said nothing for router.quiet_limit", labels_);
  poison = m->AddCounter("aisp_poison_requests_total",
                         "Requests refused because workers ended when they computed them", labels_);
  takeovers = m->AddCounter("aisp_takeovers_total",
                            "Requests moved off a lost or refusing decode worker", labels_);
  cancelled = m->AddCounter("aisp_cancelled_requests_total", "Requests cancelled before their end",
                            labels_);
}

void RouterMetrics::AddClassMetrics(Metrics* m) {
  for (size_t c = 0; c < classes_.size(); ++c) {
    PerClass& of = classes_[c];
    const MetricLabels labels = With(labels_, "class", std::string(kServiceClassNames[c]));
    for (size_t i = 0; i < kStatusNames.size(); ++i) {
      of.requests[i] =
          m->AddCounter("aisp_class_requests_total", "Requests by class and by how they ended",
                        With(labels, "status", kStatusNames[i]));
    }
    of.ttft_s = m->AddHistogram("aisp_class_time_to_first_token_seconds",
                                "Submit to first token, time in the queue included, by class",
                                RequestBuckets(), labels);
    if (!Yields(static_cast<ServiceClass>(c))) continue;
    of.queued = m->AddGauge("aisp_class_queued_requests",
                            "Requests that wait for room that interactive ones leave", labels);
    of.queue_s = m->AddHistogram("aisp_class_queue_seconds",
                                 "How long a request waited for such room, each time",
                                 RequestBuckets(), labels);
    of.taken_back = m->AddCounter("aisp_class_taken_back_total",
                                  "Requests taken off their worker for an interactive one", labels);
  }
}

void RouterMetrics::AddWorkerMetrics(Metrics* m) {
  const char* workers = "aisp_router_workers";
  const char* workers_help = "Registered workers";
  prefill_workers = m->AddGauge(workers, workers_help, With(labels_, "worker_role", "prefill"));
  decode_workers = m->AddGauge(workers, workers_help, With(labels_, "worker_role", "decode"));
  parked_workers = m->AddGauge(workers, workers_help, With(labels_, "worker_role", "parked"));
  const char* ready = "aisp_router_workers_ready";
  const char* ready_help = "Registered workers that take new work";
  ready_prefill_ = m->AddGauge(ready, ready_help, With(labels_, "worker_role", "prefill"));
  ready_decode_ = m->AddGauge(ready, ready_help, With(labels_, "worker_role", "decode"));
  draining = m->AddGauge("aisp_router_draining", "1 once this router drains", labels_);
  registrations_refused =
      m->AddCounter("aisp_registrations_refused_total", "Workers that did not fit", labels_);
  const auto forgotten = [&](const char* cause) {
    return m->AddCounter(
        "aisp_workers_forgotten_total",
        "Workers dropped by the router; drained and replaced ones were meant to go",
        With(labels_, "cause", cause));
  };
  forgotten_link = forgotten("link");
  forgotten_silent = forgotten("silent");
  forgotten_replaced = forgotten("replaced");
  forgotten_fault = forgotten("fault");
  forgotten_drained = forgotten("drained");

  requests_running_ = m->AddGauge("aisp_router_requests_running",
                                  "Sequences that run on all decode workers together", labels_);
  requests_waiting_ = m->AddGauge(
      "aisp_router_requests_waiting",
      "Sequences that wait on all decode workers together: for blocks, a step or KV", labels_);
  kv_usage_ = m->AddGauge("aisp_router_kv_usage_ratio",
                          "Part of all decode workers' KV blocks that is in use, 0 to 1", labels_);

  looked_up_tokens_ =
      m->AddCounter("aisp_router_lookup_tokens_total", "Tokens of placed requests", labels_);
  cached_tokens_ =
      m->AddCounter("aisp_router_cached_tokens_total",
                    "Of them, expected in the prefix cache where they are computed", labels_);
  prefix_gaps =
      m->AddCounter("aisp_router_prefix_gaps_total", "Gaps seen in workers' KV events", labels_);
  prefix_snapshots_asked = m->AddCounter("aisp_router_prefix_snapshots_asked_total",
                                         "KV snapshots asked of workers", labels_);
  prefix_units_dropped = m->AddCounter("aisp_router_prefix_units_dropped_total",
                                       "KV units not remembered because the view is full", labels_);
}

void RouterMetrics::AddLatencyMetrics(Metrics* m) {
  ttft_s_ = m->AddHistogram("aisp_time_to_first_token_seconds", "Submit to first token",
                            LatencyBuckets(), labels_);
  const auto part = [&](const char* name) {
    return m->AddHistogram("aisp_ttft_part_seconds",
                           "aisp_time_to_first_token_seconds by part; the parts add up to it",
                           LatencyBuckets(), With(labels_, "part", name));
  };
  ttft_queue_ = part("queue");
  ttft_prefill_ = part("prefill");
  ttft_transfer_ = part("transfer");
  ttft_first_decode_ = part("first_decode");
  ttft_link_ = part("link");
  tpot_s_ = m->AddHistogram("aisp_request_time_per_output_token_seconds",
                            "(last token - first token) / (tokens - 1) of one request",
                            StepBuckets(), labels_);
  itl_s = m->AddHistogram("aisp_inter_token_latency_seconds",
                          "Between two token messages of one request", StepBuckets(), labels_);
  e2e_s = m->AddHistogram("aisp_e2e_request_latency_seconds", "Submit to finish", RequestBuckets(),
                          labels_);
  ttft_error_s_ = m->AddHistogram("aisp_router_ttft_prediction_error_seconds",
                                  "|predicted - measured| TTFT", LatencyBuckets(), labels_);
  const std::vector<double> parts = {0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15,
                                     0.2,  0.25, 0.35, 0.5,  1,     2,   5};
  ttft_error_ratio_ =
      m->AddHistogram("aisp_router_ttft_prediction_error_ratio",
                      "|predicted - measured| TTFT over the measured one", parts, labels_);
  ttft_error_allowed_ = m->AddHistogram(
      "aisp_router_ttft_prediction_error_allowed_ratio",
      "|predicted - measured| TTFT over the larger of a twentieth of it and half a step",
      {0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10}, labels_);
  tpot_error_ratio =
      m->AddHistogram("aisp_router_tpot_prediction_error_ratio",
                      "|predicted - measured| TPOT over the measured one", parts, labels_);
}

void RouterMetrics::SetSlo(Duration ttft, Duration tpot) {
  slo_ttft_ = ttft;
  slo_tpot_ = tpot;
  if (metrics_ == nullptr) return;
  const auto limit = [&](const char* of, Duration value) {
    metrics_
        ->AddGauge("aisp_slo_seconds", "What counts as served well: router.slo_ttft and slo_tpot",
                   With(labels_, "slo", of))
        .Set(ToSeconds(value));
    return metrics_->AddCounter(
        "aisp_requests_in_slo_total",
        "Requests that ended normally within their limits: ttft, tpot, both",
        With(labels_, "slo", of));
  };
  in_slo_ttft_ = limit("ttft", ttft);
  in_slo_tpot_ = limit("tpot", tpot);
  in_slo_both_ =
      metrics_->AddCounter("aisp_requests_in_slo_total",
                           "Requests that ended normally within their limits: ttft, tpot, both",
                           With(labels_, "slo", "both"));
}

void RouterMetrics::CountServed(Duration ttft, std::optional<Duration> tpot,
                                ServiceClass service_class) {
  if (tpot) tpot_s_.Observe(ToSeconds(*tpot));
  const bool any = Yields(service_class);
  const bool first = any || ttft <= slo_ttft_;
  const bool rest = any || !tpot || *tpot <= slo_tpot_;
  if (first) in_slo_ttft_.Add();
  if (rest) in_slo_tpot_.Add();
  if (first && rest) in_slo_both_.Add();
}

void RouterMetrics::CountPrefix(int64_t prompt_tokens_looked_up, int64_t cached_tokens) {
  looked_up_tokens_.Add(static_cast<double>(prompt_tokens_looked_up));
  cached_tokens_.Add(static_cast<double>(cached_tokens));
}

void RouterMetrics::ObserveTtftError(double error_ms, double measured_ms, double step_ms) {
  constexpr double kPart = 0.05;
  ttft_error_s_.Observe(error_ms * 1e-3);
  ttft_error_ratio_.Observe(error_ms / measured_ms);
  ttft_error_allowed_.Observe(error_ms / std::max(kPart * measured_ms, step_ms / 2));
}

void RouterMetrics::ObserveFirstToken(Duration whole, const v1::Timing& parts,
                                      ServiceClass service_class) {
  Of(service_class).ttft_s.Observe(ToSeconds(whole));
  if (Yields(service_class)) return;
  ttft_s_.Observe(ToSeconds(whole));
  // The worker's clock may drift from ours: no part may exceed what is left.
  int64_t left = whole.count();
  const auto observe = [&left](const Histogram& part, int64_t ns) {
    const int64_t taken = std::clamp<int64_t>(ns, 0, left);
    left -= taken;
    part.Observe(ToSeconds(Duration(taken)));
  };
  observe(ttft_queue_, parts.queue_ns());
  observe(ttft_prefill_, parts.prefill_ns());
  observe(ttft_transfer_, parts.transfer_ns());
  observe(ttft_first_decode_, parts.first_decode_ns());
  observe(ttft_link_, left);
}

void RouterMetrics::SetLoad(const Load& load, uint32_t block_tokens) {
  requests_running_.Set(static_cast<double>(load.running));
  requests_waiting_.Set(static_cast<double>(load.waiting));
  ready_decode_.Set(static_cast<double>(load.ready_decode));
  ready_prefill_.Set(static_cast<double>(load.ready_prefill));
  kv_usage_.Set(load.total_blocks == 0 ? 0
                                       : static_cast<double>(load.used_blocks) /
                                             static_cast<double>(load.total_blocks));
  if (metrics_ == nullptr || load.total_blocks == told_blocks_) return;
  told_blocks_ = load.total_blocks;
  const char* name = "aisp_router_cache_config_info";
  metrics_->Remove(name, {});
  metrics_
      ->AddGauge(name, "Always 1; the labels say how the KV of all decode workers is cut",
                 With(With(labels_, "block_size", std::to_string(block_tokens)), "num_gpu_blocks",
                      std::to_string(load.total_blocks)))
      .Set(1);
}

void RouterMetrics::SetBlind(const std::string& worker, bool blind) {
  if (metrics_ == nullptr) return;
  metrics_
      ->AddGauge("aisp_router_prefix_view_blind",
                 "1 while the router does not know the worker's prefix cache",
                 With(labels_, "worker", worker))
      .Set(blind ? 1 : 0);
}

void RouterMetrics::SetStreams(const std::string& worker, size_t streams) {
  if (metrics_ == nullptr) return;
  metrics_
      ->AddGauge("aisp_router_worker_streams", "Requests of this router on the decode worker",
                 With(labels_, "worker", worker))
      .Set(static_cast<double>(streams));
}

void RouterMetrics::RemoveWorker(const std::string& worker) {
  if (metrics_ == nullptr) return;
  for (const char* name : {"aisp_router_prefix_view_blind", "aisp_router_worker_streams"})
    metrics_->Remove(name, {{"worker", worker}});
}

}  // namespace aisp
