// Role changes ordered by an operator or a planner. The worker decides, since it knows its role for
// certain; the router ensures that a decode worker is left.
#include <fmt/format.h>

#include <utility>

#include "common/log.h"
#include "common/strings.h"
#include "proto/role.h"
#include "router/router_impl.h"

namespace aisp {
namespace {

// A worker answers between two steps.
constexpr Duration kAnswerLimit = std::chrono::seconds(5);
constexpr size_t kMaxRoleWaits = 64;

}  // namespace

Error Router::Impl::NoSuchWorker(const std::string& worker_id) const {
  std::vector<std::string> known;
  known.reserve(workers.size());
  for (const auto& [id, state] : workers) known.push_back(id);
  return {Code::kNotFound,
          fmt::format("no worker '{}' is registered; known: {}", Excerpt(worker_id),
                      known.empty() ? "none" : Join(known, ", "))};
}

Status Router::Impl::CheckDecodeLeft(const WorkerState& worker, v1::Role to) const {
  if (!worker.decode() || to == v1::ROLE_DECODE) return {};
  for (const auto& [id, other] : workers) {
    if (&other != &worker && other.decode() && other.Ready()) return {};
  }
  return Fail(Code::kFailedPrecondition,
              fmt::format("{} is the last decode worker that is ready; as {} it would leave nobody "
                          "to answer requests. Make another one a decode worker first",
                          worker.info.worker_id(), RoleName(to)));
}

void Router::Impl::SetWorkerRole(const std::string& worker_id, const RoleWish& wish, OnRole done) {
  WorkerState* worker = WorkerNamed(worker_id);
  if (worker == nullptr) return done(tl::unexpected(NoSuchWorker(worker_id)));
  const v1::Role is = worker->info.role();
  if (wish.expected != v1::ROLE_UNSPECIFIED && wish.expected != is) {
    return done(Fail(
        Code::kFailedPrecondition,
        fmt::format("worker {} is {} (epoch {}), expected was {}; look again and "
                    "decide anew",
                    worker_id, RoleName(is), worker->info.role_epoch(), RoleName(wish.expected))));
  }
  if (Status left = CheckDecodeLeft(*worker, wish.to); !left)
    return done(tl::unexpected(left.error()));
  if (role_waits.size() >= kMaxRoleWaits) {
    return done(Fail(Code::kResourceExhausted,
                     fmt::format("{} changes of roles wait for their workers' answers, the limit; "
                                 "retry later",
                                 role_waits.size())));
  }
  const uint64_t nonce = next_role_nonce++;
  role_waits[nonce] = {worker_id, worker->link, wish.to, std::move(done)};
  role_timers.Set(nonce, clock->Now() + kAnswerLimit);
  v1::RouterMessage message;
  v1::SetRole* set = message.mutable_set_role();
  set->set_nonce(nonce);
  set->set_role(wish.to);
  set->set_expected_role(wish.expected);
  set->set_expected_epoch(wish.expected_epoch);
  set->set_move_after_ms(static_cast<int64_t>(ToMs(wish.move_after)));
  set->set_deadline_ms(static_cast<int64_t>(ToMs(wish.deadline)));
  sender->Send(worker->link, std::move(message));
}

void Router::Impl::OnRoleAnswer(LinkId link, const v1::RoleAnswer& answer) {
  const auto it = role_waits.find(answer.nonce());
  if (it == role_waits.end() || it->second.link != link) return;
  const RoleWait wait = std::move(it->second);
  role_waits.erase(it);
  role_timers.Erase(answer.nonce());
  if (answer.has_error()) {
    const auto code = static_cast<Code>(answer.error().code());
    const bool known = code > Code::kOk && code <= Code::kUnauthenticated;
    return wait.done(Fail(known ? code : Code::kUnknown, answer.error().message()));
  }
  // It reported first that it drains.
  if (WorkerState* worker = WorkerOf(link); worker != nullptr && worker->draining)
    worker->becoming = wait.to;
  wait.done(RoleState{answer.role(), answer.role_epoch()});
}

void Router::Impl::OnRoleTimer(uint64_t nonce) {
  const auto it = role_waits.find(nonce);
  if (it == role_waits.end()) return;
  const RoleWait wait = std::move(it->second);
  role_waits.erase(it);
  wait.done(Unavailable(fmt::format(
      "worker {} did not answer within {:.0f} s; look whether it takes the role and ask again",
      wait.worker, ToSeconds(kAnswerLimit))));
}

void Router::Impl::EndRoleWaits(const v1::Register& back) {
  std::vector<RoleWait> over;
  const WorkerState* before = WorkerNamed(back.worker_id());
  if (before == nullptr || before->info.incarnation() != back.incarnation()) return;
  const RoleState was{before->info.role(), before->info.role_epoch()};
  for (auto it = role_waits.begin(); it != role_waits.end();) {
    if (it->second.worker != back.worker_id() || it->second.to != back.role()) {
      ++it;
      continue;
    }
    over.push_back(std::move(it->second));
    role_timers.Erase(it->first);
    it = role_waits.erase(it);
  }
  for (const RoleWait& wait : over) wait.done(was);
}

void Router::Impl::EndRoleWaits(const std::string& worker_id, const Error& why) {
  std::vector<OnRole> hear;
  for (auto it = role_waits.begin(); it != role_waits.end();) {
    if (it->second.worker != worker_id) {
      ++it;
      continue;
    }
    hear.push_back(std::move(it->second.done));
    role_timers.Erase(it->first);
    it = role_waits.erase(it);
  }
  for (const OnRole& done : hear)
    done(Unavailable(fmt::format("worker {} is gone: {}", worker_id, why.message)));
}

void Router::SetWorkerRole(const std::string& worker_id, const RoleWish& wish, OnRole done) {
  impl_->SetWorkerRole(worker_id, wish, std::move(done));
}

}  // namespace aisp
