#include "frontend/frontend_metrics.h"

namespace aisp {

FrontendMetrics::FrontendMetrics(Metrics* metrics, const MetricLabels& labels) {
  constexpr std::array kReasons = {"unauthenticated", "bad_request", "key_limit", "tokenizer_queue",
                                   "deadline"};
  for (size_t i = 0; i < kReasons.size(); ++i) {
    MetricLabels with_reason = labels;
    with_reason.emplace_back("reason", kReasons[i]);
    rejected_[i] =
        metrics->AddCounter("aisp_requests_rejected_total",
                            "Requests refused before they were placed, by reason", with_reason);
  }
  disconnected =
      metrics->AddCounter("aisp_disconnected_clients_total",
                          "Clients that went away before their answer was complete", labels);
  embedded_inputs =
      metrics->AddCounter("aisp_embedded_inputs_total", "Inputs that became embeddings", labels);
  embedded_tokens = metrics->AddCounter("aisp_embedded_tokens_total",
                                        "Tokens of inputs that became embeddings", labels);
  frontend_s = metrics->AddHistogram(
      "aisp_frontend_seconds",
      "A request received to handed to the router: reading JSON, chat template, tokenizing",
      StepBuckets(), labels);
}

}  // namespace aisp
