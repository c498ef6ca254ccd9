// PrefillRole: a worker that computes prompts for decode workers and writes the KV into their
// pools. A state machine without I/O: messages, timers and completions in, messages and writes out.
//
// Life of one transfer:
//   PrefillRequest -> queued, gated in the engine -> NeedBlocks, within two steps of running (late
//   grant: blocks of the reader are not reserved while it waits here) -> Grant: the gate opens, the
//   part that is already in our pool is pushed at once, then each layer's whole blocks as the layer
//   finishes -> PrefillDone after the last remote completion. GrantRefused: asked again after the
//   hint; others overtake it meanwhile, at most max_overtakes times.
// Fencing: after Cancel, Revoke, a failure or the end of the lease no write of the epoch starts;
// FenceAck is sent once those that had started have completed. A Revoke of an epoch that is not
// known here is acknowledged at once: nothing of it is under way in this process (a reader only
// revokes from the incarnation to which it granted).
//
// Thread: the worker's engine thread. Wiring (the role, the engine and the links need each other):
//   PrefillRole role(options);
//   Engine engine(engine_options, &executor, &clock, role.layer_sink());
//   auto routers = MakeRouterDialer(&role, post);
//   auto* readers = grpc_server.ServeKvPeer(role.reader_links(), post);
//   RankedConnector connector({&shm, &tcp}, timeout);        // transports registered with the pool
//   role.Wire({&engine, &clock, routers.get(), readers, &connector, &metrics});
//   role.Start();
// The role must be destroyed before what it was wired to.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/metrics.h"
#include "engine/engine.h"
#include "engine/layer_sink.h"
#include "prefill/peer_connector.h"
#include "prefill/prefix_holder.h"
#include "proto/link.h"
#include "worker/prefix_fetcher.h"
#include "worker/worker_role.h"

namespace aisp {

struct PrefillOptions {
  WorkerOptions worker;
  int32_t max_transfers = 512;  // queued and running; more are refused
  int32_t horizon_tokens =
      1024;  // blocks are asked for this much prefill work ahead: two steps' token budget
  int32_t max_sequence_tokens = 0;  // told to routers
  int32_t max_running = 0;          // told to routers
  int max_overtakes =
      8;  // how often a refused transfer is overtaken by later ones of the same reader
  int max_refusals = 256;  // then it fails as retryable
  Duration min_refusal_retry = std::chrono::milliseconds(1);
  Duration max_refusal_retry = std::chrono::seconds(1);
  Duration default_timeout = std::chrono::seconds(60);  // of a request that names none
  Duration hello_limit = std::chrono::seconds(5);       // a reader that does not greet is dropped
  bool draws = true;                                    // first tokens, where readers ask
  // What features the engine's executor gives (ModelOptions::feature_layers): for readers that want
  // the same. So many bytes at most go with a prompt.
  std::vector<int32_t> feature_layers;
  size_t max_feature_bytes = 4 << 20;
  PrefixHolder::Options holder;  // for readers that want what is cached here, in any role
  int64_t pid = 0;  // of this process, told to readers on this host for their operators
};

struct PrefillDeps {
  Engine* engine = nullptr;
  const Clock* clock = nullptr;
  LinkDialer<v1::WorkerMessage>* routers = nullptr;
  LinkSender<v1::PrefillToDecode>* readers = nullptr;
  PeerConnector* connector = nullptr;
  PrefixFetcher* fetcher = nullptr;  // null: what decode workers say that others hold is computed
  Metrics* metrics = nullptr;        // may stay null
  // This worker's pool where the host can read it: checks are sent to readers that want them. Null:
  // none are.
  const std::byte* host_pool = nullptr;
  // Its pool where the host can write it: KV is converted for readers with another dtype. Null:
  // they are refused.
  std::byte* conversion_pool = nullptr;
};

class PrefillRole final : public WorkerRole {
 public:
  explicit PrefillRole(const PrefillOptions& options);
  ~PrefillRole() override;

  LayerSink* layer_sink();
  // Links on which decode workers come in.
  LinkHandler<v1::DecodeToPrefill>* reader_links();
  void Wire(const PrefillDeps& deps);

  void Start() override;
  void SetRouters(const std::vector<std::string>& addresses) override;
  bool CanLaunch() const override;
  void Launch() override;
  bool InFlight() const override;
  bool StepDone() override;
  void Collect() override;
  void OnTransport() override;
  Instant NextTimer() const override;
  void OnTimer(Instant now) override;
  // Transfers that were granted no blocks fail at once, so that their readers go elsewhere; the
  // others finish.
  void BeginDrain() override;
  void MoveStreams() override { BeginDrain(); }
  // No transfer is left, acknowledgements included.
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

  // Transfers that are not over yet, those that only wait for write completions included.
  size_t num_transfers() const;
  // Likewise, of prefixes that are given away.
  size_t num_pushes() const;
  uint64_t prefixes_promoted() const;  // brought up from tiers for others, so far
  // Of this worker's pool, held while KV is converted for readers with another dtype; and the most
  // that ever were.
  int32_t staging_blocks() const;
  int32_t most_staging_blocks() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace aisp
