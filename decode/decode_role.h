// DecodeRole: the worker that owns a request for its life: it prefills the prompt itself or has a
// prefill worker write the KV into its pool, then decodes and streams tokens to the router. A state
// machine without I/O.
//
// A remote prefill: session to the prefill worker (dialled on first use, kept), PrefillRequest,
// NeedBlocks -> Grant (blocks with an epoch and a lease) or GrantRefused, PrefillDone (epoch and
// token-layer count are checked). The first token comes with it; if the prefill worker could not
// draw it, the last prompt token runs as the first decode row. When the lease runs out, or the
// prefill worker fails, falls silent or is lost, the attempt ends: the next fallback is tried, then
// the prompt runs here. The router is told of lost prefill workers, and after two it gets the
// request back. Blocks of a revoked grant return on the writer's FenceAck, on a transport that
// fences on this side, or on proof of the writer's death; never by time. A prompt whose uncached
// part is smaller than a block runs here.
//
// A pull: if the router names a worker that holds the prompt's prefix, that is fetched first
// (decode/prefix_puller.h); then the request continues as above.
//
// Every request ends with exactly one finish event, unless its router cancelled it or is gone. The
// answer to a request with an AnswerKey is kept (decode/kept_answers.h): whoever asks under the
// same key receives it from its start, then its continuation.
//
// Thread: the worker's engine thread. Wiring (the role and the links need each other):
//   Engine engine(engine_options, &executor, &clock, /*sink=*/nullptr);
//   DecodeRole role(options);
//   auto routers = MakeRouterDialer(&role, post);
//   auto peers = MakeKvPeerDialer(role.peer_links(), post);
//   // transports registered with the pool; fastest first
//   role.Wire({&engine, &clock, routers.get(), peers.get(), {&shm, &tcp}, &death, &metrics});
//   role.Start();
// The role must be destroyed before what it was wired to.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/metrics.h"
#include "decode/kept_answers.h"
#include "decode/prefix_puller.h"
#include "engine/engine.h"
#include "kvcache/transport/kv_transport.h"
#include "proto/link.h"
#include "worker/peer_death.h"
#include "worker/prefix_fetcher.h"
#include "worker/worker_role.h"

namespace aisp {

struct DecodeOptions {
  WorkerOptions worker;
  int32_t max_sequence_tokens = 0;                       // reported to routers
  int32_t max_running = 0;                               // reported to routers
  Duration default_timeout = std::chrono::seconds(300);  // for requests without one
  // A grant's lease: the base plus a time per 1000 tokens to compute.
  Duration lease_base = std::chrono::seconds(5);
  Duration lease_per_1k_tokens = std::chrono::seconds(2);
  // After this without NeedBlocks (from PrefillRequest, or between refusals) it counts as silent.
  Duration prefill_silence_limit = std::chrono::seconds(10);
  Duration refused_retry_hint = std::chrono::milliseconds(10);
  // A writer that owes an acknowledgement for longer gets no new grants. It answers between its
  // steps.
  Duration fence_grace = std::chrono::seconds(1);
  // Limit of blocks that one prefill worker holds, quarantined ones included; 0: half of the pool.
  // A single grant is always possible while it holds none.
  int32_t max_granted_blocks_per_peer = 0;
  // Minimum of uncached tokens for a remote prefill; 0: one block.
  int32_t min_remote_tokens = 0;
  // While acknowledgements are owed: how often to look for proof of death and to redial lost
  // writers.
  Duration fence_poll_interval = std::chrono::milliseconds(20);
  Duration peer_attach_limit = std::chrono::seconds(2);
  // Features that the engine's executor returns (ModelOptions::feature_layers), also requested of
  // prefill workers.
  std::vector<int32_t> feature_layers;
  PrefixPuller::Options pulls;
  KeptAnswers::Options answers;
  // Makes the guide of a constrained request; if unset, such requests are refused. Must be fast: if
  // compilation is needed, it returns null and calls `later` on the engine thread.
  using OnGuide = std::function<void(Result<std::shared_ptr<DrawGuide>>)>;
  std::function<Result<std::shared_ptr<DrawGuide>>(const v1::GenerateRequest&, OnGuide later)>
      guides;
};

struct DecodeDeps {
  Engine* engine = nullptr;
  const Clock* clock = nullptr;
  LinkDialer<v1::WorkerMessage>* routers = nullptr;
  LinkDialer<v1::DecodeToPrefill>* peers = nullptr;
  std::vector<KvTransport*>
      transports;  // offered to prefill workers; if empty, all prompts run here
  PeerDeath* death = nullptr;
  Metrics* metrics = nullptr;  // may be null
  // This worker's pool if the host can read it, to verify what arrives. Null: no verification.
  const std::byte* host_pool = nullptr;
};

class DecodeRole final : public WorkerRole {
 public:
  explicit DecodeRole(const DecodeOptions& options);
  ~DecodeRole() override;

  // Links to prefill workers.
  LinkHandler<v1::PrefillToDecode>* peer_links();
  // For the prefill role of the same process, whichever role is active.
  PrefixFetcher* fetcher();
  void Wire(const DecodeDeps& deps);

  void Start() override;
  void SetRouters(const std::vector<std::string>& addresses) override;
  bool CanLaunch() const override;
  void Launch() override;
  bool InFlight() const override;
  bool StepDone() override;
  void Collect() override;
  void OnTransport() override;
  bool ExpectsSoon() const override;
  bool HasNotes() const override;
  Instant NextTimer() const override;
  void OnTimer(Instant now) override;
  void BeginDrain() override;
  void MoveStreams() override;
  // No request is left.
  bool Drained() const override;
  bool StopWanted() const override;
  void CallOffDrain() override;
  void StandBy() override;
  void Activate(uint64_t role_epoch) override;
  void CloseLinks() override;
  Status Ready() const override;
  const Engine& engine() const override;

  void OnLinkUp(LinkId link, const std::string& peer_address) override;
  void OnMessage(LinkId link, v1::RouterMessage message) override;
  void OnLinkDown(LinkId link, const Error& why) override;

  size_t num_requests() const;
  // Grants that are active or wait for an acknowledgement.
  size_t num_leases() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace aisp
