// Router: places requests on workers and owns each request until its terminal status. A state
// machine without I/O: no socket, no HTTP, no device, no model. It speaks tokens; text is made and
// unmade around it.
//
// Thread: one (the I/O thread of the router process, or the simulation). Clock and random source
// injected.
//
// Life of a request: Submit -> admission (a bound on what is in flight; beyond it
// RESOURCE_EXHAUSTED and a retry hint; what is of class batch or best-effort waits in a bounded
// queue until workers have room that interactive requests leave) -> placement {P, D} or {D} by
// predicted TTFT/TPOT (router/policy.h) -> tokens from D -> OnFinish, exactly once, by the
// deadline. A decode worker that dies is replaced: {prompt, emitted ids, seed} go to another one
// and the observer sees no token lost or doubled. No worker: UNAVAILABLE with a retry hint at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/fair_share.h"
#include "common/hash.h"
#include "common/metrics.h"
#include "common/random.h"
#include "common/shared_tokens.h"
#include "proto/link.h"
#include "router/policy.h"

namespace aisp {

struct RouterOptions {
  int32_t max_inflight = 1024;  // submitted and not finished
  Duration default_timeout = std::chrono::seconds(300);
  Duration silence_limit =
      std::chrono::seconds(2);  // a worker that says nothing for so long is forgotten
  // One that says nothing for so long may stand still: it gets nothing new while others can take
  // it, and what waits for its first token there goes to them.
  Duration quiet_limit = std::chrono::milliseconds(250);
  // A worker whose name another process wants too answers within this time, or loses it.
  Duration probe_limit = std::chrono::seconds(1);
  Duration telemetry_interval = std::chrono::milliseconds(50);
  int max_attempts = 4;  // placements of one request
  Duration no_worker_retry_after = std::chrono::seconds(1);
  // A worker reports a deadline itself; the router waits so much longer for that report, then ends
  // the request.
  Duration deadline_grace = std::chrono::milliseconds(250);
  // A request whose worker was lost waits so long for another one to appear.
  Duration takeover_wait = std::chrono::seconds(10);
  // Before a request goes back to a worker that failed it, because there is no other; doubles with
  // every placement.
  Duration retry_backoff = std::chrono::milliseconds(25);
  // A request with which two workers were lost is held back so long, in case they come back.
  Duration poison_verdict = std::chrono::seconds(1);
  // What counts as served well: in the metrics, and for placements, which prefer what keeps it.
  // Nothing is refused for it.
  Duration slo_ttft = std::chrono::milliseconds(500);
  Duration slo_tpot = std::chrono::milliseconds(50);
  // Requests of class batch and best-effort that wait for room; more are refused.
  int32_t max_queued = 1024;
  // So long after it came, a request of such a class goes as an interactive one.
  Duration batch_patience = std::chrono::seconds(60);
  Duration best_effort_patience = std::chrono::seconds(180);
  size_t max_prefix_units_per_worker = size_t{1} << 20;
  // Ids of tokens are below it: those that workers say are checked. 0: not known.
  int32_t vocabulary = 0;
  PolicyOptions policy;
  PrefixPulls pulls = PrefixPulls::kOff;
  // LoRA adapters that the settings name, version 0; and how many there may be.
  v1::AdapterSet adapters;
  int32_t max_adapters = 0;
  // Hears of every later set, from the router's thread.
  std::function<void(const v1::AdapterSet&)> on_adapters;
};

struct RouterRequest {
  std::string trace_id;
  SharedTokens tokens;
  // More requests come with copies of these `tokens` (the choices of one request): they travel to a
  // worker once.
  bool shares_tokens = false;
  v1::SamplingParams sampling;  // seed 0: the router draws one
  uint32_t choice = 0;
  uint32_t max_new_tokens = 16;  // 0: nothing is drawn
  uint32_t min_new_tokens = 0;
  // Not POOL_NONE: the answer is an embedding (OnEmbedding), no token; max_new_tokens is 0 then.
  v1::Pooling pooling = v1::POOL_NONE;
  // -1: none. Else logprobs of the prompt's tokens but the first, with so many alternatives
  // (OnPromptLogprobs).
  int32_t prompt_logprobs = -1;
  std::vector<TokenId> stop_token_ids;
  Duration timeout{};       // zero: the default
  TenantShare tenant;       // and the class of service; the router sets its patience
  int32_t priority = 0;     // greater goes first, of one tenant's
  std::string cache_scope;  // tenant and salt combined
  std::string adapter;      // digest of a LoRA adapter; "": none
  PrefillPreference prefill =
      PrefillPreference::kAuto;  // the policy's reason is then `forced-remote` / `forced-local`
  // The client's own. Where no placement is predicted to meet it, the request is refused at once.
  // Of class interactive alone.
  Objective objective;
  // Not "": the client may send it again under this key, to whichever router; the decode worker
  // keeps what it says. `answer_index` is this answer's among those of the client's request, of
  // which `content` is the hash: with another one under the same key it ends with ALREADY_EXISTS.
  std::string answer_key;
  uint32_t answer_index = 0;
  Hash128 content;
};

// Where a request was placed and why; shown to clients as x-aisp-route.
struct RouteDecision {
  std::string decode_worker;
  std::string prefill_worker;  // "": D prefills itself
  std::string pull_worker;     // from whose cache D gets the prompt's beginning first; "": none
  uint32_t pull_tokens = 0;
  std::string reason;  // one of a small fixed set, also the label of the counter: see policy.h
  double predicted_ttft_ms = 0;
  double predicted_tpot_ms = 0;
  uint32_t cached_tokens_decode = 0;
  uint32_t cached_tokens_prefill = 0;
};

// Hears of one request. Calls come from the router's thread, OnFinish last and once.
class RequestObserver {
 public:
  virtual ~RequestObserver() = default;
  // First from inside Submit, of what waits in the queue later; again after a takeover.
  virtual void OnRouted(const RouteDecision& route) = 0;
  // New tokens in order, none lost or repeated, also across a takeover. `event.timing` is set with
  // the first one; its queue_ns then also counts the router's own share since Submit. The end comes
  // by OnFinish alone.
  virtual void OnTokens(const v1::TokenEvent& event) = 0;
  virtual void OnFinish(v1::FinishReason reason, const Error& error, Duration retry_after) = 0;
  // Of the prompt's positions, in order and each once, also across a takeover; before the tokens.
  virtual void OnPromptLogprobs(const v1::PromptLogprobs& /*logprobs*/) {}
  // Before OnFinish. With the event's timing.
  virtual void OnEmbedding(const v1::TokenEvent& /*event*/) {}
};

// What a worker shall become; see SetRole in worker.proto.
struct RoleWish {
  v1::Role to = v1::ROLE_UNSPECIFIED;
  v1::Role expected = v1::ROLE_UNSPECIFIED;  // UNSPECIFIED: any
  uint64_t expected_epoch = 0;               // 0: any
  Duration move_after = std::chrono::seconds(2);
  Duration deadline = std::chrono::seconds(30);
};

// A LoRA adapter that shall be served.
struct AdapterWish {
  std::string name;
  std::string path;      // of its folder, as the workers see it
  bool replace = false;  // an adapter of this name, if there is one
};

// A registered worker as the operator sees it.
struct WorkerStatus {
  enum class State { kNotReady, kReady, kBusy, kDraining, kDrained, kParked };
  std::string id;
  uint64_t incarnation = 0;
  v1::Role role = v1::ROLE_UNSPECIFIED;
  uint64_t role_epoch = 0;
  std::vector<v1::Role> roles;               // that it can take without a restart
  v1::Role becoming = v1::ROLE_UNSPECIFIED;  // by this router's word
  bool prefill() const { return role == v1::ROLE_PREFILL; }
  State state = State::kNotReady;
  std::string unready_reason;
  std::string host_id;
  int64_t pid = 0;
  std::string admin_url;  // "": none was reported
  std::string version;
  std::string address;   // of its connection
  uint32_t running = 0;  // sequences, of all routers
  uint32_t waiting = 0;  // for blocks, a place in a step or KV
  uint32_t free_blocks = 0;
  uint32_t total_blocks = 0;
  uint32_t streams = 0;      // requests of this router on it
  uint32_t awaiting_kv = 0;  // of `waiting`: whose KV a prefill worker writes
  uint32_t quarantined_blocks = 0;
  uint64_t queued_prefill_tokens = 0;
  uint64_t steps = 0;
  uint64_t preemptions = 0;
  double transfer_bytes_per_s = 0;
  // What its steps cost, as fitted, from so many of them; and what it said of its steps and blocks.
  StepCost cost;
  uint64_t fitted_steps = 0;
  uint32_t chunk_tokens = 0;
  uint32_t launched_ahead = 0;  // steps, while one runs
  uint32_t max_batch_tokens = 0;
  uint32_t max_running = 0;
  uint32_t block_tokens = 0;
  uint32_t num_layers = 0;
  double kv_bytes_per_token = 0;
};
std::string_view WorkerStateName(WorkerStatus::State state);

// What was asked of this router and what came of it, since its start.
struct RouterTotals {
  uint64_t requests = 0;  // that were well-formed, refused ones included
  uint64_t prompt_tokens = 0;
  uint64_t placed_tokens = 0;    // prompts of those that were placed, once each
  uint64_t uncached_tokens = 0;  // of them: what no worker of their placement had in its cache
  uint64_t finished = 0;         // that ended well
  uint64_t new_tokens = 0;       // of those
};

using RequestId = StrongId<struct RequestTag, uint64_t>;

// Called by the owner of links to workers: the workers dial, the router answers.
class Router : public LinkHandler<v1::WorkerMessage> {
 public:
  Router(const RouterOptions& options, const v1::Fingerprint& expected, const Clock* clock,
         uint64_t seed, LinkSender<v1::RouterMessage>* workers, Metrics* metrics);
  ~Router() override;

  // The observer must live until OnFinish or Cancel. A refusal is the returned error (no OnFinish
  // follows); the retry hint is in *retry_after.
  Result<RequestId> Submit(RouterRequest request, RequestObserver* observer, Duration* retry_after);
  // Ends the request at once, everywhere; no call of its observer follows.
  void Cancel(RequestId id);
  // As Cancel, for a client that has all it wanted (a stop string was found): counts as a success.
  void Complete(RequestId id);

  void OnLinkUp(LinkId link, const std::string& peer_address) override;
  void OnMessage(LinkId link, v1::WorkerMessage message) override;
  void OnLinkDown(LinkId link, const Error& why) override;

  Instant NextTimer() const;
  void OnTimer(Instant now);

  // OK when a request could be placed now; else why not.
  Status Ready() const;
  // This router ends when its requests have: tells the workers, which look for its successor at the
  // same address, and accepts no registration any more. Requests are still taken. Idle() turns true
  // when the last one finished.
  void BeginDrain();
  bool Idle() const;
  // Asks one worker (by id) to drain; NOT_FOUND names the known ones. `move`: its streams go to
  // other workers at once. `stop`: its process ends when it is drained.
  Status DrainWorker(const std::string& worker_id, bool move, bool stop);
  // Asks a worker to take another role; `done` hears once, from the router's thread, whether it has
  // begun to (Workers() shows when it has it), with what the worker is then. NOT_FOUND: no such
  // worker. FAILED_PRECONDITION: role or epoch are not the expected ones, or no decode worker would
  // be left. ABORTED: it is changing already. UNAVAILABLE: it is gone or says nothing.
  struct RoleState {
    v1::Role role = v1::ROLE_UNSPECIFIED;
    uint64_t epoch = 0;
  };
  using OnRole = std::function<void(Result<RoleState>)>;
  void SetWorkerRole(const std::string& worker_id, const RoleWish& wish, OnRole done);
  // Has every worker load a LoRA adapter; `done` hears once, from the router's thread, when
  // requests may name it, or why they may not: then no worker has it. ALREADY_EXISTS: the name is
  // taken. INVALID_ARGUMENT: a worker could not load it, or there are max_adapters.
  // FAILED_PRECONDITION: the workers' files differ. UNAVAILABLE: there is no worker.
  // RESOURCE_EXHAUSTED: too many are being loaded.
  using OnAdapter = std::function<void(const Result<v1::Adapter>&)>;
  void LoadAdapter(AdapterWish wish, OnAdapter done);
  // Requests may not name it any more; those that run end with it. NOT_FOUND.
  Result<v1::Adapter> UnloadAdapter(const std::string& name);
  // In the order of their names.
  std::vector<WorkerStatus> Workers() const;
  const RouterTotals& Totals() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace aisp
