// WorkerShell: what prefill and decode workers have in common besides their work: informing the
// routers (registration, telemetry, KV events with snapshots), and readiness.
//
// A role owns one shell and forwards to it. Owned by the engine thread; never blocks; calls the
// engine only to read it and to take its KV events.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/metrics.h"
#include "engine/engine.h"
#include "proto/link.h"
#include "worker/router_links.h"
#include "worker/worker_metrics.h"
#include "worker/worker_role.h"

namespace aisp {

class WorkerShell {
 public:
  // `transports`, `max_sequence_tokens` and `max_running` are sent in Register.
  struct Profile {
    v1::Role role = v1::ROLE_UNSPECIFIED;
    std::vector<std::string> transports;
    int32_t max_sequence_tokens = 0;
    int32_t max_running = 0;
    // Prompts that it computes or will compute; may be empty.
    std::function<uint32_t()> queued_prompts;
  };
  // `metrics` may be null.
  WorkerShell(const WorkerOptions& options, const Profile& profile, Engine* engine,
              const Clock* clock, LinkDialer<v1::WorkerMessage>* routers, Metrics* metrics);

  void Start();
  // See WorkerRole.
  void StandBy();
  void Activate(uint64_t role_epoch);

  void OnLinkUp(LinkId link) { routers_.OnLinkUp(link, clock_->Now()); }
  // True: requests of that router must end.
  bool OnLinkDown(LinkId link, const Error& why);
  // True: the message was handled here (registration, snapshots).
  bool OnMessage(LinkId link, const v1::RouterMessage& message);
  bool Attached(LinkId link) const { return routers_.Attached(link); }
  void Send(LinkId link, v1::WorkerMessage message) { routers_.Send(link, std::move(message)); }

  Instant NextTimer() const;
  void OnTimer(Instant now);

  // After every Collect.
  void RecordStep(const StepTiming& timing);
  // Call after anything that may have published or evicted blocks.
  void PublishKvEvents();
  void SetTransferRate(double bytes_per_s) { transfer_bytes_per_s_ = bytes_per_s; }

  // Sets the drain state in Telemetry and in the first message to every router that attaches later;
  // the role informs the attached routers. False: it is draining already.
  bool BeginDrain();
  bool draining() const { return draining_; }
  // False: it is not draining.
  bool CallOffDrain();
  void SetRouters(const std::vector<std::string>& addresses) {
    routers_.SetAddresses(addresses, clock_->Now());
  }
  void CloseLinks() { routers_.CloseAll(); }
  void SetDrained(bool drained) { drained_ = drained; }
  std::vector<LinkId> AttachedLinks() const { return routers_.AttachedLinks(); }
  // Sends telemetry now, not at the next interval.
  void Report() { SendTelemetry(clock_->Now()); }
  // Work arrived from one of several routers: reports to the others soon, so that they do not all
  // choose a worker that was idle at its last report. `request`: a router's request, not a part of
  // one.
  void NoteLoad(bool request);

  Status Ready() const;
  const Status& Ousted() const { return routers_.Ousted(); }

 private:
  void Attach(LinkId link);
  void SendSnapshot(LinkId link);
  void OnRegistered(LinkId link, const v1::Registered& accepted);
  void ReportAdapters();
  void LoadAdapter(LinkId link, const v1::LoadAdapter& asked);
  void SendTelemetry(Instant now);
  v1::WorkerMessage MakeTelemetry(const Status& ready);
  void NoteProgress(Instant now);

  const WorkerOptions options_;
  const v1::Role role_;
  const std::function<uint32_t()> queued_prompts_;
  Engine* const engine_;
  const Clock* const clock_;
  RouterLinks routers_;

  bool standing_by_ = false;
  bool telling_ = true;  // false: adapter changes are not reported
  bool draining_ = false;
  bool drained_ = false;
  Instant await_adapters_{INT64_MIN};  // until then it is unready while adapters load
  Instant next_telemetry_ = kNever;
  Instant last_telemetry_{INT64_MIN / 2};
  uint64_t telemetry_sequence_ = 0;
  uint64_t steps_total_ = 0;
  uint64_t requests_total_ = 0;
  std::deque<StepTiming> samples_;  // since the last telemetry, the newest kMaxSamples
  double transfer_bytes_per_s_ = 0;

  // For readiness: when a step last ended (or none was needed), and when the pool last had blocks
  // available or not wanted.
  Instant last_progress_;
  Instant last_pool_motion_;

  Metrics* const metrics_registry_;
  std::optional<WorkerMetrics> metrics_;  // from the first Start on
};

}  // namespace aisp
