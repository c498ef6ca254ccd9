#include "worker/router_links.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/hash.h"
#include "common/log.h"

namespace aisp {
namespace {

// A dial or a Register without an answer for so long is given up.
constexpr Duration kAttachLimit = std::chrono::seconds(5);

}  // namespace

RouterLinks::RouterLinks(const WorkerOptions& options, v1::Register hello)
    : options_(options), hello_(std::move(hello)) {
  for (const std::string& address : options_.router_addresses) {
    const uint64_t seed = options_.incarnation ^ Hash64(address) ^ Hash64(options_.worker_id);
    routers_.push_back({.address = address,
                        .link = {},
                        .state = State::kWaiting,
                        .timer = kNever,
                        .backoff = Backoff(options_.reconnect_min, options_.reconnect_max, seed),
                        .telemetry_interval = {},
                        .trouble = "not dialled yet"});
  }
}

void RouterLinks::Start(Instant now) {
  for (Router& router : routers_) Dial(router, now);
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
}

void RouterLinks::OnLinkUp(LinkId link, Instant now) {
  Router* router = Find(link);
  if (router == nullptr || router->state != State::kDialling) return;
  router->state = State::kRegistering;
  router->timer = now + kAttachLimit;
  v1::WorkerMessage message;
  *message.mutable_register_() = hello_;
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
  if (was_attached)
    LogWarning("router lost", {{"router", router->address}, {"error", why.message}});
  Lose(*router, why.ToString(), now);
  return was_attached;
}

void RouterLinks::OnRegistered(LinkId link, const v1::Registered& accepted) {
  Router* router = Find(link);
  if (router == nullptr) return;
  router->state = State::kAttached;
  router->timer = kNever;
  router->trouble.clear();
  router->backoff.Reset();
  Duration interval = std::chrono::milliseconds(accepted.telemetry_interval_ms());
  // Three messages may be lost or late before the router takes this worker for silent.
  const Duration third = Duration(std::chrono::milliseconds(accepted.silence_limit_ms())) / 3;
  if (third.count() > 0) interval = interval.count() > 0 ? std::min(interval, third) : third;
  router->telemetry_interval = interval;
  LogInfo("registered with router", {{"router", router->address}, {"worker", options_.worker_id}});
}

void RouterLinks::OnRefused(LinkId link, const v1::RegisterRefused& refused, Instant now) {
  Router* router = Find(link);
  if (router == nullptr) return;
  dialer_->Close(link);
  if (refused.draining()) return Lose(*router, refused.reason(), now);
  LogError("router refused this worker",
           {{"router", router->address}, {"reason", refused.reason()}});
  router->backoff.Exhaust();
  Lose(*router, "refused: " + refused.reason(), now);
}

void RouterLinks::OnRouterDraining(LinkId link, Instant now) {
  Router* router = Find(link);
  if (router == nullptr || router->state != State::kAttached) return;
  LogInfo("router drains; looking for its successor", {{"router", router->address}});
  retiring_.push_back({router->address, link});
  router->backoff.Reset();
  Dial(*router, now);
}

Instant RouterLinks::NextTimer() const {
  Instant next = kNever;
  for (const Router& router : routers_) next = std::min(next, router.timer);
  return next;
}

void RouterLinks::OnTimer(Instant now) {
  for (Router& router : routers_) {
    if (router.timer > now) continue;
    if (router.state == State::kWaiting) {
      Dial(router, now);
    } else {
      dialer_->Close(router.link);
      Lose(router, fmt::format("no answer within {} ms", ToMs(kAttachLimit)), now);
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
}

}  // namespace aisp
