// The inside of DecodeRole; included by decode/*.cc only. Split over decode_role.cc (routers and
// the loop), tokens.cc (what sequences say), remote_prefill.cc (what is asked of prefill workers
// and what they say), lost_prefill.cc (those that were lost), pulling.cc (what is asked of workers
// that hold a prefix), repeats.cc (answers that are said again), draining.cc and fencing.cc (how
// granted blocks come back).
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
  // It has its guide, or needs none.
  // UNAVAILABLE: it has not heard of that prompt.
  Result<SharedTokens> SharedPromptOf(LinkId link, const v1::GenerateRequest& wire);
  DecodeRequest RequestOf(const v1::GenerateRequest& wire, const SequenceRequest& sequence,
                          const SharedTokens& shared, Instant received);
  void AwaitKv(const v1::GenerateRequest& wire, DecodeRequest& request);
  void Begin(LinkId link, const v1::GenerateRequest& wire, Instant received,
             std::shared_ptr<DrawGuide> guide);
  void OnCancel(LinkId link, uint64_t request_id);
  void DropRouter(LinkId link);
  // A finish event for a request that never started.
  void Refuse(LinkId link, const v1::GenerateRequest& wire, const Error& error, bool handed_back);
  std::vector<std::string> TargetsOf(const v1::GenerateRequest& wire,
                                     std::span<const TokenId> tokens) const;
  // Its requests that name it will be refused where it is too much to keep.
  void KeepPrompt(LinkId link, const v1::SharedPrompt& prompt);
  // The router wants it no more: everything of it ends, here and on the prefill worker.
  void Cancel(DecodeRequest& request);
  void Erase(DecodeRequest& request);
  DecodeRequest* Find(LinkId router, uint64_t request_id);
  // Tells every router what it had better place elsewhere: what has not started, or (`move`)
  // everything.
  void ReportDraining(bool move);
  bool NotStarted(const DecodeRequest& request) const;
  bool Drained() const;
  // After whatever may have ended the last request.
  void NoteDrained();
  Instant NextTimer() const;
  void OnTimer(Instant now);

  // --- tokens.cc ---
  void Collect();
  // Sends what became of sequences to their routers, and forgets those that ended.
  void Deliver(std::span<const TokenOutput> outputs);
  // The same of one sequence, into messages by router.
  using Messages = std::map<LinkId, v1::WorkerMessage>;
  void DeliverOne(std::span<const TokenOutput> outputs, Messages* messages);
  // Whose prompt is computed here and that has said nothing yet.
  uint32_t QueuedPrompts() const;
  void SetTiming(DecodeRequest& request, v1::TokenEvent* event);

  // --- repeats.cc ---
  // Says to whoever asks under the key of a kept answer what there is of it. True: that is all, or
  // what follows will be said too. False: the rest is yet to be computed, and `wire` asks for it.
  bool SayAgain(LinkId link, v1::GenerateRequest* wire);
  // Keeps what will be said to `wire`, where it asks for that.
  void Keep(const v1::GenerateRequest& wire, DecodeRequest* request);
  void AddReader(DecodeRequest& request, const RouterRequestId& reader);
  // When a request that came at `received` has to be over.
  Instant DeadlineOf(const v1::GenerateRequest& wire, Instant received) const;
  // That one hears no more; the last one takes the request with it.
  void DropReader(const RouterRequestId& reader);
  // What is kept now, to all routers; to one that has just accepted this worker, all of it.
  void ReportKept();
  void ReportAllKept(LinkId link);

  // --- unguided.cc ---
  // A request that waits for its guide. The engine does not know it yet.
  struct Unguided {
    v1::GenerateRequest wire;
    Instant received;
    Instant deadline;
    uint64_t turn = 0;  // an id may come again after it was cancelled
  };
  void AwaitGuide(LinkId link, const v1::GenerateRequest& wire);
  void OnGuide(const RouterRequestId& id, uint64_t turn, Result<std::shared_ptr<DrawGuide>> guide);
  void ExpireUnguided(Instant now);

  // --- remote_prefill.cc ---
  void OnSessionUp(const std::string& address) override;
  void OnPeer(const std::string& address, const v1::PrefillToDecode& message) override;
  // Asks the next target that can be reached, else runs the prompt here.
  void StartRemote(DecodeRequest& request);
  void Ask(DecodeRequest& request);
  // The request with its tokens, or with what the session has in common, told first where it is
  // new.
  Status SendPrefill(DecodeRequest& request, v1::PrefillRequest prefill);
  // The attempt under way names it no more.
  void ReleasePrompt(DecodeRequest& request);
  void OnNeed(const std::string& address, uint64_t transfer_id);
  void RefuseGrant(DecodeRequest& request);
  void SendGrant(DecodeRequest& request, const RemoteGrant& grant, const Writer& writer);
  void OnDone(const std::string& address, const v1::PrefillDone& done);
  // Whether all that was granted has been written, and nothing more may be.
  Status CheckWhole(const DecodeRequest& request, const v1::PrefillDone& done);
  void NoteFilled(DecodeRequest& request, const v1::PrefillDone& done);
  // DATA_LOSS: what lies in the pool is not what the writer sent.
  Status Verify(const DecodeRequest& request, const v1::PrefillDone& done);
  // The token that came with the KV, if any. DATA_LOSS: it cannot be what was asked for.
  Result<std::optional<SampledToken>> TakeDrawn(const DecodeRequest& request,
                                                const v1::PrefillDone& done) const;
  // What came beside the KV for the sequence's proposer; empty where nothing did that is of use.
  std::vector<float> TakeFeatures(const DecodeRequest& request, const v1::PrefillDone& done);
  void OnFailed(const std::string& address, const v1::PrefillFailed& failed);
  // The transfer of `address` that is under way under this id.
  DecodeRequest* FindTransfer(const std::string& address, uint64_t transfer_id);
  // Ends the attempt and starts the next one.
  // `expected`: nothing is wrong, as when there were no blocks for too long.
  void FailRemote(DecodeRequest& request, const std::string& reason, bool expected = false);
  // Ends the attempt towards the prefill worker only; a grant is given up.
  void EndAttempt(DecodeRequest& request);
  // The prefill worker did not ask for blocks: it has others before this one, or says nothing at
  // all.
  void FailUnasked(DecodeRequest& request);
  bool OverCap(const std::string& address, int32_t wanted_blocks) const;
  Duration LeaseFor(int32_t tokens) const;

  // --- lost_prefill.cc ---
  void OnSessionLost(const std::string& address, const Error& why) override;
  void NoteAsked(DecodeRequest& request) const;
  // The request's routers hear of the last process that was lost after it had been asked.
  void ReportLost(const DecodeRequest& request);
  // It may be what ends prefill workers: its router judges it before anybody computes it again.
  void HandBack(DecodeRequest& request);

  // --- pulling.cc ---
  // Begins the pull that the router names, or leaves it to the prefill worker.
  void PlacePull(const v1::GenerateRequest& wire, std::span<const TokenId> tokens,
                 DecodeRequest* request);
  // The id of a pull to wait for; 0: none, `*outcome` says why where one was asked for.
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
  // When a prefill worker last said anything, and whether its silence since then has been logged.
  struct Speaker {
    std::optional<Instant> last;
    bool warned = false;
  };
  std::map<std::string, Speaker> speakers;  // by address, while the session lasts
  Instant next_fence_poll = kNever;
  Instant move_at = kNever;  // while draining: running streams shall go elsewhere
  bool stop_wanted = false;
  bool told_drained = false;
  bool metrics_added = false;

  std::map<RequestKey, DecodeRequest> requests;  // ordered by arrival
  std::map<RouterRequestId, Unguided> unguided;
  uint64_t last_turn = 0;
  // Guides come from elsewhere and may come when this is gone.
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
