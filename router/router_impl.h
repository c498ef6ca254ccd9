// The router's state and parts: router.cc (requests in, timers), router_links.cc (workers come and
// go), router_placement.cc (where requests go), router_generate.cc (what workers are told of them),
// router_requests.cc (tokens, takeover, finish),
// router_classes.cc (queued and yielding requests), router_poison.cc (requests that crash workers),
// router_tenants.cc (shares of tenants), router_names.cc (who holds a worker's name),
// router_roles.cc (role changes), router_adapters.cc (LoRA adapters), router_repeats.cc (kept
// answers). Private to router/.
//
// Invariants:
// - by_wire_ holds exactly the placed requests; each is in its worker's `attempts` under the same
//   wire id.
// - every attempt has its own wire id, so a late token of an earlier attempt matches no request.
// - a request is either placed, in pending or in queued; it has one timer.
// - queued holds only yielding requests; exactly these have an account in queue_shares.
// - observers may call Submit and Cancel from a callback: no reference to a request is used after
//   calling one.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "router/answer_lengths.h"
#include "router/pull_rates.h"
#include "router/router.h"
#include "router/router_metrics.h"
#include "router/timer_heap.h"
#include "router/worker_state.h"

namespace aisp {

struct Router::Impl {
  using WorkerKey = std::pair<std::string, uint64_t>;  // (worker id, incarnation)

  struct Request {
    RequestId id;
    RouterRequest spec;
    std::vector<TokenId> answer;  // emitted tokens
    RequestObserver* observer = nullptr;
    FairShare::Account* account = nullptr;  // its tenant's
    FairShare* accounts = nullptr;          // the set that holds the account
    Instant ages = kNever;                  // until then it yields to interactive requests
    Instant queued_since;                   // while in the queue
    Duration retry_after{};                 // of a refusal: the predicted wait
    uint32_t prompt_tokens = 0;
    uint32_t emitted = 0;
    uint32_t prompt_scored = 1;             // prompt positions before it already have logprobs
    uint32_t preemptions = 0;               // on all workers so far
    uint32_t preemptions_before = 0;        // of these: on workers that it has left
    v1::DraftCounts drafts, drafts_before;  // likewise
    std::vector<Hash128> unit_hashes;
    Instant submitted;
    Instant deadline;
    Instant dispatched;
    Instant first_token = kNever;
    Instant last_token = kNever;
    Placement placed;  // the last placement, and what router_forecast.cc predicts for it
    double prompt_step_ms = 0, predicted_tpot_ms = 0;
    // Prefill workers of all its placements that brought no token: their loss may be reported after
    // that of the decode worker. Bounded by max_attempts.
    std::set<WorkerKey> prefill_workers;
    // Of these: lost after they were asked, as a decode worker reported.
    std::set<WorkerKey> prefill_lost;
    // Of these: the first choice of decode workers that the request left before they could report;
    // with the time.
    std::map<WorkerKey, Instant> prefill_untold;
    std::optional<WorkerKey> asks_prefill;  // the first choice of its current decode worker
    std::string pulls_from;                 // holder of its prefix in the last placement; "": none
    std::string pulls_to;                   // worker that computes the rest
    int placements = 0;
    int moves = 0;        // placements that followed a drain or silence, not a failure
    int quiet_moves = 0;  // of these: those that followed silence
    // Workers that ended with this request before its first token; and whether no other request
    // waited there.
    std::map<WorkerKey, bool> blamed;
    bool asked_holder = false;  // whether the holder of its kept answer was asked
    Instant verdict = kNever;   // held back until it is known whether those workers ended
    bool on_trial = false;      // placed only while no other request on trial waits for a token
    std::set<WorkerKey> failed_on;
    Error last_error;
    // If placed: on which worker, under which id. Else wire_id is 0.
    std::string worker;
    std::optional<WorkerKey> computed_by;  // whose cache will hold its prompt; until a token comes
    uint64_t wire_id = 0;
    uint64_t prompt_id = 0;  // shared prompt on its worker's link; 0: none
    // Pending: no return to a worker of failed_on before `not_before`, no placement after
    // `give_up`.
    Instant not_before;
    Instant give_up;

    // Prompt and emitted tokens.
    size_t length() const { return spec.tokens.size() + answer.size(); }
    std::vector<TokenId> Sequence() const;
  };

  // A lost worker and its suspects: requests without a token since. Suspects of a prefill worker
  // are reported one by one by decode workers.
  struct WorkerEnd {
    WorkerKey worker;
    Instant at;
    std::set<RequestId> suspects;
    size_t others = 0;  // suspects that are gone already
  };

  struct Link {
    std::string peer_address;
    std::string worker;  // "" until registered, and after a refusal
    Instant up;
  };

  Impl(const RouterOptions& options, const v1::Fingerprint& expected, const Clock* clock,
       uint64_t seed, LinkSender<v1::RouterMessage>* workers, Metrics* metrics);

  // router.cc
  Result<RequestId> Submit(RouterRequest spec, RequestObserver* observer, Duration* retry_after);
  Status CheckRequest(const RouterRequest& spec) const;
  Request& Open(RouterRequest spec, RequestObserver* observer, FairShare& accounts,
                FairShare::Account* account);
  void Cancel(RequestId id);
  void Complete(RequestId id);
  void OnTimer(Instant now);
  void ForgiveStall(Instant now);
  void OnRequestTimer(RequestId id, Instant now);
  void OnLinkTimer(LinkId link, Instant now);
  Status Ready() const;

  // router_links.cc
  void OnMessage(LinkId link, v1::WorkerMessage message);
  void OnLinkDown(LinkId link, const Error& why);
  void OnRegister(LinkId link, v1::Register registration);
  Status Admit(const v1::Register& registration) const;
  void RefuseRegistration(LinkId link, const std::string& worker_id, const Error& why, bool ousted);
  // Any previous holder loses the name.
  void Accept(LinkId link, v1::Register&& registration);
  bool SaidBefore(const std::string& worker_id, const std::string& reason);
  // The fingerprint of the registered workers, which agree; without any, the expected one.
  const v1::Fingerprint& PoolFingerprint() const;
  void OnTelemetry(WorkerState& worker, const v1::Telemetry& telemetry);
  void OnKvEvents(WorkerState& worker, const v1::KvEventBatch& batch);
  void OnTierEvents(WorkerState& worker, const v1::KvEventBatch& batch);
  void AskSnapshot(WorkerState& worker);
  void BeginDrain();
  void OnDraining(WorkerState& worker, const v1::Draining& draining);
  // Moves requests that draining workers want to hand back, if another worker can take them.
  void MoveStreams();
  // Removes the worker and moves its requests. `close`: closes the link too.
  void Forget(const std::string& worker_id, const Counter& cause, const Error& why, bool close);
  WorkerState* WorkerOf(LinkId link);
  WorkerState* WorkerNamed(const std::string& worker_id);
  // Called after workers came or went.
  void MakeRoster();
  void UpdateWorkerGauges();
  void UpdateLoadGauges();

  // router_quiet.cc: quiet workers, not silent long enough to be forgotten
  Instant QuietAt(const WorkerState& worker) const;
  // The worker may hang: requests that wait for their first token there move.
  void OnQuiet(WorkerState& worker);
  void OnHeardAgain(WorkerState& worker);
  std::vector<RequestId> WaitingFor(const WorkerState& worker) const;

  // router_names.cc: who holds a worker's name
  bool Ousted(const v1::Register& registration) const;
  static Error OustedError(const std::string& worker_id);
  // Probes the holder of the name, and waits.
  void Contend(LinkId link, v1::Register registration);
  // The probe timed out: the contender gets the name, or probes the current holder.
  void EndContest(LinkId link);
  // The worker of `link` is alive: contenders for its name are refused.
  void OnHolderSpoke(LinkId link);
  // The contender for the name is accepted at the next timer.
  void OnNameFree(const std::string& worker_id);
  void NoteHolder(const v1::Register& registration);

  // router_roles.cc: role changes
  void SetWorkerRole(const std::string& worker_id, const RoleWish& wish, OnRole done);
  // FAILED_PRECONDITION: no other decode worker would be left.
  Status CheckDecodeLeft(const WorkerState& worker, v1::Role to) const;
  void OnRoleAnswer(LinkId link, const v1::RoleAnswer& answer);
  void OnRoleTimer(uint64_t nonce);
  // The worker registered with the wanted role: its answer was sent on another link and is late.
  void EndRoleWaits(const v1::Register& back);
  // Callers that wait for an answer of that worker get an error.
  void EndRoleWaits(const std::string& worker_id, const Error& why);
  Error NoSuchWorker(const std::string& worker_id) const;

  // Possible placement of a request, with the views shown to the policy.
  struct Choice {
    std::vector<WorkerState*> states;
    std::vector<WorkerView> views;
    Placement placement;
  };

  // router_adapters.cc: LoRA adapters
  void LoadAdapter(AdapterWish wish, OnAdapter done);
  Result<v1::Adapter> UnloadAdapter(const std::string& name);
  Status CheckAdapterWish(const AdapterWish& wish) const;
  const v1::Adapter* AdapterNamed(const std::string& name) const;
  bool ServesAdapter(const std::string& digest) const;
  // Whether a ready decode worker has this adapter; "": any.
  bool HasReadyWorker(const std::string& digest) const;
  struct AdapterLoad {
    AdapterWish wish;
    OnAdapter done;
    uint64_t nonce = 0;
    Instant until = kNever;
    std::set<std::string> waits;                 // workers that have not answered
    std::map<std::string, std::string> digests;  // by worker
    std::vector<std::string> failures;
  };
  void StartLoads();
  void EndLoad();
  Result<v1::Adapter> ResultOf(const AdapterLoad& load) const;
  void OnAdapterAnswer(WorkerState& worker, const v1::AdapterAnswer& answer);
  // Its adapters at registration, and later changes.
  void OnAdapterReport(WorkerState& worker, const v1::AdapterReport& report);
  void OnAdapterChange(WorkerState& worker, const v1::AdapterReport& report);
  void OnAdapterWorkerGone(const std::string& worker_id);
  void OnLoadTimer(Instant now);
  v1::AdapterSet Without(const std::string& name) const;
  void SendAdapters(const WorkerState& worker);
  void Publish(v1::AdapterSet set);
  void EndUnserved();
  static Error UnservedError();

  // router_repeats.cc: kept answers
  void OnKeptAnswers(WorkerState& worker, const v1::KeptAnswers& told);
  // Its kept answers are no longer available.
  void ForgetKept(WorkerState& worker);
  void AddHolder(WorkerState& worker, const Hash128& name);
  void DropHolder(WorkerState& worker, const Hash128& name);
  // The request is no longer placed.
  void ForgetKeyed(const Request& request);
  static Hash128 AnswerName(const RouterRequest& spec);
  // The worker that keeps this request's answer, or computes it for another request of this router;
  // null: not known. Returned once per request.
  WorkerState* Holder(Request& request);
  // As a placement.
  Choice AtHolder(const Request& request, WorkerState& holder);

  // router_poison.cc: requests that crash workers
  // A worker was lost with these requests on it.
  void Blame(const WorkerState& worker, const std::vector<RequestId>& orphans);
  // Requests that may have caused its end: `orphans`, and those taken from it lately. `gone`: how
  // many of them have ended.
  void Suspects(const WorkerState& worker, const std::vector<RequestId>& orphans,
                std::set<RequestId>* present, size_t* gone) const;
  // A prefill worker was lost. Decode workers report its requests before or after this.
  void BlamePrefill(const WorkerState& worker);
  // A decode worker reports prefill workers lost while the request waited for them.
  void OnPrefillLost(Request& request, const v1::TokenEvent& event);
  void AddSuspect(WorkerEnd& end, Request& request);
  // Like AddSuspect, if no decode worker can report it any more.
  void AddUntold(WorkerEnd& end, Request& request);
  // The request leaves its decode worker, whose reports then no longer count.
  void NoteUntold(Request& request);
  // Number of entries of `left` that may have been on the worker and have ended.
  size_t Gone(const WorkerState& worker, Instant now) const;
  void AddEnd(WorkerEnd end);
  // Holds back requests that these ends convict; otherwise tries all suspects one at a time.
  void Weigh(const std::set<RequestId>& suspects);
  // The request ends without a token; nobody can report any more whether it was on prefill workers
  // that end.
  void ForgetPrefillWorkers(const Request& request);
  // Until it is known whether the workers lost with it have ended.
  void HoldBack(Request& request);
  // Whether at least two workers were lost with it, or are known to have ended.
  bool MayHaveEndedTwo(const Request& request) const;
  // Holds it back if a prefill worker of it was lost and it is not known whether that ended.
  void AwaitEnds(Request& request);
  // Choices of one request are alike and count as one suspect.
  static bool Alike(const Request& a, const Request& b);
  size_t Different(const std::set<RequestId>& suspects) const;
  bool Explains(const Request& request, const WorkerEnd& end) const;
  bool Convicted(const Request& request) const;
  // A worker computed it and survived.
  void Clear(Request& request);
  // The request ends uncleared: the ends it was suspected of no longer count.
  void ForgetSuspect(const Request& request);
  // The worker is back: the same process after a lost connection, or the successor of one that
  // exited without error.
  void Unblame(const v1::Register& worker);
  bool InStorm(Instant now) const;
  // At its verdict: true if it was refused; otherwise it may be placed again.
  bool Judge(RequestId id, Instant now);
  bool WaitsForToken(const Request& request) const;
  // Whether a waiting request (other than `but`) was sent to that prefill worker, or may use it as
  // fallback.
  bool MayPrefillOn(const WorkerKey& worker, const Request* but = nullptr) const;
  bool Suspect(const Request& request) const;
  bool AnotherOnTrial(const Request& request) const;
  void RefusePoison(RequestId id);
  // Digest of all that determines the computation except the seed, and of the tenant.
  static Hash128 DigestOf(const RouterRequest& spec);
  // INTERNAL: the same request was refused lately because it crashed workers.
  Status CheckPoison(const RouterRequest& spec);

  // router_tenants.cc
  // RESOURCE_EXHAUSTED: the tenant exceeds its share of `limit` slots, of which `taken` are in use.
  static Status CheckShare(const FairShare::Account& tenant, size_t taken, int32_t limit);
  // Order of pending or queued requests.
  std::vector<RequestId> InTurn(const std::set<RequestId>& waiting);

  // router_classes.cc: queued and yielding requests
  // RESOURCE_EXHAUSTED: too many in flight or queued.
  Status CheckInFlight(bool yields) const;
  // Whether it has not waited long enough to count as interactive.
  bool YieldsAt(const Request& request, Instant now) const;
  Duration PatienceOf(ServiceClass service_class) const;
  // RESOURCE_EXHAUSTED: interactive requests need the room.
  Status CheckRoom(const Request& request, const Choice& choice) const;
  void Enqueue(Request& request);
  // Called when it was placed or has ended.
  void RemoveFromQueue(Request& request);
  // Places queued requests for which there is room.
  void ReleaseQueued(Instant now);
  bool MayRelease(const Request& request, Instant now) const;
  // Takes yielding requests back, best-effort before batch and the newest first, until steps meet
  // the TPOT SLO, or `asked` if that is lower. They are queued with their tokens.
  void TakeBack(const std::string& worker_id, const Objective& asked);
  void Requeue(Request& request);
  static void MoveAccount(Request& request, FairShare& to);
  size_t InFlight() const { return requests.size() - queued.size(); }

  // router_placement.cc
  RequestSummary Summarize(const Request& request, bool yields);
  void SetRates(RequestSummary* summary);
  double OfAllRouters(Instant now) const;
  Hash128 RootOf(const RouterRequest& spec);
  // `quiet`: if no other worker is available, also uses quiet ones.
  Result<Choice> Choose(Request& request, bool quiet = true);
  // Places the request and sends it to its worker. UNAVAILABLE: no worker can take it now.
  // RESOURCE_EXHAUSTED: the links are full. OUT_OF_RANGE: larger than a link allows.
  Status Place(Request& request);
  static Error BeyondObjective(const Objective& asked, const Placement& best);
  // Predicted time until its objective can be met there, at most a minute: earlier prompts are
  // computed, and enough rows have ended for its TPOT.
  Duration PredictedWait(const Request& request, const Choice& choice) const;
  double UntilStepsShortenMs(const Request& request, const Choice& choice) const;
  // Moves it from a draining or quiet worker; false if no other can take it.
  bool Move(Request& request, std::string_view reason);
  // Sets the choice's views. `quiet`: quiet workers count as available.
  void SetViews(const Request& request, bool yields, bool quiet, Choice* choice);
  // Adds the prefix to pull to the decode worker's message.
  void DescribePull(Request& request, const Choice& choice, v1::GenerateRequest* generate);
  void SetLimits(const Request& request, const Choice& choice, v1::GenerateRequest* generate) const;
  v1::GenerateRequest GenerateFor(Request& request, const Choice& choice);
  // Enters it as placed on `decode`, in the router's and the worker's state.
  void EnterPlaced(Request& request, WorkerState& decode);
  // Adds its work to its workers until their telemetry shows it.
  void ChargeWorkers(Request& request, const Choice& choice);
  void CountPlaced(const Request& request, const Choice& choice);
  RouteDecision RouteOf(const Request& request, const Choice& choice) const;
  // Error: the worker's link did not accept it; nothing has changed.
  Status Dispatch(Request& request, const Choice& choice);
  Status Offer(Request& request, WorkerState& worker, v1::GenerateRequest generate);
  // One attempt fewer uses the shared prompt.
  void ReleasePrompt(WorkerState& worker, uint64_t prompt_id);
  v1::GenerateRequest MakeGenerate(const Request& request) const;
  void PredictTpot(Request& request, const Choice& choice);  // router_forecast.cc

  // router_requests.cc
  void OnTokenBatch(LinkId link, const v1::TokenBatch& batch);
  // False if the worker broke the protocol.
  bool OnTokenEvent(uint64_t wire_id, const v1::TokenEvent& event);
  void Deliver(Request& request, const v1::TokenEvent& event, int skip);
  // Outputs of prompt rows. False if the worker broke the protocol.
  bool DeliverPrompt(Request& request, const v1::TokenEvent& event);
  void DeliverEmbedding(Request& request, const v1::TokenEvent& event);
  bool IdsOfTheModel(const v1::TokenEvent& event) const;
  v1::Timing TimingOf(const Request& request, const v1::TokenEvent& event) const;
  void OnAttemptEnded(Request& request, const v1::TokenEvent& event);
  void TakeOver(Request& request, const Error& why);
  // Its worker handed it back before starting it.
  void OnHandedBack(Request& request, const Error& why);
  // Places it, or lets it wait for a worker or for room.
  void PlaceOrWait(Request& request, Instant not_before);
  void Wait(Request& request, Instant not_before);
  void MakePending(Request& request, Instant not_before);
  void PlacePending();
  // Removes the request from its worker's state.
  void Detach(Request& request);
  // From the placement to the first token: `worker` will hold its prompt.
  void Promise(Request& request, WorkerState& worker);
  void EndPromise(Request& request);
  // Its worker is told to drop it, but may still compute it.
  void SendCancelled(const Request& request);
  void Finish(Request& request, v1::FinishReason reason, Error error, Duration retry_after);
  // Removes it everywhere; `request` is invalid afterwards.
  void Remove(Request& request);
  void CountSuccess(const Request& request, v1::FinishReason reason);
  void LearnFromPull(const Request& request, const v1::PrefixPull& pull);
  void LearnFromFetch(const Request& request, const v1::PrefixPull& pull, double measured_ms);
  void LearnFromFirstToken(const Request& request, const v1::Timing& timing);
  void LearnFromEnd(const Request& request, Duration tpot);
  Request* Find(RequestId id);

  const RouterOptions options;
  const v1::Fingerprint expected;  // what the router knows itself: see PoolFingerprint
  const Clock* const clock;
  LinkSender<v1::RouterMessage>* const sender;
  const std::unique_ptr<RoutingPolicy> policy;
  RouterMetrics metrics;
  SplitMix64 random;
  uint64_t next_placement = 0;
  PoolModel pool;
  // Rates of placed work: requests, decode workers' steps with prefill rows, and their ms.
  EventRate arrivals;
  SteadyRate prompt_steps, prompt_ms, prompt_delay_ms;
  EventRate prompt_load;  // ms of prefill
  AnswerLengths answer_lengths;

  PullRates pull_rates;
  PrefixDirectory directory;       // prefixes of all workers
  PrefixDirectory host_directory;  // prefixes in their tiers
  PrefixDirectory disk_directory;
  PrefixDirectory promised;            // prefixes that they will have
  std::vector<int32_t> units_held;     // its last answer, reused memory
  std::vector<int32_t> units_in_host;  // likewise
  std::vector<int32_t> units_on_disk;
  std::vector<int32_t> strides_promised;  // likewise
  std::vector<Hash128> strides_asked;     // its last query
  // Root hashes of the most recent scopes: one costs as much as the hashes of a hundred units.
  struct Root {
    std::string digest, adapter, scope;
    Hash128 root;
  };
  std::array<Root, 64> roots;
  std::map<LinkId, Link> links;
  std::map<std::string, WorkerState> workers;  // ordered by name, so that a run can be replayed
  std::vector<WorkerState*> roster;            // the same as pointers, for the placement loop
  struct Places {
    std::optional<uint16_t> held, promised, in_host, on_disk;
  };
  std::vector<Places> places;    // of the roster, in the directories
  ptrdiff_t decode_workers = 0;  // number in the roster
  Choice spare;                  // memory reused by the next placement
  std::unordered_map<uint64_t, Request> requests;
  std::unordered_map<uint64_t, RequestId> by_wire;
  // Workers that keep an answer, by its name, the latest last; and the placed request of this
  // router that computes it.
  std::unordered_map<Hash128, std::vector<std::string>> holders;
  std::unordered_map<Hash128, RequestId> keyed;
  std::set<RequestId> pending;
  std::set<RequestId> queued;     // yielding requests that wait for room
  std::set<RequestId> aged;       // placed requests that have waited too long to yield
  Instant next_release = kNever;  // next check of the queue
  FairShare shares;               // tenants of `requests` that are not queued
  FairShare queue_shares;         // tenants of queued ones
  TimerHeap request_timers;       // by RequestId
  TimerHeap link_timers;          // by LinkId: silence, or missing registration
  // Callers that wait for a worker's answer to SetRole, by nonce; each has a timer.
  struct RoleWait {
    std::string worker;
    LinkId link;
    v1::Role to = v1::ROLE_UNSPECIFIED;
    OnRole done;
  };
  std::map<uint64_t, RoleWait> role_waits;
  TimerHeap role_timers;
  uint64_t next_role_nonce = 1;
  v1::AdapterSet adapters;             // that requests may name
  std::optional<AdapterLoad> loading;  // with its timer
  std::deque<AdapterLoad> loads_waiting;
  uint64_t next_adapter_nonce = 1;
  uint64_t adapter_author = 0;
  Instant next_load_gauges;
  // Since then the router's timers were punctual, so what it did not receive was not sent.
  Instant punctual_since = Instant{INT64_MIN};
  // Registrations under a name whose holder is being probed.
  struct Contender {
    v1::Register registration;
    uint64_t asked = 0;  // the holder's incarnation
    Instant until;
  };
  std::map<LinkId, Contender> contenders;
  struct Name {
    uint64_t holder = 0;          // last accepted incarnation
    std::deque<uint64_t> ousted;  // earlier ones
  };
  std::map<std::string, Name> names;
  std::map<std::string, std::string> refusals_said;  // by worker: the logged reason
  RouterTotals totals;
  uint64_t next_request = 1;
  uint64_t next_wire = 1;
  bool draining = false;
  std::deque<WorkerEnd> ends;  // of the last minute, oldest first, each with suspects
  // Digests (DigestOf) of refused requests with the time, oldest first.
  std::deque<std::pair<Hash128, Instant>> refused_poison;
  // Last time a worker ended without a suspect: an outside cause ends workers.
  Instant unexplained_end = Instant{INT64_MIN};
};

}  // namespace aisp
