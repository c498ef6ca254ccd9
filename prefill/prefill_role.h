// PrefillRole: a worker that computes prompts for decode workers and writes the KV into their
// pools. A state machine without I/O: messages, timers and completions in, messages and writes out.
// A "reader" is a decode worker whose pool is written.
//
// One transfer: PrefillRequest -> queued, gated in the engine -> NeedBlocks, within two steps of
// running (late grant: no blocks of the reader are reserved while it waits here) -> Grant: the gate
// opens, the part already in our pool is pushed at once, then each layer's whole blocks as the
// layer finishes -> PrefillDone after the last remote completion. GrantRefused: asked again after
// the hint; meanwhile others overtake it, at most max_overtakes times. A grant that came with the
// request is used if the transfer runs within two steps, else given back with FenceAck.
//
// Fencing: after Cancel, Revoke, a failure or the end of the lease no write of the epoch starts.
// FenceAck is sent once the started writes have completed. A Revoke of an unknown epoch is
// acknowledged at once: this process has no such write (a reader only revokes from the incarnation
// to which it granted).
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
  int32_t max_transfers = 512;    // queued and running; more are refused
  int32_t horizon_tokens = 1024;  // blocks are requested this many prefill tokens ahead: two steps
  int32_t max_sequence_tokens = 0;  // reported to routers
  int32_t max_running = 0;          // reported to routers
  int max_overtakes = 8;   // limit of overtaking a refused transfer, by later ones of its reader
  int max_refusals = 256;  // then it fails as retryable
  Duration min_refusal_retry = std::chrono::milliseconds(1);
  Duration max_refusal_retry = std::chrono::seconds(1);
  Duration default_timeout = std::chrono::seconds(60);  // for requests without one
  Duration hello_limit = std::chrono::seconds(5);       // a reader without a hello is dropped after
                                                        // this
  bool draws = true;                                    // first tokens, on request of readers
  bool takes_grants = true;                             // in requests
  // Features that the engine's executor returns (ModelOptions::feature_layers), for readers that
  // want the same ones; and the limit of their bytes per prompt.
  std::vector<int32_t> feature_layers;
  size_t max_feature_bytes = 4 << 20;
  PrefixHolder::Options holder;  // for readers that pull prefixes cached here, in any role
  int64_t pid = 0;               // of this process, for operators of readers on this host
};

struct PrefillDeps {
  Engine* engine = nullptr;
  const Clock* clock = nullptr;
  LinkDialer<v1::WorkerMessage>* routers = nullptr;
  LinkSender<v1::PrefillToDecode>* readers = nullptr;
  PeerConnector* connector = nullptr;
  PrefixFetcher* fetcher = nullptr;  // null: prefixes held by other workers are computed instead
  Metrics* metrics = nullptr;        // may be null
  // This worker's pool if the host can read it: checks are sent to readers that want them. Null: no
  // checks.
  const std::byte* host_pool = nullptr;
  // The pool if the host can write it: KV is converted for readers with another dtype. Null: such
  // readers are refused.
  std::byte* conversion_pool = nullptr;
};

class PrefillRole final : public WorkerRole {
 public:
  explicit PrefillRole(const PrefillOptions& options);
  ~PrefillRole() override;

  LayerSink* layer_sink();
  // Links from decode workers.
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
  bool ExpectsSoon() const override;
  Instant NextTimer() const override;
  void OnTimer(Instant now) override;
  // Fails transfers without granted blocks at once, so that their readers go elsewhere; others
  // finish.
  void BeginDrain() override;
  void MoveStreams() override { BeginDrain(); }
  // No transfer is left, including acknowledgements.
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

  // Transfers that have not ended, including those that wait for write completions.
  size_t num_transfers() const;
  // The same for pushes of cached prefixes.
  size_t num_pushes() const;
  uint64_t prefixes_promoted() const;  // brought up from tiers for other workers, so far
  // Blocks of this worker's pool held for converting KV to another dtype, now; and their maximum so
  // far.
  int32_t staging_blocks() const;
  int32_t most_staging_blocks() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace aisp
