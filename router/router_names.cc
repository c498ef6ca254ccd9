// Worker names: one process holds a name at a time.
//
// A registration under a name that another process holds waits while the holder is probed. If the
// holder answers, the new process is refused, with both named: two processes have the same name. If
// it does not answer in time, or its link ends, the new process is accepted and the old one is
// ousted: when it speaks again, on any link, it is told so and exits. So a process that was paused
// for long never displaces its successor. Incarnations are compared for equality only.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "router/router_impl.h"

namespace aisp {
namespace {

// Bounds on remembered names besides registered workers, and on ousted processes of each.
constexpr size_t kMaxNames = 1024;
constexpr size_t kMaxOusted = 16;

std::string Describe(const v1::Register& r, const std::string& address) {
  return fmt::format("pid {} on host {} at {}, incarnation {:016x}", r.pid(), r.host_id(), address,
                     r.incarnation());
}

}  // namespace

bool Router::Impl::Ousted(const v1::Register& r) const {
  const auto name = names.find(r.worker_id());
  if (name == names.end()) return false;
  const auto& ousted = name->second.ousted;
  return std::find(ousted.begin(), ousted.end(), r.incarnation()) != ousted.end();
}

Error Router::Impl::OustedError(const std::string& worker_id) {
  return {Code::kAborted,
          fmt::format("another process was accepted as worker {} after this one, which ends; two "
                      "that shall live together need names of their own (worker.id)",
                      worker_id)};
}

void Router::Impl::Contend(LinkId link, v1::Register registration) {
  const WorkerState& holder = *WorkerNamed(registration.worker_id());
  const Instant until = clock->Now() + options.probe_limit;
  LogInfo("another process registers under a worker's name; the one before is asked",
          {{"worker", registration.worker_id()}, {"address", links[link].peer_address}});
  contenders[link] = {std::move(registration), holder.info.incarnation(), until};
  link_timers.Set(link.value, until);
  v1::RouterMessage message;
  message.mutable_probe()->set_nonce(link.value);
  sender->Send(holder.link, std::move(message));
}

void Router::Impl::EndContest(LinkId link) {
  Contender contender = std::move(contenders.extract(link).mapped());
  const WorkerState* holder = WorkerNamed(contender.registration.worker_id());
  // Another contender may have got the name meanwhile, and must be probed itself. A draining router
  // refuses.
  const bool another = holder != nullptr && holder->info.incarnation() != contender.asked;
  if (another || draining) return OnRegister(link, std::move(contender.registration));
  Accept(link, std::move(contender.registration));
}

void Router::Impl::OnHolderSpoke(LinkId link) {
  const WorkerState& holder = *WorkerOf(link);
  const std::string name = holder.info.worker_id();
  const std::string its = Describe(holder.info, links[link].peer_address);
  std::vector<LinkId> refused;
  for (const auto& [other, contender] : contenders) {
    if (contender.registration.worker_id() == name) refused.push_back(other);
  }
  for (const LinkId other : refused) {
    const v1::Register registration = std::move(contenders.extract(other).mapped().registration);
    RefuseRegistration(
        other, name,
        {Code::kAlreadyExists,
         fmt::format("worker {} is registered by a process that answers ({}); this one is {}. Give "
                     "each a name of its own (worker.id)",
                     name, its, Describe(registration, links[other].peer_address))},
        /*ousted=*/false);
  }
}

void Router::Impl::OnNameFree(const std::string& worker_id) {
  const Instant now = clock->Now();
  for (auto& [link, contender] : contenders) {
    if (contender.registration.worker_id() != worker_id) continue;
    contender.until = now;
    link_timers.Set(link.value, now);
  }
}

void Router::Impl::NoteHolder(const v1::Register& r) {
  if (names.size() >= kMaxNames)
    std::erase_if(names, [this](const auto& name) { return !workers.contains(name.first); });
  Name& name = names[r.worker_id()];
  const uint64_t before = std::exchange(name.holder, r.incarnation());
  if (before == 0 || before == r.incarnation()) return;
  name.ousted.push_back(before);
  if (name.ousted.size() > kMaxOusted) name.ousted.pop_front();
}

}  // namespace aisp
