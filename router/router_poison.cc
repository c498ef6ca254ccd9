// Requests that end workers. One that makes its worker crash would, replayed, end one after the
// other.
//
// Blamed is who was on a worker when it ended and had got no token from it; it computes its prompt
// on the next one alone, so that it takes no prefill workers with it. Who is blamed twice, and
// nobody else with it, is refused. Where several are, all who are blamed go on one at a time, so
// that the next end finds the one. While workers also end with nobody to blame (machines fail,
// somebody kills them) two ends prove nothing, and a request keeps all its attempts.
#include <algorithm>

#include <fmt/format.h>

#include "common/log.h"
#include "router/router_impl.h"

namespace aisp {
namespace {

constexpr size_t kEndsOfPoison = 2;
// An end that nobody is to blame for counts for so long.
constexpr Duration kStorm = std::chrono::seconds(60);

}  // namespace

bool Router::Impl::WaitsForToken(const Request& request) const {
  return request.first_token == kNever || request.last_token < request.dispatched;
}

bool Router::Impl::MayPrefillOn(const std::string& worker) const {
  return std::any_of(requests.begin(), requests.end(), [&](const auto& entry) {
    const Request& r = entry.second;
    return WaitsForToken(r) && std::find(r.prefill_workers.begin(), r.prefill_workers.end(),
                                         worker) != r.prefill_workers.end();
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

void Router::Impl::Blame(const v1::Register& worker, const std::vector<RequestId>& orphans) {
  const Instant now = clock->Now();
  bool anybody = false;
  std::vector<RequestId> again;
  for (const RequestId id : orphans) {
    Request& request = requests.at(id.value);
    if (!WaitsForToken(request)) continue;
    anybody = true;
    request.blamed.insert({worker.worker_id(), worker.incarnation()});
    if (request.blamed.size() >= kEndsOfPoison) again.push_back(id);
  }
  if (!anybody) unexplained_end = now;
  if (InStorm(now) || again.empty()) return;
  if (again.size() == 1) {
    requests.at(again.front().value).verdict = now + options.poison_verdict;
    return;
  }
  for (auto& [id, request] : requests) {
    const bool waits = request.wire_id == 0 && WaitsForToken(request);
    if (!waits || request.blamed.empty()) continue;
    request.on_trial = true;
    request.give_up = request.deadline;
  }
}

void Router::Impl::Unblame(const v1::Register& worker) {
  const v1::LastExit& last = worker.last_exit();
  const bool ended_well = worker.has_last_exit() && last.signal() == 0 && last.exit_code() == 0;
  for (auto& [id, request] : requests) {
    std::erase_if(request.blamed, [&](const auto& blamed) {
      return blamed.first == worker.worker_id() &&
             (ended_well || blamed.second == worker.incarnation());
    });
  }
}

bool Router::Impl::Judge(RequestId id, Instant now) {
  Request* request = Find(id);
  if (request == nullptr || request->verdict == kNever || now < request->verdict) return false;
  request->verdict = kNever;
  if (request->blamed.size() < kEndsOfPoison || InStorm(now)) return false;
  RefusePoison(id);
  return true;
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
  Finish(*request, v1::FINISH_ERROR,
         {Code::kInternal,
          fmt::format("{} workers ended while they computed this request; it is not tried again",
                      request->blamed.size())},
         {});
}

}  // namespace aisp
