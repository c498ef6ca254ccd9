// RoutingPolicy: where a request should run. Pure: the same summary and views give the same
// placement; ties are broken by an injected random value, so that several router replicas with the
// same view do not all choose one worker.
//
// A policy owns its reasons: clients see them (x-aisp-route) and they label
// aisp_route_decisions_total, so each comes from a small fixed list. KV locality is counted in hash
// units of 16 tokens. Policies are chosen by name (router/policy_options.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/prompt_work.h"
#include "common/result.h"
#include "router/correction.h"
#include "router/policy_options.h"
#include "router/step_time_model.h"

namespace aisp {

class PullRates;  // router/pull_rates.h

// One worker as the policy sees it for one request.
struct WorkerView {
  std::string_view worker_id;
  std::string_view host_id;
  bool prefill = false;    // else a decode worker
  bool available = false;  // ready, not draining, not excluded for this request
  // Draws first tokens for decode workers, or accepts them from prefill workers.
  bool first_tokens = false;
  bool gives = false;  // others can pull from its cache
  StepCost cost;
  int32_t chunk_tokens = 512;  // prefill tokens of one sequence per step, as reported
  int32_t launched_ahead = 0;  // steps that it launches while one runs
  PromptWork queued_prefill;   // reported, plus sent by this router since the report
  int32_t rows = 0;            // running, waiting and awaiting KV; same two sources
  int32_t max_rows = 1;
  int64_t context_tokens = 0;  // KV tokens that a decode step reads
  int32_t free_blocks = 0;     // free or evictable
  int32_t total_blocks = 0;
  int32_t block_tokens = 16;
  double kv_bytes_per_token = 0;  // in its pool
  int32_t cached_tokens = 0;      // leading tokens of this request in its pool; a multiple of 16
  int32_t promised_tokens = 0;    // the same, once it has computed the prompts already sent to it
  // The same in its tiers in host memory and on disk, and the time to load one block into its pool;
  // 0: not known.
  int32_t host_tokens = 0;
  int32_t disk_tokens = 0;
  double host_block_ms = 0;
  double disk_block_ms = 0;
  int32_t queued_prompts = 0;  // prompts that wait for their first token there
  double busy_ms = 0;          // remaining time of its current long step, as reported
  double backlog_ms = 0;       // predicted time to compute its queued prompts
  // Part of rows and context_tokens that yields to this request. It is not in queued_prefill and
  // backlog_ms, and its blocks count as free.
  int32_t yielding_rows = 0;
  int64_t yielding_context = 0;
  double transfer_bytes_per_s = 0;  // measured on recent transfers; 0: unknown
  // Decode workers: recent prediction errors (router/correction.h).
  struct LearntTtft {
    Learnt offset;                // ms to add
    Learnt wait_factor = {1, 0};  // factor of the wait for others
  };
  LearntTtft local_ttft;
  LearntTtft remote_ttft;  // of prompts prefilled by a prefill worker
  Learnt fetch_extra;      // ms to add to prompts with a pulled prefix; of any worker
  Learnt tpot_extra;       // ms to add to a decode-only step; of all workers
  double tpot_margin = 2;  // AdmissionMargin
  // The workers have run enough steps for a prediction to refuse a request.
  bool known = false;
  // Identifies the worker state behind this view; 0: set it anew each time.
  uint64_t made_of = 0;

  // Contents of its steps other than prefill rows.
  StepShape RunningBeside() const {
    if (prefill) return {};
    return {0, 0, static_cast<double>(std::min(rows, max_rows)),
            static_cast<double>(context_tokens)};
  }
};

// The SLO of a request; 0: no limit.
struct Objective {
  double ttft_ms = 0;
  double tpot_ms = 0;
  bool any() const { return ttft_ms > 0 || tpot_ms > 0; }
  bool MetBy(double ttft, double tpot) const {
    return (ttft_ms <= 0 || ttft <= ttft_ms) && (tpot_ms <= 0 || tpot <= tpot_ms);
  }
};

// Where the client wants prefill to run, for comparisons and debugging. If that is impossible (no
// prefill worker, or the prompt is cached on the decode worker), the other way is used.
enum class PrefillPreference : uint8_t { kAuto, kRemote, kLocal };

struct RequestSummary {
  int32_t tokens = 0;  // to prefill: the prompt, and tokens emitted before a takeover
  double expected_new_tokens = 64;
  // Average load: arrivals per worker of any role; per decode worker the steps with prefill rows
  // and their time.
  double arrivals_per_s = 0;
  double prompts_part = 0;  // fraction of time in prefill, if all workers prefill their own prompts
  double prompt_steps_per_s = 0;
  double prompt_ms_per_s = 0;
  double prompt_delay_ms_per_s = 0;  // time by which prefill rows prolong decode steps
  int32_t num_layers = 1;
  bool takeover = false;
  bool first_token_anywhere = false;  // a prefill worker knows everything that its draw depends on
  PrefillPreference preference = PrefillPreference::kAuto;
  // It is refused or held back if its placement is not predicted to keep the limits.
  bool refusable = false;
  // There is no prefill worker: every worker computes the prompts that it decodes.
  bool aggregated = false;
  Objective objective;  // what it asks for, else the default
  Objective asked;      // what it asks for; it is refused if that cannot be met
  Objective others;     // of the running streams
  // Cost of pulling prefixes between workers; null: no pulls for this request.
  const PullRates* pulls = nullptr;
  Instant now;
  bool pull_whenever = false;  // also if no gain is predicted
  uint64_t ordinal = 0;        // number of this router's placement, for round-robin policies
  uint64_t tie_break = 0;
};

// Reasons shared by several policies.
namespace route_reason {
// All but less than a hash unit (16 tokens) is cached on the decode worker.
inline constexpr std::string_view kLocalCached = "local-cached";
// Nothing is cached, but the prompt is shorter than a hash unit.
inline constexpr std::string_view kLocalShort = "local-short-prompt";
inline constexpr std::string_view kLocalNoPrefillWorker = "local-no-prefill-worker";
// The decode worker pulls a prefix from another worker's cache and computes the rest.
inline constexpr std::string_view kLocalPull = "local-pull";
// Sent to the worker that keeps its answer. The router's own reason, not a policy's.
inline constexpr std::string_view kRepeat = "repeat";
// Replayed after its decode worker was lost.
inline constexpr std::string_view kTakeover = "takeover";
// The client asked for it.
inline constexpr std::string_view kForcedRemote = "forced-remote";
inline constexpr std::string_view kForcedLocal = "forced-local";
}  // namespace route_reason

// What was decided about prefixes that other workers hold.
enum class PullVerdict : uint8_t {
  kNothing,    // no other worker has a longer prefix
  kLeftAlone,  // the holder was late, failed or refused recently
  kSlower,     // slower than computing
  kOutbid,     // faster, but another placement is better
  kChosen,
};
inline constexpr std::string_view kPullVerdicts[] = {"nothing-held", "left-alone", "slower",
                                                     "outbid", "chosen"};

// A prefix to pull from another worker's cache.
struct PullChoice {
  int holder = -1;     // index into the views; -1: no pull is worth it
  int32_t tokens = 0;  // leading tokens that the decode worker then has
  double pull_ms = 0;
  double saved_ms = 0;  // compared with computing
  PullVerdict verdict = PullVerdict::kNothing;
};

struct Placement {
  int decode = -1;             // index into the views
  int prefill = -1;            // -1: the decode worker prefills itself
  PullChoice pull;             // before the rest is computed
  std::vector<int> fallbacks;  // other prefill workers, best first, at most kMaxFallbacks
  double ttft_ms = 0;          // predicted; 0 by policies that predict nothing
  double ttft_high_ms = 0;     // plus the usual error: compared with the SLO
  double tpot_ms = 0;
  double ttft_own_ms = 0;     // of ttft_ms, uncorrected: the request's own part
  double ttft_wait_ms = 0;    // and its wait for others
  double ttft_fetch_ms = 0;   // of ttft_ms: the correction for the pull
  double step_ms = 0;         // tpot_ms without its correction
  double tpot_high_ms = 0;    // upper bound of TPOT, rarely exceeded
  bool known = true;          // predicted for workers that have run enough steps
  bool meets = true;          // meets the SLO, as far as predicted
  bool keeps_asked = true;    // meets the limits that the request itself asks for
  bool spares_others = true;  // the running streams keep their SLO, likewise
  bool displaces = false;     // only after yielding requests have left the decode worker
  std::string_view reason;    // one of Reasons()
};
inline constexpr size_t kMaxFallbacks = 2;

class RoutingPolicy {
 public:
  virtual ~RoutingPolicy() = default;
  // UNAVAILABLE when no decode worker is available.
  virtual Result<Placement> Pick(const RequestSummary& request,
                                 std::span<const WorkerView> workers) const = 0;
  // Every reason that Pick can give.
  virtual std::span<const std::string_view> Reasons() const = 0;
};

// INVALID_ARGUMENT names the known ones.
Result<std::unique_ptr<RoutingPolicy>> MakeRoutingPolicy(const PolicyOptions& options);

// Leading tokens that `worker` need not compute for this request: cached, or soon to be.
int32_t KnownTokens(const WorkerView& worker);
// Tokens that `worker` would compute. The last token is always computed, by the step that draws the
// first new token.
int32_t UncachedTokens(const RequestSummary& request, const WorkerView& worker);
// The reason for decode-side prefill if less than a hash unit is uncached.
std::string_view LittleLeftReason(const WorkerView& decode);

// A policy that orders workers: picks the lowest decode worker and, if enough is uncached and the
// client allows it, the lowest prefill worker.
class OrderPolicy : public RoutingPolicy {
 public:
  Result<Placement> Pick(const RequestSummary& request,
                         std::span<const WorkerView> workers) const final;
  std::span<const std::string_view> Reasons() const final { return reasons_; }

 protected:
  // `name`: the reason for the policy's own decisions.
  explicit OrderPolicy(std::string_view name);
  // Lower is better. `index`: position among the `count` candidates of that role.
  virtual double Order(const RequestSummary& request, const WorkerView& worker, size_t index,
                       size_t count) const = 0;

 private:
  std::vector<int> Ranked(const RequestSummary& request, std::span<const WorkerView> workers,
                          bool prefill) const;
  const std::vector<std::string_view> reasons_;
};

}  // namespace aisp
