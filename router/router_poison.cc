// Requests that crash workers. Replayed after each crash, such a request would end worker after
// worker.
//
// Suspects of a worker's end are the requests on it without a token since. After the end of a
// decode worker a suspect is prefilled on its next decode worker itself, so that it cannot crash
// prefill workers too. A request that was the only one to wait on two workers that ended is
// refused. If others waited there as well, a third end decides; until then all suspects run one at
// a time. A token clears its request. An end without any suspect counts as a machine failure or an
// outside kill; for a while after it, ends prove nothing and requests keep all their attempts.
//
// Which requests were on a prefill worker is reported by the decode workers that asked it. After
// two ends they hand the request back, so that it is judged before a third worker is asked.
#include <algorithm>

#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "common/log.h"
#include "router/router_impl.h"

namespace aisp {
namespace {

constexpr size_t kEndsAlone = 2;
constexpr size_t kEndsBesideOthers = 3;
// How long an end without suspects counts.
constexpr Duration kStorm = std::chrono::seconds(60);
// Bound on ends in that time.
constexpr size_t kMostEnds = 256;
// Client libraries retry after a 500. For this long, and for so many, a retry is refused at once.
constexpr Duration kRemembered = std::chrono::minutes(10);
constexpr size_t kMostRemembered = 256;

}  // namespace

bool Router::Impl::WaitsForToken(const Request& request) const {
  return request.first_token == kNever || request.last_token < request.dispatched;
}

bool Router::Impl::MayPrefillOn(const WorkerKey& worker, const Request* but) const {
  return std::any_of(requests.begin(), requests.end(), [&](const auto& entry) {
    const Request& r = entry.second;
    return &r != but && WaitsForToken(r) && r.prefill_workers.count(worker) > 0;
  });
}

bool Router::Impl::AnotherOnTrial(const Request& request) const {
  return std::any_of(requests.begin(), requests.end(), [&](const auto& entry) {
    const Request& other = entry.second;
    return other.on_trial && other.wire_id != 0 && other.id != request.id && WaitsForToken(other);
  });
}

bool Router::Impl::Suspect(const Request& request) const {
  return !request.blamed.empty() && !InStorm(clock->Now());
}

bool Router::Impl::InStorm(Instant now) const {
  return unexplained_end.ns != INT64_MIN && now - unexplained_end < kStorm;
}

void Router::Impl::Suspects(const WorkerState& worker, const std::vector<RequestId>& orphans,
                            std::set<RequestId>* present, size_t* gone) const {
  const Instant now = clock->Now();
  std::set<RequestId> all(orphans.begin(), orphans.end());
  for (const auto& [id, since] : worker.left) {
    if (now - since < 2 * options.silence_limit) all.insert(id);
  }
  for (const RequestId id : all) {
    const auto request = requests.find(id.value);
    if (request != requests.end() && WaitsForToken(request->second)) present->insert(id);
  }
  *gone = Gone(worker, now);
}

size_t Router::Impl::Gone(const WorkerState& worker, Instant now) const {
  std::set<RequestId> gone;
  for (const auto& [id, since] : worker.left) {
    const bool lately = now - since < 2 * options.silence_limit;
    if (lately && requests.count(id.value) == 0) gone.insert(id);
  }
  return gone.size();
}

void Router::Impl::AddEnd(WorkerEnd end) {
  while (!ends.empty() && (end.at - ends.front().at >= kStorm || ends.size() >= kMostEnds))
    ends.pop_front();
  ends.push_back(std::move(end));
}

void Router::Impl::Blame(const WorkerState& worker, const std::vector<RequestId>& orphans) {
  const Instant now = clock->Now();
  WorkerEnd end{{worker.info.worker_id(), worker.info.incarnation()}, now, {}};
  Suspects(worker, orphans, &end.suspects, &end.others);
  if (end.suspects.empty()) {
    unexplained_end = now;
    return;
  }
  const std::set<RequestId> suspects = end.suspects;
  for (const RequestId id : suspects)
    requests.at(id.value).blamed[end.worker] = Different(suspects) + end.others == 1;
  AddEnd(std::move(end));
  Weigh(suspects);
  for (const RequestId id : suspects) AwaitEnds(requests.at(id.value));
}

void Router::Impl::BlamePrefill(const WorkerState& worker) {
  const Instant now = clock->Now();
  WorkerEnd end{{worker.info.worker_id(), worker.info.incarnation()}, now, {}};
  if (!MayPrefillOn(end.worker)) {
    unexplained_end = now;
    return;
  }
  end.others = Gone(worker, now);
  for (auto& [id, request] : requests) {
    if (request.prefill_lost.count(end.worker) > 0) AddSuspect(end, request);
  }
  for (auto& [id, request] : requests) AddUntold(end, request);
  // For requests reported to have been on it, this may be the last missing end.
  const std::set<RequestId> suspects = end.suspects;
  AddEnd(std::move(end));
  Weigh(suspects);
}

void Router::Impl::AddSuspect(WorkerEnd& end, Request& request) {
  end.suspects.insert(request.id);
  const bool alone = Different(end.suspects) + end.others == 1;
  for (const RequestId id : end.suspects) requests.at(id.value).blamed[end.worker] = alone;
}

// The request may have been there, but nobody will report it: too little for an only suspect.
void Router::Impl::AddUntold(WorkerEnd& end, Request& request) {
  const auto untold = request.prefill_untold.find(end.worker);
  if (untold == request.prefill_untold.end() || end.suspects.count(request.id) > 0) return;
  const Instant since = std::min(untold->second, end.at), until = std::max(untold->second, end.at);
  if (until - since >= 2 * options.silence_limit) return;
  ++end.others;
  AddSuspect(end, request);
}

void Router::Impl::NoteUntold(Request& request) {
  if (!request.asks_prefill || !WaitsForToken(request)) return;
  const WorkerKey worker = *std::exchange(request.asks_prefill, std::nullopt);
  if (request.prefill_lost.count(worker) > 0) return;
  request.prefill_untold.insert_or_assign(worker, clock->Now());
  for (WorkerEnd& end : ends) {
    if (end.worker == worker) AddUntold(end, request);
  }
}

void Router::Impl::OnPrefillLost(Request& request, const v1::TokenEvent& event) {
  if (!WaitsForToken(request)) return;
  for (const v1::PrefillTarget& lost : event.lost_prefill()) {
    const WorkerKey worker{lost.worker_id(), lost.incarnation()};
    if (request.prefill_workers.count(worker) == 0) continue;
    if (!request.prefill_lost.insert(worker).second) continue;
    for (WorkerEnd& end : ends) {
      if (end.worker == worker) AddSuspect(end, request);
    }
  }
}

void Router::Impl::ForgetPrefillWorkers(const Request& request) {
  if (!WaitsForToken(request)) return;
  const Instant now = clock->Now();
  for (const WorkerKey& key : request.prefill_workers) {
    WorkerState* const worker = WorkerNamed(key.first);
    if (worker != nullptr && worker->info.incarnation() == key.second)
      worker->TakenAway(request.id, now);
  }
  for (WorkerEnd& end : ends) {
    const bool unheard = now - end.at < 2 * options.silence_limit &&
                         request.prefill_workers.count(end.worker) > 0 &&
                         end.suspects.count(request.id) == 0;
    if (!unheard) continue;
    ++end.others;
    for (const RequestId id : end.suspects) requests.at(id.value).blamed[end.worker] = false;
  }
}

void Router::Impl::HoldBack(Request& request) {
  request.verdict = clock->Now() + options.poison_verdict;
  if (pending.count(request.id) == 0 && queued.count(request.id) == 0) return;
  // It already waited for a worker or for room; now it waits for the verdict.
  RemoveFromQueue(request);
  request.give_up = request.deadline;
  MakePending(request, request.verdict);
}

bool Router::Impl::MayHaveEndedTwo(const Request& request) const {
  std::set<WorkerKey> lost = request.prefill_lost;
  for (const auto& [worker, alone] : request.blamed) lost.insert(worker);
  return lost.size() >= kEndsAlone && !InStorm(clock->Now());
}

void Router::Impl::AwaitEnds(Request& request) {
  const auto unknown = [&](const WorkerKey& worker) { return request.blamed.count(worker) == 0; };
  const bool open =
      std::any_of(request.prefill_lost.begin(), request.prefill_lost.end(), unknown) ||
      std::any_of(request.prefill_untold.begin(), request.prefill_untold.end(),
                  [&](const auto& untold) { return unknown(untold.first); });
  if (open && request.wire_id == 0 && MayHaveEndedTwo(request)) HoldBack(request);
}

bool Router::Impl::Alike(const Request& a, const Request& b) {
  return a.spec.shares_tokens && b.spec.shares_tokens &&
         a.spec.tokens.identity() == b.spec.tokens.identity();
}

size_t Router::Impl::Different(const std::set<RequestId>& suspects) const {
  std::set<const void*> prompts;
  size_t single = 0;
  for (const RequestId id : suspects) {
    const RouterRequest& spec = requests.at(id.value).spec;
    if (spec.shares_tokens) {
      prompts.insert(spec.tokens.identity());
    } else {
      ++single;
    }
  }
  return single + prompts.size();
}

bool Router::Impl::Explains(const Request& request, const WorkerEnd& end) const {
  return std::any_of(end.suspects.begin(), end.suspects.end(), [&](RequestId id) {
    return id == request.id || Alike(requests.at(id.value), request);
  });
}

void Router::Impl::Weigh(const std::set<RequestId>& suspects) {
  const Instant now = clock->Now();
  const bool again = std::any_of(suspects.begin(), suspects.end(), [this](RequestId id) {
    return requests.at(id.value).blamed.size() >= kEndsAlone;
  });
  if (!again || InStorm(now)) return;
  bool found = false;
  for (const RequestId id : suspects) {
    Request& request = requests.at(id.value);
    if (request.wire_id != 0 || !Convicted(request)) continue;
    HoldBack(request);
    found = true;
  }
  if (found) return;
  for (auto& [id, request] : requests) {
    const bool waits = request.wire_id == 0 && WaitsForToken(request);
    if (!waits || request.blamed.empty()) continue;
    request.on_trial = true;
    request.give_up = request.deadline;
  }
}

// Convicted: no other request explains as many ends, or any end that this one does not.
bool Router::Impl::Convicted(const Request& request) const {
  const auto alone = std::count_if(request.blamed.begin(), request.blamed.end(),
                                   [](const auto& blamed) { return blamed.second; });
  const bool others_too = std::any_of(ends.begin(), ends.end(), [&](const WorkerEnd& end) {
    return !end.suspects.empty() && !Explains(request, end);
  });
  if (alone >= static_cast<ptrdiff_t>(kEndsAlone) && !others_too) return true;
  if (request.blamed.size() < kEndsBesideOthers) return false;
  return std::none_of(requests.begin(), requests.end(), [&](const auto& entry) {
    const Request& other = entry.second;
    return other.id != request.id && !Alike(other, request) &&
           other.blamed.size() >= request.blamed.size();
  });
}

void Router::Impl::Unblame(const v1::Register& worker) {
  const v1::LastExit& last = worker.last_exit();
  const bool ended_well = worker.has_last_exit() && last.signal() == 0 && last.exit_code() == 0;
  const auto is_back = [&](const WorkerKey& key) {
    return key.first == worker.worker_id() && (ended_well || key.second == worker.incarnation());
  };
  for (auto& [id, request] : requests) {
    std::erase_if(request.blamed, [&](const auto& blamed) { return is_back(blamed.first); });
    std::erase_if(request.prefill_lost, is_back);
    std::erase_if(request.prefill_untold,
                  [&](const auto& untold) { return is_back(untold.first); });
  }
  std::erase_if(ends, [&](const WorkerEnd& end) { return is_back(end.worker); });
}

// Other suspects of a prefill worker's end may still be reported.
void Router::Impl::Clear(Request& request) {
  if (request.blamed.empty() && (request.prefill_workers.empty() || ends.empty())) return;
  request.blamed.clear();
  std::erase_if(ends, [&](WorkerEnd& end) {
    const bool suspected = end.suspects.erase(request.id) > 0;
    if (!end.suspects.empty() || MayPrefillOn(end.worker)) return false;
    if (suspected || end.others == 0) unexplained_end = std::max(unexplained_end, end.at);
    return true;
  });
}

void Router::Impl::ForgetSuspect(const Request& request) {
  if (request.blamed.empty()) return;
  std::erase_if(ends, [&](WorkerEnd& end) {
    if (end.suspects.erase(request.id) == 0 || !end.suspects.empty()) return false;
    if (!MayPrefillOn(end.worker, &request)) return true;
    ++end.others;
    return false;
  });
}

bool Router::Impl::Judge(RequestId id, Instant now) {
  Request* request = Find(id);
  if (request == nullptr || request->verdict == kNever || now < request->verdict) return false;
  request->verdict = kNever;
  if (InStorm(now)) return false;
  if (!Convicted(*request)) {
    Weigh({id});
    return false;
  }
  RefusePoison(id);
  return true;
}

Hash128 Router::Impl::DigestOf(const RouterRequest& spec) {
  v1::GenerateRequest all;
  *all.mutable_sampling() = spec.sampling;
  all.mutable_sampling()->clear_seed();
  all.set_pooling(spec.pooling);
  if (spec.prompt_logprobs >= 0)
    all.set_prompt_logprobs(static_cast<uint32_t>(spec.prompt_logprobs));
  all.set_adapter(spec.adapter);
  all.mutable_tenant()->set_name(spec.tenant.name);
  all.mutable_tokens()->Add(spec.tokens.begin(), spec.tokens.end());
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream out(&bytes);
    google::protobuf::io::CodedOutputStream coded(&out);
    coded.SetSerializationDeterministic(true);  // it contains maps
    all.SerializeToCodedStream(&coded);
  }
  return HashBytes(bytes);
}

Status Router::Impl::CheckPoison(const RouterRequest& spec) {
  const Instant now = clock->Now();
  while (!refused_poison.empty() && now - refused_poison.front().second >= kRemembered)
    refused_poison.pop_front();
  if (refused_poison.empty() || InStorm(now)) return {};
  const Hash128 digest = DigestOf(spec);
  const auto same = std::find_if(refused_poison.begin(), refused_poison.end(),
                                 [&](const auto& refused) { return refused.first == digest; });
  if (same == refused_poison.end()) return {};
  LogWarning("request refused: the same ended workers before",
             {{"request", spec.trace_id}, {"choice", spec.choice}});
  metrics.poison.Add();
  return Internal(
      fmt::format("workers ended while they computed the same request {:.0f} s ago; it is not "
                  "tried again for {} minutes",
                  ToSeconds(now - same->second),
                  std::chrono::duration_cast<std::chrono::minutes>(kRemembered).count()));
}

void Router::Impl::RefusePoison(RequestId id) {
  Request* request = Find(id);
  if (request == nullptr) return;
  LogError("request refused: workers end when they compute it",
           {{"request", request->spec.trace_id},
            {"choice", request->spec.choice},
            {"workers_ended", request->blamed.size()},
            {"last_worker", request->worker}});
  metrics.poison.Add();
  if (refused_poison.size() >= kMostRemembered) refused_poison.pop_front();
  refused_poison.emplace_back(DigestOf(request->spec), clock->Now());
  Finish(*request, v1::FINISH_ERROR,
         {Code::kInternal,
          fmt::format("{} workers ended while they computed this request; it is not tried again",
                      request->blamed.size())},
         {});
}

}  // namespace aisp
