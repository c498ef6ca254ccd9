// RouterLinks: a worker's links to the routers. Dials every configured address and keeps dialling
// (exponential backoff between reconnect_min and reconnect_max), registers on each link, and tracks
// which routers accepted this worker.
//
// Each address is another router replica: the worker attaches to all of them. A refused
// registration is logged with its reason (it names both values) and retried at the longest backoff,
// because the router may be replaced by a matching one. A draining router keeps its link for its
// last requests, while its address is dialled again for the successor: one address may have several
// links, of which at most one is not retiring. Owned by the engine thread; no method blocks. An
// attempt without an answer is abandoned after 5 s.
#pragma once

#include <string>
#include <vector>

#include "proto/link.h"
#include "worker/backoff.h"
#include "worker/worker_role.h"

namespace aisp {

class RouterLinks {
 public:
  RouterLinks(const WorkerOptions& options, v1::Register hello);

  // Once, before Start.
  void SetDialer(LinkDialer<v1::WorkerMessage>* dialer) { dialer_ = dialer; }
  void Start(Instant now);
  // Stops dialling. Attached links stay until the routers close them, the others are closed. Start
  // dials again, under `role_epoch`.
  void StandBy();
  void SetRoleEpoch(uint64_t role_epoch) { hello_.set_role_epoch(role_epoch); }
  // Replaces the addresses: new ones are dialled at once, or by Start; attached links to removed
  // ones are kept until they end, and not dialled again.
  void SetAddresses(const std::vector<std::string>& addresses, Instant now);

  void OnLinkUp(LinkId link, Instant now);
  // True: the link was attached, so its requests must end.
  bool OnLinkDown(LinkId link, const Error& why, Instant now);
  // The router accepted; its telemetry interval applies from now on.
  void OnRegistered(LinkId link, const v1::Registered& accepted);
  void OnRefused(LinkId link, const v1::RegisterRefused& refused, Instant now);
  // The router will exit when its requests have ended.
  void OnRouterDraining(LinkId link, Instant now);

  Instant NextTimer() const;
  void OnTimer(Instant now);

  bool Attached(LinkId link) const;
  std::vector<LinkId> AttachedLinks() const;
  // The shortest interval requested by the worker's options or an attached router.
  Duration TelemetryInterval() const;
  // OK if at least one router accepted this worker; else UNAVAILABLE with the reasons.
  Status Ready() const;
  // ABORTED: a router has accepted a newer process under this worker's name.
  const Status& Ousted() const { return ousted_; }

  void Send(LinkId link, v1::WorkerMessage message) { dialer_->Send(link, std::move(message)); }
  void Broadcast(const v1::WorkerMessage& message);
  // Closes every link and stops dialling.
  void CloseAll();

 private:
  enum class State { kWaiting, kDialling, kRegistering, kAttached };
  struct Router {
    std::string address;
    LinkId link;
    State state = State::kWaiting;
    Instant timer = kNever;  // redial at (kWaiting), abandon at (kDialling, kRegistering)
    Backoff backoff;
    Duration telemetry_interval{};
    std::string trouble;       // why it is not attached
    std::string refusal = {};  // the last refusal's reason, until a router accepts
    bool gone = false;         // its address was removed
    int failures = 0;          // attempts since it was last attached
    Duration warn_wait{};
    Instant next_warning{INT64_MIN};
  };
  struct Retiring {
    std::string address;
    LinkId link;
  };

  Router* Find(LinkId link);
  void Add(const std::string& address);
  void Dial(Router& router, Instant now);
  void Lose(Router& router, std::string why, Instant now);
  // Logs that a router cannot be reached: at once, then after 1 s, 2 s, 4 s ... a minute,
  // independent of the number of attempts.
  void Warn(Router& router, Instant now);

  const WorkerOptions options_;
  v1::Register hello_;
  LinkDialer<v1::WorkerMessage>* dialer_ = nullptr;
  std::vector<Router> routers_;
  bool left_ = false;
  bool standing_by_ = true;  // until Start
  Status ousted_;
  std::vector<Retiring> retiring_;  // bounded by the routers' own drain time
};

}  // namespace aisp
