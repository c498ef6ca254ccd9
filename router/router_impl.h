// The router's state and its parts: router.cc (requests in, timers), router_links.cc (workers come
// and go), router_placement.cc (where requests go), router_requests.cc (tokens, takeover, finish),
// router_classes.cc (requests that wait for room, and give way), router_poison.cc (requests that
// end workers), router_tenants.cc (shares of tenants), router_names.cc (who holds a worker's name),
// router_roles.cc (who takes another role), router_adapters.cc (LoRA adapters come and go),
// router_repeats.cc (who keeps an answer that is asked for again). Private
// to router/.
//
// Invariants:
//  - by_wire_ holds exactly the requests that are placed; each stands in its worker's `attempts`
//  under the same wire id.
//  - every attempt has a wire id of its own, so that a late token of an earlier attempt finds
//  nobody.
//  - a request is either placed, in pending or in queued; it has one timer.
//  - only what yields is in queued, and its account is one of queue_shares exactly then.
//  - observers may call Submit and Cancel from a callback: no reference to a request is used after
//  calling one.
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
    std::vector<TokenId> answer;  // what was emitted
    RequestObserver* observer = nullptr;
    FairShare::Account* account = nullptr;  // of its tenant
    FairShare* accounts = nullptr;          // whose account that is
    Instant ages = kNever;                  // until then it gives way to interactive requests
    Instant queued_since;                   // while it waits in the queue
    Duration retry_after{};                 // of a refusal: the predicted wait
    uint32_t prompt_tokens = 0;
    uint32_t emitted = 0;
    uint32_t prompt_scored = 1;             // prompt positions before it need no logprob any more
    uint32_t preemptions = 0;               // on all workers so far
    uint32_t preemptions_before = 0;        // of them: on workers that it has left
    v1::DraftCounts drafts, drafts_before;  // likewise
    std::vector<Hash128> unit_hashes;
    Instant submitted;
    Instant deadline;
    Instant dispatched;
    Instant first_token = kNever;
    Instant last_token = kNever;
    Placement placed;  // the last one
    // Of all its placements without a token: their ends may be reported after that of the
    // decode worker. Bounded by max_attempts.
    std::set<WorkerKey> prefill_workers;
    // Of these: lost after they had been asked, by the word of a decode worker.
    std::set<WorkerKey> prefill_lost;
    // Of these: asked first by decode workers that left the request, or that it left, without such
    // a word, and since when.
    std::map<WorkerKey, Instant> prefill_untold;
    std::optional<WorkerKey> asks_prefill;  // where its decode worker asks first
    std::string pulls_from;  // the holder of its prefix, in the last placement; "": none
    std::string pulls_to;    // the worker that computes the rest
    int placements = 0;
    int moves = 0;  // of the placements: those that followed no failure but a drain or silence
    int quiet_moves = 0;  // of these: those that followed silence
    // Workers that ended while they had this request and had brought no token of it; and whether no
    // other one waited there.
    std::map<WorkerKey, bool> blamed;
    bool asked_holder = false;  // of its answer, under its key
    Instant verdict = kNever;   // held back until it is clear whether they really ended
    bool on_trial = false;      // placed only while no other request on trial waits for a token
    std::set<WorkerKey> failed_on;
    Error last_error;
    // Placed: on which worker under which id. Else wire_id is 0.
    std::string worker;
    std::optional<WorkerKey> computed_by;  // whose cache will hold its prompt; until a token comes
    uint64_t wire_id = 0;
    uint64_t prompt_id = 0;  // of the prompt that its worker's link shares; 0: it shares none
    // Pending: not again on a worker of failed_on before `not_before`, nowhere at all after
    // `give_up`.
    Instant not_before;
    Instant give_up;

    // The prompt and what was emitted.
    size_t length() const { return spec.tokens.size() + answer.size(); }
    std::vector<TokenId> Sequence() const;
  };

  // A worker that was lost, and who may have caused it: has got no token since. Those of a prefill
  // worker are reported one by one, by decode workers; until then it has none.
  struct WorkerEnd {
    WorkerKey worker;
    Instant at;
    std::set<RequestId> suspects;
    size_t others = 0;  // that may have caused it too, and are gone
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
  // Whoever held the name holds it no more.
  void Accept(LinkId link, v1::Register&& registration);
  bool SaidBefore(const std::string& worker_id, const std::string& reason);
  // The registered workers', which agree on all that matters; without any, what the router expects.
  const v1::Fingerprint& PoolFingerprint() const;
  void OnTelemetry(WorkerState& worker, const v1::Telemetry& telemetry);
  void OnKvEvents(WorkerState& worker, const v1::KvEventBatch& batch);
  void OnTierEvents(WorkerState& worker, const v1::KvEventBatch& batch);
  void AskSnapshot(WorkerState& worker);
  void BeginDrain();
  void OnDraining(WorkerState& worker, const v1::Draining& draining);
  // Places elsewhere what draining workers would rather not have, where there is somebody to take
  // it.
  void MoveStreams();
  // Removes the worker and moves its requests to others. `close`: ends the link too.
  void Forget(const std::string& worker_id, const Counter& cause, const Error& why, bool close);
  WorkerState* WorkerOf(LinkId link);
  WorkerState* WorkerNamed(const std::string& worker_id);
  // After workers came or went.
  void MakeRoster();
  void UpdateWorkerGauges();
  void UpdateLoadGauges();

  // router_quiet.cc: workers that say nothing for a while, but not long enough to be forgotten
  Instant QuietAt(const WorkerState& worker) const;
  // It may stand still: what waits for its first token there is placed elsewhere.
  void OnQuiet(WorkerState& worker);
  void OnHeardAgain(WorkerState& worker);
  std::vector<RequestId> WaitingFor(const WorkerState& worker) const;

  // router_names.cc: who holds a worker's name
  bool Ousted(const v1::Register& registration) const;
  static Error OustedError(const std::string& worker_id);
  // Asks the holder of the name, and waits.
  void Contend(LinkId link, v1::Register registration);
  // Its time is over: the contender gets the name, or asks whoever has it now.
  void EndContest(LinkId link);
  // The worker of `link` is there: whoever wants its name is refused.
  void OnHolderSpoke(LinkId link);
  // Who waits for the name is accepted by the next timer.
  void OnNameFree(const std::string& worker_id);
  void NoteHolder(const v1::Register& registration);

  // router_roles.cc: workers that take another role
  void SetWorkerRole(const std::string& worker_id, const RoleWish& wish, OnRole done);
  // FAILED_PRECONDITION when no other decode worker would be left.
  Status CheckDecodeLeft(const WorkerState& worker, v1::Role to) const;
  void OnRoleAnswer(LinkId link, const v1::RoleAnswer& answer);
  void OnRoleTimer(uint64_t nonce);
  // It has the role already that some wait for: its answer is on another link, and late.
  void EndRoleWaits(const v1::Register& back);
  // Whoever waits for an answer of that worker hears that there is none.
  void EndRoleWaits(const std::string& worker_id, const Error& why);
  Error NoSuchWorker(const std::string& worker_id) const;

  // Where a request could go now, with what the policy was shown.
  struct Choice {
    std::vector<WorkerState*> states;
    std::vector<WorkerView> views;
    Placement placement;
  };

  // router_adapters.cc: LoRA adapters that come and go
  void LoadAdapter(AdapterWish wish, OnAdapter done);
  Result<v1::Adapter> UnloadAdapter(const std::string& name);
  Status CheckAdapterWish(const AdapterWish& wish) const;
  const v1::Adapter* AdapterNamed(const std::string& name) const;
  bool ServesAdapter(const std::string& digest) const;
  // A decode worker with this adapter; "": that is no question.
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
  // What it has, as it registers; and later.
  void OnAdapterReport(WorkerState& worker, const v1::AdapterReport& report);
  void OnAdapterChange(WorkerState& worker, const v1::AdapterReport& report);
  void OnAdapterWorkerGone(const std::string& worker_id);
  void OnLoadTimer(Instant now);
  v1::AdapterSet Without(const std::string& name) const;
  void SendAdapters(const WorkerState& worker);
  void Publish(v1::AdapterSet set);
  void EndUnserved();
  static Error UnservedError();

  // router_repeats.cc: answers that are kept
  void OnKeptAnswers(WorkerState& worker, const v1::KeptAnswers& told);
  // Nothing that it keeps can be asked for any more.
  void ForgetKept(WorkerState& worker);
  void AddHolder(WorkerState& worker, const Hash128& name);
  void DropHolder(WorkerState& worker, const Hash128& name);
  // The request is placed no more.
  void ForgetKeyed(const Request& request);
  static Hash128 AnswerName(const RouterRequest& spec);
  // The worker that keeps what this request asks for, or computes it for another one of this
  // router; null: nobody is known to. A request is told once.
  WorkerState* Holder(Request& request);
  // The same as a placement.
  Choice AtHolder(const Request& request, WorkerState& holder);

  // router_poison.cc: requests that end workers
  // A worker was lost and these were on it.
  void Blame(const WorkerState& worker, const std::vector<RequestId>& orphans);
  // Who may have caused its end: those, and who was taken from it lately; of these some are `gone`.
  void Suspects(const WorkerState& worker, const std::vector<RequestId>& orphans,
                std::set<RequestId>* present, size_t* gone) const;
  // A prefill worker was lost; decode workers report which requests it had, before or after this.
  void BlamePrefill(const WorkerState& worker);
  // The word of a decode worker that these were lost while the request waited for them.
  void OnPrefillLost(Request& request, const v1::TokenEvent& event);
  void AddSuspect(WorkerEnd& end, Request& request);
  // As AddSuspect, of one that a decode worker can tell nothing of any more.
  void AddUntold(WorkerEnd& end, Request& request);
  // It leaves its decode worker, whose word about it counts no more.
  void NoteUntold(Request& request);
  // What of `left` may have been on the worker, and is not there any more.
  size_t Gone(const WorkerState& worker, Instant now) const;
  void AddEnd(WorkerEnd end);
  // Holds back whom these ends convict, else tries all suspects one at a time.
  void Weigh(const std::set<RequestId>& suspects);
  // It ends without a token, and nobody will say any more whether it was on prefill workers that
  // end, or have just ended.
  void ForgetPrefillWorkers(const Request& request);
  // Until it is clear whether those that were lost with it have ended.
  void HoldBack(Request& request);
  // Two at least were lost with it, or are known to have ended.
  bool MayHaveEndedTwo(const Request& request) const;
  // Holds it back where one of them is a prefill worker whose end, if it is one, is not known yet.
  void AwaitEnds(Request& request);
  // The choices of one request do the same to workers, and are one suspect.
  static bool Alike(const Request& a, const Request& b);
  size_t Different(const std::set<RequestId>& suspects) const;
  bool Explains(const Request& request, const WorkerEnd& end) const;
  bool Convicted(const Request& request) const;
  // A worker computed it and lives.
  void Clear(Request& request);
  // It ends without having been cleared: its ends say nothing any more.
  void ForgetSuspect(const Request& request);
  // It is back: the same process, of which only the connection was lost, or the successor of one
  // that ended in good order.
  void Unblame(const v1::Register& worker);
  bool InStorm(Instant now) const;
  // At the time of its verdict: true when it was refused, else it may be placed again.
  bool Judge(RequestId id, Instant now);
  bool WaitsForToken(const Request& request) const;
  // A request that waits for a token (`but` this one) was sent to that prefill worker, or may be as
  // a fallback.
  bool MayPrefillOn(const WorkerKey& worker, const Request* but = nullptr) const;
  bool Suspect(const Request& request) const;
  bool AnotherOnTrial(const Request& request) const;
  void RefusePoison(RequestId id);
  // Of all that decides what workers compute for it, but for the seed; and of its tenant.
  static Hash128 DigestOf(const RouterRequest& spec);
  // INTERNAL when the same was refused lately because it ended workers.
  Status CheckPoison(const RouterRequest& spec);

  // router_tenants.cc
  // RESOURCE_EXHAUSTED when the tenant's last request is one more than its share of `limit` places,
  // of which so many are taken.
  static Status CheckShare(const FairShare::Account& tenant, size_t taken, int32_t limit);
  // Of pending or queued ones.
  std::vector<RequestId> InTurn(const std::set<RequestId>& waiting);

  // router_classes.cc: requests that wait for room, and give way
  // RESOURCE_EXHAUSTED when no more may be in flight, or wait in the queue.
  Status CheckInFlight(bool yields) const;
  // It has not waited long enough to go as an interactive one.
  bool YieldsAt(const Request& request, Instant now) const;
  Duration PatienceOf(ServiceClass service_class) const;
  // RESOURCE_EXHAUSTED when interactive requests need the room.
  Status CheckRoom(const Request& request, const Choice& choice) const;
  void Enqueue(Request& request);
  // It waits no more: it was placed or has ended.
  void RemoveFromQueue(Request& request);
  // Places what there is room for.
  void ReleaseQueued(Instant now);
  bool MayRelease(const Request& request, Instant now) const;
  // Takes requests back that yield, the last ones first, until the running streams' steps are as
  // short as is asked for; they wait in the queue with what they have.
  void TakeBack(const std::string& worker_id, const Objective& asked);
  void Requeue(Request& request);
  static void MoveAccount(Request& request, FairShare& to);
  size_t InFlight() const { return requests.size() - queued.size(); }

  // router_placement.cc
  RequestSummary Summarize(const Request& request, bool yields);
  void SetRates(RequestSummary* summary);
  Hash128 RootOf(const RouterRequest& spec);
  // `quiet`: where no other worker can take it, also one that says nothing at the moment.
  Result<Choice> Choose(Request& request, bool quiet = true);
  // Places the request and tells its worker. UNAVAILABLE when no worker can take it now,
  // RESOURCE_EXHAUSTED when their links are full, OUT_OF_RANGE when it is larger than a link takes.
  Status Place(Request& request);
  static Error BeyondObjective(const Objective& asked, const Placement& best);
  // Until what a request asks for is likely to be kept there, a minute at most: what waits before
  // it is done, and so many rows have ended that steps are short enough for its time for a token.
  Duration PredictedWait(const Request& request, const Choice& choice) const;
  double UntilStepsShortenMs(const Request& request, const Choice& choice) const;
  // From its worker, which drains or is quiet, to another one; false when there is none.
  bool Move(Request& request, std::string_view reason);
  // Sets all of it but the placement. `quiet`: workers that say nothing count as available.
  void SetViews(const Request& request, bool yields, bool quiet, Choice* choice);
  // What the decode worker is told of a prefix that it shall pull.
  void DescribePull(Request& request, const Choice& choice, v1::GenerateRequest* generate);
  v1::GenerateRequest GenerateFor(Request& request, const Choice& choice);
  // It is on `decode` now, by the books of the router and of the worker.
  void EnterPlaced(Request& request, WorkerState& decode);
  // What its workers will report of it, until they do.
  void ChargeWorkers(Request& request, const Choice& choice);
  void CountPlaced(const Request& request, const Choice& choice);
  RouteDecision RouteOf(const Request& request, const Choice& choice) const;
  // An error says why the worker's link did not take it; nothing has happened then.
  Status Dispatch(Request& request, const Choice& choice);
  Status Offer(Request& request, WorkerState& worker, v1::GenerateRequest generate);
  // One attempt less names it.
  void ReleasePrompt(WorkerState& worker, uint64_t prompt_id);
  v1::GenerateRequest MakeGenerate(const Request& request) const;

  // router_requests.cc
  void OnTokenBatch(LinkId link, const v1::TokenBatch& batch);
  // False when the worker broke the protocol.
  bool OnTokenEvent(uint64_t wire_id, const v1::TokenEvent& event);
  void Deliver(Request& request, const v1::TokenEvent& event, int skip);
  // What came of its prompt's rows. False when the worker broke the protocol.
  bool DeliverPrompt(Request& request, const v1::TokenEvent& event);
  void DeliverEmbedding(Request& request, const v1::TokenEvent& event);
  bool IdsOfTheModel(const v1::TokenEvent& event) const;
  v1::Timing TimingOf(const Request& request, const v1::TokenEvent& event) const;
  void OnAttemptEnded(Request& request, const v1::TokenEvent& event);
  void TakeOver(Request& request, const Error& why);
  // Its worker gave it back untouched.
  void OnHandedBack(Request& request, const Error& why);
  // Places it, or it waits: for a worker, or for room.
  void PlaceOrWait(Request& request, Instant not_before);
  void Wait(Request& request, Instant not_before);
  void MakePending(Request& request, Instant not_before);
  void PlacePending();
  // Takes the request off its worker's books.
  void Detach(Request& request);
  // From its placement to its first token: `worker` computes its prompt.
  void Promise(Request& request, WorkerState& worker);
  void EndPromise(Request& request);
  // Its worker is told to drop it, and may be computing it still.
  void SendCancelled(const Request& request);
  void Finish(Request& request, v1::FinishReason reason, Error error, Duration retry_after);
  // Off all books; `request` is gone after it.
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
  // Of what was placed: requests, steps of decode workers with prompts, and their milliseconds.
  EventRate arrivals;
  SteadyRate prompt_steps, prompt_ms, prompt_delay_ms;
  EventRate prompt_load;  // of milliseconds of prompts
  AnswerLengths answer_lengths;

  PullRates pull_rates;
  PrefixDirectory directory;       // of all workers' prefixes
  PrefixDirectory host_directory;  // and of what their tiers hold
  PrefixDirectory disk_directory;
  PrefixDirectory promised;            // and of those that they will have
  std::vector<int32_t> units_held;     // its last answer
  std::vector<int32_t> units_in_host;  // likewise
  std::vector<int32_t> units_on_disk;
  std::vector<int32_t> strides_promised;  // likewise
  std::vector<Hash128> strides_asked;     // and what it was asked
  // Roots of the scopes that asked last: one costs as much as the hashes of a hundred units.
  struct Root {
    std::string digest, adapter, scope;
    Hash128 root;
  };
  std::array<Root, 64> roots;
  std::map<LinkId, Link> links;
  std::map<std::string, WorkerState>
      workers;                       // in the order of their names, so that a run can be replayed
  std::vector<WorkerState*> roster;  // the same, for the loop of every placement
  struct Places {
    std::optional<uint16_t> held, promised, in_host, on_disk;
  };
  std::vector<Places> places;    // of the roster, in the directories
  ptrdiff_t decode_workers = 0;  // of them
  Choice spare;                  // whose memory the next placement uses
  std::unordered_map<uint64_t, Request> requests;
  std::unordered_map<uint64_t, RequestId> by_wire;
  // Who keeps an answer, by its name, the last to say so at the end; and which request of this
  // router that is placed asks for it.
  std::unordered_map<Hash128, std::vector<std::string>> holders;
  std::unordered_map<Hash128, RequestId> keyed;
  std::set<RequestId> pending;
  std::set<RequestId> queued;     // what yields and waits for room
  std::set<RequestId> aged;       // of what is placed: what has waited too long to yield
  Instant next_release = kNever;  // the queue is looked at
  FairShare shares;               // of the tenants of `requests` that are not queued
  FairShare queue_shares;         // of those that are
  TimerHeap request_timers;       // by RequestId
  TimerHeap link_timers;          // by LinkId: silence, or no registration
  // Who waits for a worker's answer to SetRole, by nonce; each has a timer.
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
  // Since then its timers have not been late, so that what it has not heard was not said.
  Instant punctual_since = Instant{INT64_MIN};
  // Registrations under a name whose holder is being asked.
  struct Contender {
    v1::Register registration;
    uint64_t asked = 0;  // the holder's incarnation
    Instant until;
  };
  std::map<LinkId, Contender> contenders;
  struct Name {
    uint64_t holder = 0;          // the incarnation that was accepted last
    std::deque<uint64_t> ousted;  // those before it
  };
  std::map<std::string, Name> names;
  std::map<std::string, std::string> refusals_said;  // by worker: the reason that the log has
  RouterTotals totals;
  uint64_t next_request = 1;
  uint64_t next_wire = 1;
  bool draining = false;
  std::deque<WorkerEnd> ends;  // of the last minute, oldest first, each with suspects
  // What was refused for that, by DigestOf, and when; oldest first.
  std::deque<std::pair<Hash128, Instant>> refused_poison;
  // When a worker last ended that had nothing to blame: workers are being ended from outside.
  Instant unexplained_end = Instant{INT64_MIN};
};

}  // namespace aisp
