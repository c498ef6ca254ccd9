// RoutingPolicy: where a request should run. Pure: the same summary and views give the same placement; ties are broken by
// an injected random value, so that several router replicas with the same view do not herd onto one worker.
//
// CostPolicy predicts, for every decode worker D and every prefill worker P or none:
//
//   TTFT = wait for a row and blocks on D
//        + remote: queue on P + uncached prefill on P + exposed transfer + first decode step on D
//          local:  queue on D + uncached prefill on D (the last chunk draws the first token)
//   TPOT = one step of D with this request's row and context among the others
//
// and takes the least of  TTFT + expected_new_tokens * TPOT + disturbance,  where disturbance is the delay that a local
// prefill puts on the streams that already decode on D. There is no fixed threshold: local or remote follows from the
// costs fitted to each worker. KV locality is counted in hash units of 16 tokens.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "router/step_time_model.h"

namespace aisp {

// One worker as the policy sees it, for one request.
struct WorkerView {
  std::string_view worker_id;
  std::string_view host_id;
  bool prefill = false;    // else decode
  bool available = false;  // ready, not draining, not excluded for this request
  StepCost cost;
  int64_t queued_prefill_tokens = 0;  // reported, and sent by this router since the report
  int32_t rows = 0;                   // running, waiting and awaiting KV; same two parts
  int32_t max_rows = 1;
  int64_t context_tokens = 0;  // KV tokens that a decode step reads
  int32_t free_blocks = 0;     // free or evictable
  int32_t total_blocks = 0;
  int32_t cached_tokens = 0;  // leading tokens of this request whose KV it holds; a multiple of 16
  double transfer_bytes_per_s = 0;  // measured on its last transfers; 0: unknown
};

// Where the client wants its prompt computed: for comparisons and debugging. A wish that cannot be met (no prefill worker, or
// the whole prompt is cached on the decode worker) falls back to the other way.
enum class PrefillPreference : uint8_t { kAuto, kRemote, kLocal };

struct RequestSummary {
  int32_t tokens = 0;  // to be prefilled: the prompt, and what was emitted before a takeover
  double expected_new_tokens = 64;
  double kv_bytes_per_token = 0;
  int32_t num_layers = 1;
  int32_t block_tokens = 16;
  bool takeover = false;
  PrefillPreference preference = PrefillPreference::kAuto;
  uint64_t tie_break = 0;
};

// Shown to clients and the label of aisp_route_decisions_total.
enum class RouteReason : uint8_t {
  kRemotePrefill,         // a prefill worker and the transfer are predicted cheaper
  kLocalCheaper,          // prefilling on the decode worker is predicted cheaper
  kLocalCached,           // less than one hash unit is left to compute
  kLocalNoPrefillWorker,  // no prefill worker is available
  kTakeover,              // replayed after its decode worker was lost
  kForcedRemote,          // the client asked for it
  kForcedLocal,
};
inline constexpr std::array kRouteReasons = {
    RouteReason::kRemotePrefill,        RouteReason::kLocalCheaper, RouteReason::kLocalCached,
    RouteReason::kLocalNoPrefillWorker, RouteReason::kTakeover,     RouteReason::kForcedRemote,
    RouteReason::kForcedLocal};
static_assert(kRouteReasons.size() == static_cast<size_t>(RouteReason::kForcedLocal) + 1,
              "whoever counts by reason has a place for each");
std::string_view RouteReasonName(RouteReason reason);

struct Placement {
  int decode = -1;             // index into the views
  int prefill = -1;            // -1: the decode worker prefills itself
  std::vector<int> fallbacks;  // other prefill workers, best first, at most two
  double ttft_ms = 0;
  double tpot_ms = 0;
  RouteReason reason = RouteReason::kLocalCheaper;
};

class RoutingPolicy {
 public:
  virtual ~RoutingPolicy() = default;
  // UNAVAILABLE when no decode worker is available.
  virtual Result<Placement> Pick(const RequestSummary& request,
                                 std::span<const WorkerView> workers) const = 0;
};

struct CostPolicyOptions {
  int32_t chunk_tokens = 512;          // prefill tokens of one step, for the number of steps
  double handoff_ms = 0.5;             // messages of one remote prefill that nothing hides
  double bytes_per_s_same_host = 5e9;  // until measured
  double bytes_per_s_other_host = 1e9;
  double disturbance_weight = 0.25;  // of a delayed stream's millisecond against the new request's
  double tie_fraction = 0.02;        // scores this close are equal
};

class CostPolicy final : public RoutingPolicy {
 public:
  explicit CostPolicy(const CostPolicyOptions& options = {}) : options_(options) {}
  Result<Placement> Pick(const RequestSummary& request,
                         std::span<const WorkerView> workers) const override;

 private:
  struct Cost {
    double ttft_ms = 0;
    double tpot_ms = 0;
    double score_ms = 0;
  };
  struct Candidate {
    int decode;
    int prefill;  // -1: local
    Cost cost;
  };
  static void PreferRemote(std::vector<Candidate>* candidates, double* best_ms);
  double PrefillMs(const WorkerView& worker, double tokens) const;
  double AdmissionMs(const RequestSummary& request, const WorkerView& decode, double tpot_ms) const;
  double ExposedTransferMs(const RequestSummary& request, const WorkerView& decode,
                           const WorkerView& prefill, double compute_ms) const;
  Cost Local(const RequestSummary& request, const WorkerView& decode) const;
  Cost Remote(const RequestSummary& request, const WorkerView& decode,
              const WorkerView& prefill) const;
  std::vector<int> Fallbacks(const RequestSummary& request, std::span<const WorkerView> workers,
                             const Placement& chosen) const;

  const CostPolicyOptions options_;
};

}  // namespace aisp
