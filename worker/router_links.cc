#include "worker/router_links.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/hash.h"
#include "common/log.h"
#include "proto/wire_time.h"
#include "worker/adapter_keeper.h"

namespace aisp {
namespace {

// A dial or Register without an answer is abandoned after this.
constexpr Duration kAttachLimit = std::chrono::seconds(5);
// Between two warnings about the same router.
constexpr Duration kFirstWarningWait = std::chrono::seconds(1);
// Time for the successor of a draining router to appear.
constexpr Duration kSuccessorTime = std::chrono::seconds(10);
constexpr Duration kLongestWarningWait = std::chrono::minutes(1);

}  // namespace

RouterLinks::RouterLinks(const WorkerOptions& options, v1::Register hello)
    : options_(options), hello_(std::move(hello)) {
  for (const std::string& address : options_.router_addresses) Add(address);
}

void RouterLinks::Add(const std::string& address) {
  const uint64_t seed = options_.incarnation ^ Hash64(address) ^ Hash64(options_.worker_id);
  routers_.push_back({.address = address,
                      .link = {},
                      .state = State::kWaiting,
                      .timer = kNever,
                      .backoff = Backoff(options_.reconnect_min, options_.reconnect_max, seed),
                      .telemetry_interval = {},
                      .trouble = "not dialled yet"});
}

void RouterLinks::Start(Instant now) {
  standing_by_ = false;
  std::erase_if(routers_, [](const Router& r) { return r.gone && r.state == State::kWaiting; });
  for (Router& router : routers_) {
    router.backoff.Reset();
    Dial(router, now);
  }
}

void RouterLinks::StandBy() {
  standing_by_ = true;
  for (Router& router : routers_) {
    if (router.state == State::kAttached) {
      retiring_.push_back({router.address, router.link});
    } else if (router.state != State::kWaiting) {
      dialer_->Close(router.link);
    }
    router.state = State::kWaiting;
    router.timer = kNever;
  }
}

void RouterLinks::SetAddresses(const std::vector<std::string>& addresses, Instant now) {
  if (left_) return;
  for (Router& router : routers_) {
    router.gone = std::find(addresses.begin(), addresses.end(), router.address) == addresses.end();
    if (router.gone) LogInfo("router is gone from the name service", {{"router", router.address}});
  }
  std::erase_if(routers_, [](const Router& r) { return r.gone && r.state == State::kWaiting; });
  for (const std::string& address : addresses) {
    const bool known = std::any_of(routers_.begin(), routers_.end(),
                                   [&](const Router& r) { return r.address == address; });
    if (known) continue;
    Add(address);
    if (!standing_by_) Dial(routers_.back(), now);
  }
}

RouterLinks::Router* RouterLinks::Find(LinkId link) {
  for (Router& router : routers_) {
    if (router.state != State::kWaiting && router.link == link) return &router;
  }
  return nullptr;
}

void RouterLinks::Dial(Router& router, Instant now) {
  router.state = State::kDialling;
  router.timer = now + kAttachLimit;
  router.link = dialer_->Dial(router.address);
}

void RouterLinks::Lose(Router& router, std::string why, Instant now) {
  router.state = State::kWaiting;
  router.timer = now + router.backoff.Next();
  router.trouble = std::move(why);
  ++router.failures;
}

void RouterLinks::Warn(Router& router, Instant now) {
  if (now < router.next_warning) return;
  router.warn_wait = std::clamp(router.warn_wait * 2, kFirstWarningWait, kLongestWarningWait);
  router.next_warning = now + router.warn_wait;
  LogWarning("router cannot be reached; trying again",
             {{"router", router.address},
              {"error", router.trouble},
              {"attempts", router.failures},
              {"next_warning_s", ToSeconds(router.warn_wait)}});
}

void RouterLinks::OnLinkUp(LinkId link, Instant now) {
  Router* router = Find(link);
  if (router == nullptr || router->state != State::kDialling) return;
  router->state = State::kRegistering;
  router->timer = now + kAttachLimit;
  v1::WorkerMessage message;
  *message.mutable_register_() = hello_;
  if (options_.adapters != nullptr)
    *message.mutable_register_()->mutable_adapters() = options_.adapters->Report();
  dialer_->Send(link, std::move(message));
}

bool RouterLinks::OnLinkDown(LinkId link, const Error& why, Instant now) {
  const auto retired = std::find_if(retiring_.begin(), retiring_.end(),
                                    [link](const Retiring& r) { return r.link == link; });
  if (retired != retiring_.end()) {
    LogInfo("router has ended", {{"router", retired->address}});
    retiring_.erase(retired);
    return true;
  }
  Router* router = Find(link);
  if (router == nullptr) return false;
  const bool was_attached = router->state == State::kAttached;
  Lose(*router, why.ToString(), now);
  if (was_attached) {
    LogWarning("router lost", {{"router", router->address}, {"error", why.message}});
  } else {
    Warn(*router, now);
  }
  return was_attached;
}

void RouterLinks::OnRegistered(LinkId link, const v1::Registered& accepted) {
  Router* router = Find(link);
  if (router == nullptr) return;
  router->state = State::kAttached;
  router->timer = kNever;
  router->trouble.clear();
  router->refusal.clear();
  router->failures = 0;
  router->warn_wait = {};
  router->next_warning = Instant{INT64_MIN};
  router->backoff.Reset();
  Duration interval = MillisFromWire(accepted.telemetry_interval_ms());
  // The router treats this worker as silent only after three lost or late messages.
  const Duration third = MillisFromWire(accepted.silence_limit_ms()) / 3;
  if (third.count() > 0) interval = interval.count() > 0 ? std::min(interval, third) : third;
  router->telemetry_interval = interval;
  LogInfo("registered with router", {{"router", router->address}, {"worker", options_.worker_id}});
}

void RouterLinks::OnRefused(LinkId link, const v1::RegisterRefused& refused, Instant now) {
  Router* router = Find(link);
  if (router == nullptr) return;
  dialer_->Close(link);
  if (refused.draining()) return Lose(*router, refused.reason(), now);
  if (refused.ousted() && ousted_) {
    ousted_ = Fail(Code::kAborted, refused.reason());
    LogError("this process is ousted and ends", {{"worker", options_.worker_id},
                                                 {"router", router->address},
                                                 {"reason", refused.reason()}});
  }
  const std::string trouble = "refused: " + refused.reason();
  // Retried for ever, because the router may be replaced; a repeated reason is logged at debug
  // level only.
  Log(trouble == router->refusal ? LogLevel::kDebug : LogLevel::kError,
      "router refused this worker", {{"router", router->address}, {"reason", refused.reason()}});
  router->refusal = trouble;
  router->backoff.Exhaust();
  Lose(*router, trouble, now);
}

void RouterLinks::OnRouterDraining(LinkId link, Instant now) {
  Router* router = Find(link);
  if (router == nullptr || router->state != State::kAttached) return;
  LogInfo("router drains; looking for its successor", {{"router", router->address}});
  retiring_.push_back({router->address, link});
  router->backoff.Reset();
  router->next_warning = now + kSuccessorTime;
  Dial(*router, now);
}

Instant RouterLinks::NextTimer() const {
  Instant next = kNever;
  for (const Router& router : routers_) next = std::min(next, router.timer);
  return next;
}

void RouterLinks::OnTimer(Instant now) {
  std::erase_if(routers_, [](const Router& r) { return r.gone && r.state == State::kWaiting; });
  for (Router& router : routers_) {
    if (router.timer > now) continue;
    if (router.state == State::kWaiting) {
      Dial(router, now);
    } else {
      dialer_->Close(router.link);
      Lose(router, fmt::format("no answer within {} ms", ToMs(kAttachLimit)), now);
      Warn(router, now);
    }
  }
}

bool RouterLinks::Attached(LinkId link) const {
  const auto is_it = [link](const Retiring& r) { return r.link == link; };
  if (std::any_of(retiring_.begin(), retiring_.end(), is_it)) return true;
  return std::any_of(routers_.begin(), routers_.end(), [link](const Router& router) {
    return router.state == State::kAttached && router.link == link;
  });
}

std::vector<LinkId> RouterLinks::AttachedLinks() const {
  std::vector<LinkId> links;
  for (const Router& router : routers_) {
    if (router.state == State::kAttached) links.push_back(router.link);
  }
  for (const Retiring& router : retiring_) links.push_back(router.link);
  return links;
}

Duration RouterLinks::TelemetryInterval() const {
  Duration interval = options_.telemetry_interval;
  for (const Router& router : routers_) {
    if (router.state != State::kAttached || router.telemetry_interval.count() == 0) continue;
    interval = std::min(interval, router.telemetry_interval);
  }
  return std::max(interval, Duration(std::chrono::milliseconds(1)));
}

Status RouterLinks::Ready() const {
  if (!retiring_.empty()) return {};
  std::string troubles;
  for (const Router& router : routers_) {
    if (router.state == State::kAttached) return {};
    troubles += fmt::format("; {}: {}", router.address, router.trouble);
  }
  return Unavailable("no router accepted this worker" + troubles);
}

void RouterLinks::Broadcast(const v1::WorkerMessage& message) {
  for (const LinkId link : AttachedLinks()) dialer_->Send(link, message);
}

void RouterLinks::CloseAll() {
  for (const Router& router : routers_) {
    if (router.state != State::kWaiting) dialer_->Close(router.link);
  }
  for (const Retiring& router : retiring_) dialer_->Close(router.link);
  routers_.clear();
  retiring_.clear();
  left_ = true;
}

}  // namespace aisp
