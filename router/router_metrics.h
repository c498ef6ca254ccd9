// The router's metrics: handles fetched once. Names are those a dashboard of the field expects, under aisp_.
#pragma once

#include <array>
#include <string>

#include "common/metrics.h"
#include "router/policy.h"
#include "worker.pb.h"

namespace aisp {

// How a request ended, as clients count it.
enum class RequestStatus : uint8_t { kOk, kError, kDeadline, kCancelled, kRefused };

class RouterMetrics {
 public:
  // `metrics` may be null: nothing is measured then.
  RouterMetrics(Metrics* metrics, const std::string& model);

  void CountRequest(RequestStatus status) { requests_[static_cast<size_t>(status)].Add(); }
  void CountRoute(RouteReason reason) { routes_[static_cast<size_t>(reason)].Add(); }
  // Cached tokens among the prompt tokens of one placement.
  void CountPrefix(int64_t prompt_tokens, int64_t cached_tokens);
  // Per worker; `worker` labels are removed when it is forgotten.
  void SetBlind(const std::string& worker, bool blind);
  void RemoveWorker(const std::string& worker);

  Gauge active, pending, prefill_workers, decode_workers;
  Counter finished_stop, finished_length;
  Counter prompt_tokens, generation_tokens;
  Counter takeovers, moves, cancelled, registrations_refused;
  Counter forgotten_link, forgotten_silent, forgotten_replaced, forgotten_fault;
  Counter prefix_gaps, prefix_snapshots_asked, prefix_units_dropped;
  Histogram ttft_s, tpot_s, itl_s, e2e_s, ttft_error_s;

 private:
  Metrics* const metrics_;
  const MetricLabels labels_;
  std::array<Counter, 5> requests_;
  std::array<Counter, kRouteReasons.size()> routes_;
  Counter looked_up_tokens_, cached_tokens_;
  Gauge hit_rate_;
  double looked_up_ = 0;
  double cached_ = 0;
};

}  // namespace aisp
