// Answers that decode workers keep under an idempotency key. Every worker reports its kept answers
// to all routers; a repeated request goes to the worker that keeps its answer.
#include <utility>

#include "proto/answer_key.h"
#include "proto/hash_wire.h"
#include "router/router_impl.h"

namespace aisp {
namespace {

// Bound per worker; answers beyond it are not found and computed anew.
constexpr size_t kMostKept = size_t{1} << 17;

}  // namespace

Hash128 Router::Impl::AnswerName(const RouterRequest& spec) {
  return AnswerDigest(spec.tenant.name, spec.answer_key, spec.answer_index);
}

void Router::Impl::AddHolder(WorkerState& worker, const Hash128& name) {
  if (worker.kept.size() >= kMostKept || !worker.kept.insert(name).second) return;
  holders[name].push_back(worker.info.worker_id());
}

void Router::Impl::DropHolder(WorkerState& worker, const Hash128& name) {
  if (worker.kept.erase(name) == 0) return;
  const auto it = holders.find(name);
  std::erase(it->second, worker.info.worker_id());
  if (it->second.empty()) holders.erase(it);
}

void Router::Impl::ForgetKept(WorkerState& worker) {
  while (!worker.kept.empty()) DropHolder(worker, Hash128(*worker.kept.begin()));
  metrics.kept_answers.Set(static_cast<double>(holders.size()));
}

void Router::Impl::OnKeptAnswers(WorkerState& worker, const v1::KeptAnswers& told) {
  if (told.whole()) ForgetKept(worker);
  for (const std::string& bytes : told.dropped()) {
    if (const auto name = HashFromWire(bytes)) DropHolder(worker, *name);
  }
  for (const std::string& bytes : told.kept()) {
    if (const auto name = HashFromWire(bytes)) AddHolder(worker, *name);
  }
  metrics.kept_answers.Set(static_cast<double>(holders.size()));
}

void Router::Impl::ForgetKeyed(const Request& request) {
  if (request.spec.answer_key.empty()) return;
  const auto it = keyed.find(AnswerName(request.spec));
  if (it != keyed.end() && it->second == request.id) keyed.erase(it);
}

WorkerState* Router::Impl::Holder(Request& request) {
  if (request.spec.answer_key.empty() || std::exchange(request.asked_holder, true)) return nullptr;
  // After a placement its emitted tokens travel with the request.
  if (request.placements > 0) return nullptr;
  const Hash128 name = AnswerName(request.spec);
  // The latest to report it: earlier ones lost it in a move. A draining worker still sends what it
  // has.
  if (const auto it = holders.find(name); it != holders.end())
    return WorkerNamed(it->second.back());
  const auto it = keyed.find(name);
  const Request* const other = it == keyed.end() ? nullptr : Find(it->second);
  return other == nullptr || other->wire_id == 0 ? nullptr : WorkerNamed(other->worker);
}

Router::Impl::Choice Router::Impl::AtHolder(const Request& request, WorkerState& holder) {
  Choice choice;
  choice.states = {&holder};
  choice.views = {holder.View(clock->Now(), pool)};
  // Little or nothing is computed for it.
  choice.views.front().cached_tokens = static_cast<int32_t>(request.length());
  choice.placement.decode = 0;
  choice.placement.known = false;
  choice.placement.reason = route_reason::kRepeat;
  return choice;
}

}  // namespace aisp
