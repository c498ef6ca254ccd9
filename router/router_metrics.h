// The router's metrics; handles are fetched once. Names follow common inference dashboards, with
// the prefix aisp_.
#pragma once

#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/metrics.h"
#include "common/service_class.h"
#include "router/policy.h"
#include "worker.pb.h"

namespace aisp {

// How a request ended, as clients count it.
enum class RequestStatus : uint8_t { kOk, kError, kDeadline, kCancelled, kRefused };

class RouterMetrics {
 public:
  // `metrics` null: nothing is measured.
  RouterMetrics(Metrics* metrics, const std::string& model,
                std::span<const std::string_view> route_reasons);

  void CountRequest(RequestStatus status, ServiceClass service_class) {
    requests_[static_cast<size_t>(status)].Add();
    Of(service_class).requests[static_cast<size_t>(status)].Add();
  }
  // Change in the number of queued batch or best-effort requests, and the time that one waited.
  void AddQueued(ServiceClass service_class, int more) {
    PerClass& of = Of(service_class);
    of.queued.Set(static_cast<double>(of.waiting += more));
  }
  void ObserveQueued(ServiceClass service_class, Duration waited) {
    Of(service_class).queue_s.Observe(ToSeconds(waited));
  }
  void CountTakenBack(ServiceClass service_class) { Of(service_class).taken_back.Add(); }
  // One of the policy's reasons.
  void CountRoute(std::string_view reason) {
    if (const auto it = routes_.find(reason); it != routes_.end()) it->second.Add();
  }
  void CountPull(PullVerdict verdict) { pulls_[static_cast<size_t>(verdict)].Add(); }
  // Counts the cached tokens among the prompt tokens of one placement.
  void CountPrefix(int64_t prompt_tokens, int64_t cached_tokens);
  // TTFT from Submit to the first token, split into the parts that the decode worker reported and
  // the rest, which is messaging. The parts add up to the whole. Non-interactive requests count
  // only their queue time.
  void ObserveFirstToken(Duration whole, const v1::Timing& parts, ServiceClass service_class);
  // `step_ms`: of a step that computes its prompt; a request waits for half of one on average.
  void ObserveTtftError(double error_ms, double measured_ms, double step_ms);
  // The SLO, set once, and how a request that ended normally compares with it. A request with one
  // token has no TPOT; one that is not interactive has no limit.
  void SetSlo(Duration ttft, Duration tpot);
  void CountServed(Duration ttft, std::optional<Duration> tpot, ServiceClass service_class);
  // Per worker. `worker` labels are removed with the worker, so their number is bounded.
  void SetBlind(const std::string& worker, bool blind);
  void SetStreams(const std::string& worker, size_t streams);
  void RemoveWorker(const std::string& worker);

  // Sum of the reports of all decode workers.
  struct Load {
    uint64_t running = 0;
    uint64_t waiting = 0;  // for blocks, a step slot or KV
    uint64_t used_blocks = 0;
    uint64_t total_blocks = 0;
    uint64_t ready_decode = 0;
    uint64_t ready_prefill = 0;
  };
  void SetLoad(const Load& load, uint32_t block_tokens);

  Gauge active, pending, prefill_workers, decode_workers, parked_workers, draining, kept_answers;
  Counter finished_stop, finished_length;
  Counter prompt_tokens, generation_tokens;
  Counter takeovers, poison, moves, quiet, cancelled, registrations_refused;
  Counter forgotten_link, forgotten_silent, forgotten_replaced, forgotten_fault, forgotten_drained;
  // Refusals by Submit, by reason.
  Counter rejected_prompt, rejected_inflight, rejected_no_worker, rejected_objective, rejected_link,
      rejected_share, rejected_queue, rejected_poison;
  Counter prefix_gaps, prefix_snapshots_asked, prefix_units_dropped;
  Histogram itl_s, e2e_s, tpot_error_ratio;

 private:
  struct PerClass {
    std::array<Counter, 5> requests;
    Histogram ttft_s;
    // Of non-interactive requests:
    Gauge queued;
    int64_t waiting = 0;
    Histogram queue_s;
    Counter taken_back;
  };
  PerClass& Of(ServiceClass service_class) { return classes_[static_cast<size_t>(service_class)]; }
  void AddRequestMetrics(Metrics* m);
  void AddClassMetrics(Metrics* m);
  void AddWorkerMetrics(Metrics* m);
  void AddLatencyMetrics(Metrics* m);

  Metrics* const metrics_;
  const MetricLabels labels_;
  std::array<Counter, 5> requests_;
  std::array<PerClass, kServiceClassNames.size()> classes_;
  std::map<std::string_view, Counter> routes_;
  std::array<Counter, std::size(kPullVerdicts)> pulls_;
  Counter looked_up_tokens_, cached_tokens_;
  Histogram ttft_error_s_, ttft_error_ratio_, ttft_error_allowed_;
  Histogram ttft_s_, tpot_s_;
  Duration slo_ttft_{}, slo_tpot_{};
  Counter in_slo_ttft_, in_slo_tpot_, in_slo_both_;
  Histogram ttft_queue_, ttft_prefill_, ttft_transfer_, ttft_first_decode_, ttft_link_;
  Gauge requests_running_, requests_waiting_, kv_usage_, ready_decode_, ready_prefill_;
  uint64_t told_blocks_ = 0;  // the value in the label of aisp_router_cache_config_info
};

}  // namespace aisp
