// RoutingPolicy: where a request should run. Pure: the same summary and views give the same
// placement; ties are broken by an injected random value, so that several router replicas with the
// same view do not herd onto one worker.
//
// A policy owns the reasons that it gives: they are shown to clients (x-aisp-route) and are the
// label of aisp_route_decisions_total, so each is one of its small fixed list. KV locality is
// counted in hash units of 16 tokens. Policies are chosen by name (router/policy_options.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
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

// One worker as the policy sees it, for one request.
struct WorkerView {
  std::string_view worker_id;
  std::string_view host_id;
  bool prefill = false;    // else decode
  bool available = false;  // ready, not draining, not excluded for this request
  bool first_tokens =
      false;           // it draws them for decode workers, or takes them from prefill workers
  bool gives = false;  // others can get at what it has cached
  StepCost cost;
  int32_t chunk_tokens =
      512;  // prompt tokens of one sequence that it computes in a step, as it says
  int32_t launched_ahead = 0;  // steps that it launches while one runs
  PromptPace pace;      // of prompts beside its streams, so that these keep their time for a token
  double spare_ms = 0;  // for which even short streams there can wait for prompts in whole chunks
  // Likewise usual streams, beside what is to come until they end.
  double lasting_spare_ms = std::numeric_limits<double>::infinity();
  PromptWork queued_prefill;  // reported, and sent by this router since the report
  int32_t rows = 0;           // running, waiting and awaiting KV; same two parts
  int32_t max_rows = 1;
  int64_t context_tokens = 0;  // KV tokens that a decode step reads
  int32_t free_blocks = 0;     // free or evictable
  int32_t total_blocks = 0;
  int32_t block_tokens = 16;
  double kv_bytes_per_token = 0;  // in its pool
  int32_t cached_tokens = 0;  // leading tokens of this request whose KV it holds; a multiple of 16
  int32_t promised_tokens = 0;  // likewise, once it has computed the prompts that it was sent
  // Likewise, of its tiers in host memory and on a disk, and what bringing a block of one into its
  // pool takes; 0: not known.
  int32_t host_tokens = 0;
  int32_t disk_tokens = 0;
  double host_block_ms = 0;
  double disk_block_ms = 0;
  int32_t queued_prompts = 0;  // that wait for their first token there
  double busy_ms = 0;          // until the long step that it is in ends, as it says
  double backlog_ms = 0;       // until the prompts that it has are computed, as predicted
  // Of rows and context_tokens: what gives way to this request. It is not in queued_prefill and
  // backlog_ms, and its blocks count as free.
  int32_t yielding_rows = 0;
  int64_t yielding_context = 0;
  double transfer_bytes_per_s = 0;  // measured on its last transfers; 0: unknown
  // Decode workers: by how much predictions were wrong lately (router/correction.h).
  struct LearntTtft {
    Learnt offset;                // ms to add
    Learnt wait_factor = {1, 0};  // times the wait for others
  };
  LearntTtft local_ttft;
  LearntTtft remote_ttft;  // of prompts that a prefill worker computes
  Learnt fetch_extra;      // ms to add to prompts whose beginning it pulls first; of any worker
  Learnt tpot_extra;       // ms to add to a step of nothing but decodes; of all workers
  double tpot_margin = 2;  // AdmissionMargin
  // Workers have run enough steps for a prediction to be held against a request.
  bool known = false;
  // Names the state of its worker that it was made of; what changes without one is set each time.
  uint64_t made_of = 0;

  // What its steps hold beside rows of prompts.
  StepShape RunningBeside() const {
    if (prefill) return {};
    return {0, 0, static_cast<double>(std::min(rows, max_rows)),
            static_cast<double>(context_tokens)};
  }
};

// What a request is served well within; 0: no limit.
struct Objective {
  double ttft_ms = 0;
  double tpot_ms = 0;
  bool any() const { return ttft_ms > 0 || tpot_ms > 0; }
  bool MetBy(double ttft, double tpot) const {
    return (ttft_ms <= 0 || ttft <= ttft_ms) && (tpot_ms <= 0 || tpot <= tpot_ms);
  }
};

// Where the client wants its prompt computed: for comparisons and debugging. A wish that cannot be
// met (no prefill worker, or the whole prompt is cached on the decode worker) falls back to the
// other way.
enum class PrefillPreference : uint8_t { kAuto, kRemote, kLocal };

struct RequestSummary {
  int32_t tokens = 0;  // to be prefilled: the prompt, and what was emitted before a takeover
  double expected_new_tokens = 64;
  // What comes to a worker on average: prompts to any, and to a decode worker the steps with
  // prompts and their time.
  double arrivals_per_s = 0;
  double prompts_part = 0;  // of each second that prompts fill, where all workers compute their own
  double prompt_steps_per_s = 0;
  double prompt_ms_per_s = 0;
  double prompt_delay_ms_per_s = 0;  // by which prompts make steps of decodes longer
  int32_t num_layers = 1;
  bool takeover = false;
  bool first_token_anywhere = false;  // what its draw depends on is known to a prefill worker too
  PrefillPreference preference = PrefillPreference::kAuto;
  Objective objective;  // of this request: what it asks for, else what is usual
  Objective asked;      // of it: what it asks for, and is refused without
  Objective others;     // of the streams that run already
  // What prefixes take from worker to worker; null: none are pulled for this request.
  const PullRates* pulls = nullptr;
  Instant now;
  bool pull_whenever = false;  // also where it is predicted to be no gain
  uint64_t ordinal = 0;        // of this router's placements, for policies that take turns
  uint64_t tie_break = 0;
};

// Reasons that more than one policy gives.
namespace route_reason {
// All but less than a hash unit (16 tokens) is cached on the decode worker.
inline constexpr std::string_view kLocalCached = "local-cached";
// Nothing is cached, but the whole prompt is less than a hash unit.
inline constexpr std::string_view kLocalShort = "local-short-prompt";
inline constexpr std::string_view kLocalNoPrefillWorker = "local-no-prefill-worker";
// The decode worker fetches the beginning from another worker's cache and computes the rest.
inline constexpr std::string_view kLocalPull = "local-pull";
// It goes to the worker that keeps its answer: no policy's reason, but the router's own.
inline constexpr std::string_view kRepeat = "repeat";
// Replayed after its decode worker was lost.
inline constexpr std::string_view kTakeover = "takeover";
// The client asked for it.
inline constexpr std::string_view kForcedRemote = "forced-remote";
inline constexpr std::string_view kForcedLocal = "forced-local";
}  // namespace route_reason

// What was made of the beginnings of a prompt that other workers have.
enum class PullVerdict : uint8_t {
  kNothing,    // nobody has more of it than who computes it
  kLeftAlone,  // who has it was late, failed or refused a moment ago
  kSlower,     // than computing
  kOutbid,     // faster, but another placement is better still
  kChosen,
};
inline constexpr std::string_view kPullVerdicts[] = {"nothing-held", "left-alone", "slower",
                                                     "outbid", "chosen"};

// The beginning of a prompt from another worker's cache.
struct PullChoice {
  int holder = -1;     // index into the views; -1: none is worth it
  int32_t tokens = 0;  // leading ones that the decode worker then has
  double pull_ms = 0;
  double saved_ms = 0;  // of computing
  PullVerdict verdict = PullVerdict::kNothing;
};

struct Placement {
  int decode = -1;             // index into the views
  int prefill = -1;            // -1: the decode worker prefills itself
  PullChoice pull;             // before whoever prefills computes the rest
  std::vector<int> fallbacks;  // other prefill workers, best first, at most kMaxFallbacks
  double ttft_ms = 0;          // predicted; 0 by policies that predict nothing
  double ttft_high_ms = 0;     // with the usual error: what an objective is held against
  double tpot_ms = 0;
  double ttft_own_ms = 0;     // of ttft_ms without corrections: what the request itself takes
  double ttft_wait_ms = 0;    // and what it waits for others
  double ttft_fetch_ms = 0;   // of ttft_ms: the correction of what is pulled first
  double step_ms = 0;         // tpot_ms without its correction
  double tpot_high_ms = 0;    // what the time for a token shall rarely exceed
  bool known = true;          // by workers that have run enough steps
  bool meets = true;          // the request's objective, as far as was predicted
  bool keeps_asked = true;    // what of it the request asks for
  bool spares_others = true;  // the running streams keep theirs, likewise
  PromptPace pace;            // of a prompt that the decode worker computes
  bool displaces = false;     // only once what yields on its decode worker has left
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

// Leading tokens that `worker` will not compute for this request, because it has or will have them.
int32_t KnownTokens(const WorkerView& worker);
// Tokens of the request that `worker` would compute. The last one is always computed, by the step
// that draws the first new token.
int32_t UncachedTokens(const RequestSummary& request, const WorkerView& worker);
// Why a prompt of which less than a hash unit is uncached stays on the decode worker.
std::string_view LittleLeftReason(const WorkerView& decode);

// A policy that orders workers: the least decode worker, and where that has enough left to compute
// and the client does not mind, the least prefill worker.
class OrderPolicy : public RoutingPolicy {
 public:
  Result<Placement> Pick(const RequestSummary& request,
                         std::span<const WorkerView> workers) const final;
  std::span<const std::string_view> Reasons() const final { return reasons_; }

 protected:
  // `name` is the reason of what the policy decided itself.
  explicit OrderPolicy(std::string_view name);
  // Lower is better; `index` counts the candidates of that role, of which there are `count`.
  virtual double Order(const RequestSummary& request, const WorkerView& worker, size_t index,
                       size_t count) const = 0;

 private:
  std::vector<int> Ranked(const RequestSummary& request, std::span<const WorkerView> workers,
                          bool prefill) const;
  const std::vector<std::string_view> reasons_;
};

}  // namespace aisp
