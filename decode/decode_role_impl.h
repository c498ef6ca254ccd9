// The implementation of DecodeRole; for decode/*.cc only. Split over decode_role.cc (routers and
// the loop), tokens.cc (outputs of sequences), remote_prefill.cc (requests to prefill workers and
// their answers), lost_prefill.cc (lost prefill workers), pulling.cc (pulled prefixes), repeats.cc
// (kept answers), draining.cc and fencing.cc (how granted blocks return).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "decode/decode_request.h"
#include "decode/decode_role.h"
#include "decode/lease_book.h"
#include "decode/prefill_peers.h"
#include "decode/prefix_puller.h"
#include "decode/speculation_metrics.h"
#include "proto/shared_prompts.h"
#include "worker/prefix_fetcher.h"
#include "worker/worker_shell.h"

namespace aisp {

struct DecodeRole::Impl final : public LinkHandler<v1::PrefillToDecode>,
                                public PrefillPeers::Listener,
                                public PrefixPuller::Listener,
                                public PrefixFetcher {
  explicit Impl(const DecodeOptions& opts) : options(opts), answers(opts.answers) {}

  // --- LinkHandler: prefill workers ---
  void OnLinkUp(LinkId link, const std::string& /*peer_address*/) override {
    peers->OnLinkUp(link);
  }
  void OnMessage(LinkId link, v1::PrefillToDecode message) override;
  void OnLinkDown(LinkId link, const Error& why) override { peers->OnLinkDown(link, why); }

  // --- decode_role.cc ---
  void AddMetrics(Metrics& metrics);
  void AddSpeculationMetrics(Metrics& metrics, const MetricLabels& labels);
  void OnGenerate(LinkId link, v1::GenerateRequest wire);
  // The shared prompt that the request names. UNAVAILABLE: it is not known here.
  Result<SharedTokens> SharedPromptOf(LinkId link, const v1::GenerateRequest& wire);
  DecodeRequest RequestOf(const v1::GenerateRequest& wire, const SequenceRequest& sequence,
                          const SharedTokens& shared, Instant received);
  void AwaitKv(const v1::GenerateRequest& wire, DecodeRequest& request);
  void Begin(LinkId link, const v1::GenerateRequest& wire, Instant received,
             std::shared_ptr<DrawGuide> guide);
  void OnCancel(LinkId link, uint64_t request_id);
  void DropRouter(LinkId link);
  // Sends a finish event for a request that never started.
  void Refuse(LinkId link, const v1::GenerateRequest& wire, const Error& error, bool handed_back);
  std::vector<std::string> TargetsOf(const v1::GenerateRequest& wire,
                                     std::span<const TokenId> tokens) const;
  // If the prompt is too large to keep, requests that name it will be refused.
  void KeepPrompt(LinkId link, const v1::SharedPrompt& prompt);
  // Its router cancelled it: ends everything of it, here and on the prefill worker.
  void Cancel(DecodeRequest& request);
  void Erase(DecodeRequest& request);
  DecodeRequest* Find(LinkId router, uint64_t request_id);
  // Tells every router what to place elsewhere: requests that have not started, or (`move`) all.
  void ReportDraining(bool move);
  bool NotStarted(const DecodeRequest& request) const;
  bool Drained() const;
  // Called after whatever may have ended the last request.
  void NoteDrained();
  Instant NextTimer() const;
  void OnTimer(Instant now);

  // --- tokens.cc ---
  void Collect();
  // Sends outputs to their routers, and forgets requests that ended.
  void Deliver(std::span<const TokenOutput> outputs);
  // The same for one sequence, into messages by router.
  using Messages = std::map<LinkId, v1::WorkerMessage>;
  void DeliverOne(std::span<const TokenOutput> outputs, Messages* messages);
  // Number of requests prefilled here that have no output yet.
  uint32_t QueuedPrompts() const;
  void SetTiming(DecodeRequest& request, v1::TokenEvent* event);

  // --- repeats.cc ---
  //
  // Sends what is kept under the request's key. True: that is all, or the rest will follow. False:
  // the rest must be computed, and `wire` then asks for it.
  bool SayAgain(LinkId link, v1::GenerateRequest* wire);
  // Keeps the answer to `wire`, if it asks for that.
  void Keep(const v1::GenerateRequest& wire, DecodeRequest* request);
  void AddReader(DecodeRequest& request, const RouterRequestId& reader);
  // The deadline of a request that came at `received`.
  Instant DeadlineOf(const v1::GenerateRequest& wire, Instant received) const;
  // Removes a receiver; without any left the request ends.
  void DropReader(const RouterRequestId& reader);
  // Reports changes of the kept answers to all routers, and all of them to a new router.
  void ReportKept();
  void ReportAllKept(LinkId link);

  // --- unguided.cc ---
  //
  // A request that waits for its guide. The engine does not know it yet.
  struct Unguided {
    v1::GenerateRequest wire;
    Instant received;
    Instant deadline;
    uint64_t turn = 0;  // an id may be reused after it was cancelled
  };
  void AwaitGuide(LinkId link, const v1::GenerateRequest& wire);
  void OnGuide(const RouterRequestId& id, uint64_t turn, Result<std::shared_ptr<DrawGuide>> guide);
  void ExpireUnguided(Instant now);

  // --- remote_prefill.cc ---
  void OnSessionUp(const std::string& address) override;
  void OnPeer(const std::string& address, const v1::PrefillToDecode& message) override;
  bool HasNotes() const;
  // Notes say that a writer is done, before its message over the link, which is then a repetition.
  void TakeNotes();
  // Asks the next target that is reachable; otherwise runs the prompt here.
  void StartRemote(DecodeRequest& request);
  void Ask(DecodeRequest& request);
  // Sends the request with its tokens, or with a reference to a shared prompt, sent first if new.
  Status SendPrefill(DecodeRequest& request, v1::PrefillRequest prefill);
  // The current attempt no longer refers to its shared prompt.
  void ReleasePrompt(DecodeRequest& request);
  // Grants blocks with the request if its prefill worker has no other request of ours: then it
  // runs at once, and asking for blocks would delay it.
  void GrantEarly(DecodeRequest& request, v1::PrefillRequest* prefill);
  void OnNeed(const std::string& address, uint64_t transfer_id);
  // RESOURCE_EXHAUSTED: not now. Other errors: never.
  Result<RemoteGrant> TakeGrant(DecodeRequest& request);
  void RefuseGrant(DecodeRequest& request);
  // Opens its lease. The message that hands it to the writer.
  v1::Grant OpenGrant(DecodeRequest& request, const RemoteGrant& grant);
  // The prefill worker runs others first and asks later.
  void TakeBackGrant(DecodeRequest& request);
  void OnDone(const std::string& address, const v1::PrefillDone& done);
  // Checks that everything granted was written, and that no more writes can come.
  Status CheckWhole(const DecodeRequest& request, const v1::PrefillDone& done);
  void NoteFilled(DecodeRequest& request, const v1::PrefillDone& done);
  // DATA_LOSS: the pool does not hold what the writer sent.
  Status Verify(const DecodeRequest& request, const v1::PrefillDone& done);
  // The token that came with the KV, if any. DATA_LOSS: it does not match the request.
  Result<std::optional<SampledToken>> TakeDrawn(const DecodeRequest& request,
                                                const v1::PrefillDone& done) const;
  // Features that came with the KV for the sequence's proposer; empty if none are usable.
  std::vector<float> TakeFeatures(const DecodeRequest& request, const v1::PrefillDone& done);
  void OnFailed(const std::string& address, const v1::PrefillFailed& failed);
  // The current transfer of `address` with this id.
  DecodeRequest* FindTransfer(const std::string& address, uint64_t transfer_id);
  // Ends the attempt and starts the next one. `expected`: no fault, such as a long lack of blocks.
  void FailRemote(DecodeRequest& request, const std::string& reason, bool expected = false);
  // Ends the attempt towards the prefill worker only; revokes a grant.
  void EndAttempt(DecodeRequest& request);
  // The prefill worker did not ask for blocks in time: it is busy or silent.
  void FailUnasked(DecodeRequest& request);
  bool OverCap(const std::string& address, int32_t wanted_blocks) const;
  Duration LeaseFor(int32_t tokens) const;

  // --- lost_prefill.cc ---
  void OnSessionLost(const std::string& address, const Error& why) override;
  void NoteAsked(DecodeRequest& request) const;
  // Reports the most recently lost prefill worker that was asked to the request's routers.
  void ReportLost(const DecodeRequest& request);
  // The request may be what kills prefill workers: its router decides before it is computed again.
  void HandBack(DecodeRequest& request);

  // --- pulling.cc ---
  //
  // Starts the pull that the router named, or leaves it to the prefill worker.
  void PlacePull(const v1::GenerateRequest& wire, std::span<const TokenId> tokens,
                 DecodeRequest* request);
  // The id of the pull to wait for; 0: none, `*outcome` says why if one was requested.
  uint64_t StartPull(const v1::GenerateRequest& wire, std::span<const TokenId> tokens,
                     PullOutcome* outcome);
  void OnPulled(uint64_t pull, const PullOutcome& outcome) override;
  bool MayGrant(const std::string& address, int32_t blocks) const override;
  uint64_t NextTransfer() override { return ++last_transfer; }
  // For the prefill role of this process.
  uint64_t Fetch(const v1::PrefillRequest& of, std::span<const TokenId> tokens,
                 PrefixFetcher::Done done) override;
  void Abandon(uint64_t fetch) override;
  void ReportFetched(uint64_t pull, const PullOutcome& outcome);
  void AddFetchMetrics(Metrics& metrics, const MetricLabels& labels) override {
    puller->AddMetrics(metrics, labels);
  }

  // --- fencing.cc ---
  void GiveUpLease(Epoch epoch) override;
  void EndLease(Lease& lease);
  void OnFence(const std::string& address, Epoch epoch);
  void SendRevoke(const Lease& lease);
  void PollFences(Instant now);

  const DecodeOptions options;
  DecodeDeps deps;
  std::optional<WorkerShell> shell;
  std::optional<PrefillPeers> peers;
  LeaseBook leases;
  std::optional<PrefixPuller> puller;
  struct Fetching {
    uint64_t pull = 0;
    PrefixFetcher::Done done;
  };
  std::map<uint64_t, Fetching> fetches;
  uint64_t last_fetch = 0;
  KeptAnswers answers;
  std::map<LinkId, SharedPromptsIn> prompts;            // by router
  std::map<std::string, SharedPromptsOut> prompts_out;  // by address of the prefill worker
  // When a prefill worker last sent anything, and whether its silence since was logged.
  struct Speaker {
    std::optional<Instant> last;
    bool warned = false;
  };
  std::map<std::string, Speaker> speakers;  // by address, while the session exists
  Instant next_fence_poll = kNever;
  Instant move_at = kNever;  // while draining: when running streams must move
  bool stop_wanted = false;
  bool told_drained = false;
  bool metrics_added = false;

  std::map<RequestKey, DecodeRequest> requests;  // ordered by arrival
  std::map<RouterRequestId, Unguided> unguided;
  uint64_t last_turn = 0;
  // Guides come from other threads, possibly after this object is gone.
  std::shared_ptr<Impl*> self = std::make_shared<Impl*>(this);
  uint64_t last_request = 0;
  uint64_t last_transfer = 0;
  std::map<RouterRequestId, RequestKey> by_router_id;
  std::unordered_map<SequenceId, RequestKey> by_sequence;
  std::unordered_map<uint64_t, RequestKey> by_transfer;

  Counter remote_filled;
  Counter first_drawn;
  Counter remote_failed;
  Counter local_fallbacks;
  Counter grants;
  Counter grants_refused;
  Counter data_loss;
  Counter verified, corrupt;
  Counter notes_taken;
  SpeculationMetrics speculation;
  Counter features_came, features_absent, features_refused;
  Counter forced_proposed, forced_accepted;
  Counter repeated_ended, repeated_running, repeated_resumed, repeats_refused, answers_dropped;
  Gauge answers_kept, answer_bytes;
  uint64_t answers_dropped_told = 0;
  Counter tokens_out;
  Counter finished;
  Histogram ttft_queue;
  Histogram ttft_prefill;
  Histogram ttft_transfer;
  Histogram ttft_first_decode;
  Histogram kv_transfer;
};

}  // namespace aisp
