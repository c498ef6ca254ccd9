// Router: places requests on workers and owns each request until its terminal status. A state
// machine without I/O: no socket, no HTTP, no device, no model. It handles tokens; text is
// converted outside.
//
// Thread: one (the I/O thread of the router process, or the simulation). Clock and random source
// are injected.
//
// Life of a request: Submit -> admission (a bound on requests in flight; beyond it
// RESOURCE_EXHAUSTED and a retry hint; batch and best-effort requests wait in a bounded queue until
// interactive requests leave room) -> placement {P, D} or {D} by predicted TTFT and TPOT
// (router/policy.h) -> tokens from D -> OnFinish, exactly once, by the deadline. If a decode worker
// dies, {prompt, emitted ids, seed} go to another one, and the observer sees no token lost or
// repeated. Without workers: UNAVAILABLE with a retry hint at once.
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
  // A worker that sends nothing for so long is forgotten.
  Duration silence_limit = std::chrono::seconds(2);
  // A worker that sends nothing for so long is quiet, and may hang: it gets no new requests if
  // others can take them, and requests that wait for their first token there move.
  Duration quiet_limit = std::chrono::milliseconds(250);
  // If another process claims a worker's name, the holder must answer within this time to keep it.
  Duration probe_limit = std::chrono::seconds(1);
  Duration telemetry_interval = std::chrono::milliseconds(50);
  int max_attempts = 4;  // maximum placements of one request
  Duration no_worker_retry_after = std::chrono::seconds(1);
  // Workers report deadlines themselves. The router waits this much longer for the report, then
  // ends the request.
  Duration deadline_grace = std::chrono::milliseconds(250);
  // How long a request whose worker was lost waits for another one to appear.
  Duration takeover_wait = std::chrono::seconds(10);
  // Delay before a request returns to a worker that failed it, if there is no other; doubles with
  // each placement.
  Duration retry_backoff = std::chrono::milliseconds(25);
  // A request that lost two workers is held back this long, in case they return.
  Duration poison_verdict = std::chrono::seconds(1);
  // The SLO for metrics and for placements, which prefer to meet it. No request is refused for it.
  Duration slo_ttft = std::chrono::milliseconds(500);
  Duration slo_tpot = std::chrono::milliseconds(50);
  // Bound on queued batch and best-effort requests; more are refused.
  int32_t max_queued = 1024;
  // This long after its arrival such a request counts as interactive.
  Duration batch_patience = std::chrono::seconds(60);
  Duration best_effort_patience = std::chrono::seconds(180);
  size_t max_prefix_units_per_worker = size_t{1} << 20;
  // Token ids from workers must be below it. 0: not known, not checked.
  int32_t vocabulary = 0;
  PolicyOptions policy;
  PrefixPulls pulls = PrefixPulls::kOff;
  // LoRA adapters from the settings, version 0, and the maximum number of adapters.
  v1::AdapterSet adapters;
  int32_t max_adapters = 0;
  // Called with each later set, from the router's thread.
  std::function<void(const v1::AdapterSet&)> on_adapters;
};

struct RouterRequest {
  std::string trace_id;
  SharedTokens tokens;
  // More requests come with the same `tokens` (the choices of one request); a worker gets them
  // once.
  bool shares_tokens = false;
  v1::SamplingParams sampling;  // seed 0: the router draws one
  uint32_t choice = 0;
  uint32_t max_new_tokens = 16;  // 0: no token is drawn
  uint32_t min_new_tokens = 0;
  // Not POOL_NONE: the answer is an embedding (OnEmbedding) and no token; max_new_tokens is then 0.
  v1::Pooling pooling = v1::POOL_NONE;
  // -1: none. Otherwise logprobs of all prompt tokens but the first, with so many alternatives
  // (OnPromptLogprobs).
  int32_t prompt_logprobs = -1;
  std::vector<TokenId> stop_token_ids;
  Duration timeout{};       // zero: default_timeout
  TenantShare tenant;       // and the service class; the router sets its patience
  int32_t priority = 0;     // higher goes first, among requests of one tenant
  std::string cache_scope;  // tenant and salt combined
  std::string adapter;      // digest of a LoRA adapter; "": none
  // Not kAuto: the reason is `forced-remote` or `forced-local`.
  PrefillPreference prefill = PrefillPreference::kAuto;
  // The client's own limits. If no placement is predicted to meet them, the request is refused at
  // once. Interactive requests only.
  Objective objective;
  // If set, the client may repeat the request under this key, to any router; the decode worker
  // keeps the answer. `answer_index`: index among the choices of the client's request. `content`:
  // hash of that request; a different one under the same key ends with ALREADY_EXISTS.
  std::string answer_key;
  uint32_t answer_index = 0;
  Hash128 content;
};

// Where a request was placed and why; shown to clients as x-aisp-route.
struct RouteDecision {
  std::string decode_worker;
  std::string prefill_worker;  // "": the decode worker prefills itself
  std::string pull_worker;     // the decode worker pulls a prefix from here; "": none
  uint32_t pull_tokens = 0;
  std::string reason;  // one of a small fixed set, also a metric label: see policy.h
  double predicted_ttft_ms = 0;
  double predicted_tpot_ms = 0;
  uint32_t cached_tokens_decode = 0;
  uint32_t cached_tokens_prefill = 0;
};

// Receives the events of one request, on the router's thread. OnFinish is last and comes once.
class RequestObserver {
 public:
  virtual ~RequestObserver() = default;
  // First called inside Submit, or later for queued requests; again after a takeover.
  virtual void OnRouted(const RouteDecision& route) = 0;
  // New tokens in order, none lost or repeated, also across a takeover. `event.timing` is set with
  // the first token; its queue_ns includes the router's share since Submit. The end is signalled
  // only by OnFinish.
  virtual void OnTokens(const v1::TokenEvent& event) = 0;
  virtual void OnFinish(v1::FinishReason reason, const Error& error, Duration retry_after) = 0;
  // Logprobs of the prompt's positions, in order, each once, also across a takeover; before tokens.
  virtual void OnPromptLogprobs(const v1::PromptLogprobs& /*logprobs*/) {}
  // Called before OnFinish, with the event's timing.
  virtual void OnEmbedding(const v1::TokenEvent& /*event*/) {}
};

// The role that a worker should take; see SetRole in worker.proto.
struct RoleWish {
  v1::Role to = v1::ROLE_UNSPECIFIED;
  v1::Role expected = v1::ROLE_UNSPECIFIED;  // UNSPECIFIED: any
  uint64_t expected_epoch = 0;               // 0: any
  Duration move_after = std::chrono::seconds(2);
  Duration deadline = std::chrono::seconds(30);
};

// A LoRA adapter to load.
struct AdapterWish {
  std::string name;
  std::string path;      // its folder, as the workers see it
  bool replace = false;  // an adapter of this name may be replaced
};

// A registered worker as the operator sees it.
struct WorkerStatus {
  enum class State { kNotReady, kReady, kBusy, kDraining, kDrained, kParked };
  std::string id;
  uint64_t incarnation = 0;
  v1::Role role = v1::ROLE_UNSPECIFIED;
  uint64_t role_epoch = 0;
  std::vector<v1::Role> roles;               // roles that it can take without a restart
  v1::Role becoming = v1::ROLE_UNSPECIFIED;  // by this router's order
  bool prefill() const { return role == v1::ROLE_PREFILL; }
  State state = State::kNotReady;
  std::string unready_reason;
  std::string host_id;
  int64_t pid = 0;
  std::string admin_url;  // "": not reported
  std::string version;
  std::string address;   // peer address of its connection
  uint32_t running = 0;  // sequences of all routers
  uint32_t waiting = 0;  // for blocks, a step slot or KV
  uint32_t free_blocks = 0;
  uint32_t total_blocks = 0;
  uint32_t streams = 0;      // this router's requests on it
  uint32_t awaiting_kv = 0;  // of `waiting`: a prefill worker writes their KV
  uint32_t quarantined_blocks = 0;
  uint64_t queued_prefill_tokens = 0;
  uint64_t steps = 0;
  uint64_t preemptions = 0;
  double transfer_bytes_per_s = 0;
  // Fitted step costs and the number of steps behind them; then its reported steps and blocks.
  StepCost cost;
  uint64_t fitted_steps = 0;
  uint32_t chunk_tokens = 0;
  uint32_t launched_ahead = 0;  // steps launched while one runs
  uint32_t max_batch_tokens = 0;
  uint32_t max_running = 0;
  uint32_t block_tokens = 0;
  uint32_t num_layers = 0;
  double kv_bytes_per_token = 0;
};
std::string_view WorkerStateName(WorkerStatus::State state);

// Totals since the router's start.
struct RouterTotals {
  uint64_t requests = 0;  // well-formed requests, refused ones included
  uint64_t prompt_tokens = 0;
  uint64_t placed_tokens = 0;    // prompt tokens of placed requests, once each
  uint64_t uncached_tokens = 0;  // of these: not cached on any worker of the placement
  uint64_t finished = 0;         // requests that ended normally
  uint64_t new_tokens = 0;       // of these requests
};

using RequestId = StrongId<struct RequestTag, uint64_t>;

// The owner of the links to workers calls it: workers dial, the router accepts.
class Router : public LinkHandler<v1::WorkerMessage> {
 public:
  Router(const RouterOptions& options, const v1::Fingerprint& expected, const Clock* clock,
         uint64_t seed, LinkSender<v1::RouterMessage>* workers, Metrics* metrics);
  ~Router() override;

  // The observer must live until OnFinish or Cancel. A refusal is returned as the error, without
  // OnFinish; the retry hint is in *retry_after.
  Result<RequestId> Submit(RouterRequest request, RequestObserver* observer, Duration* retry_after);
  // Ends the request at once, on all workers; its observer gets no further call.
  void Cancel(RequestId id);
  // Like Cancel, but counts as a success: the client has all it wanted (a stop string was found).
  void Complete(RequestId id);

  void OnLinkUp(LinkId link, const std::string& peer_address) override;
  void OnMessage(LinkId link, v1::WorkerMessage message) override;
  void OnLinkDown(LinkId link, const Error& why) override;

  Instant NextTimer() const;
  void OnTimer(Instant now);

  // OK if a request could be placed now; otherwise the reason why not.
  Status Ready() const;
  // Starts shutdown: workers are told to reconnect to the successor at the same address, and no
  // registration is accepted. Requests still are. Idle() becomes true when the last one finished.
  void BeginDrain();
  bool Idle() const;
  // Asks one worker (by id) to drain. NOT_FOUND: no such worker; names the known ones. `move`: its
  // streams move to other workers at once. `stop`: its process ends when drained.
  Status DrainWorker(const std::string& worker_id, bool move, bool stop);
  // Asks a worker to change its role. `done` is called once, on the router's thread, when it has
  // started to (Workers() shows the completed change) or failed. NOT_FOUND: no such worker.
  // FAILED_PRECONDITION: unexpected role or epoch, or no decode worker would be left. ABORTED: it
  // is changing already. UNAVAILABLE: it is gone or does not answer.
  struct RoleState {
    v1::Role role = v1::ROLE_UNSPECIFIED;
    uint64_t epoch = 0;
  };
  using OnRole = std::function<void(Result<RoleState>)>;
  void SetWorkerRole(const std::string& worker_id, const RoleWish& wish, OnRole done);
  // Loads a LoRA adapter on every worker. `done` is called once, on the router's thread: requests
  // may name it, or an error and no worker has it. ALREADY_EXISTS: name in use. INVALID_ARGUMENT: a
  // worker could not load it, or max_adapters. FAILED_PRECONDITION: files differ. UNAVAILABLE: no
  // worker. RESOURCE_EXHAUSTED: too many loads.
  using OnAdapter = std::function<void(const Result<v1::Adapter>&)>;
  void LoadAdapter(AdapterWish wish, OnAdapter done);
  // Requests may no longer name it; running ones finish with it. NOT_FOUND: no such adapter.
  Result<v1::Adapter> UnloadAdapter(const std::string& name);
  // Sorted by name.
  std::vector<WorkerStatus> Workers() const;
  const RouterTotals& Totals() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace aisp
