// Quiet workers: silent, but not long enough to be forgotten.
//
// A live worker sends something every telemetry interval, during long steps from its own thread. A
// quiet one is paused, or its host is; it may continue soon, so its streams stay. Requests without
// a token move, because computing them elsewhere loses nothing.
#include <algorithm>

#include "common/log.h"
#include "router/router_impl.h"

namespace aisp {
namespace {

// After this many quiet workers a request stays: if every worker stutters, moving makes it worse.
constexpr int kMostQuietMoves = 2;

}  // namespace

Instant Router::Impl::QuietAt(const WorkerState& worker) const {
  return std::max(worker.last_heard, punctual_since) + options.quiet_limit;
}

std::vector<RequestId> Router::Impl::WaitingFor(const WorkerState& worker) const {
  std::vector<RequestId> waiting;
  const WorkerKey key{worker.info.worker_id(), worker.info.incarnation()};
  const auto may_move = [&](const Request& request) {
    return request.wire_id != 0 && WaitsForToken(request) && !request.on_trial &&
           request.quiet_moves < kMostQuietMoves;
  };
  if (worker.decode()) {
    for (const uint64_t wire_id : worker.attempts) {
      const RequestId id = by_wire.at(wire_id);
      if (may_move(requests.at(id.value))) waiting.push_back(id);
    }
  } else {
    for (const auto& [id, request] : requests) {
      if (request.asks_prefill == key && may_move(request)) waiting.push_back(request.id);
    }
    std::sort(waiting.begin(), waiting.end());
  }
  return waiting;
}

void Router::Impl::OnQuiet(WorkerState& worker) {
  worker.quiet = true;
  const std::vector<RequestId> waiting = WaitingFor(worker);
  LogInfo("worker is quiet", {{"worker", worker.info.worker_id()},
                              {"ms", ToMs(clock->Now() - worker.last_heard)},
                              {"waiting", waiting.size()}});
  metrics.quiet.Add();
  // Observers may change anything between two moves, and a full link drops its worker.
  for (const RequestId id : waiting) {
    Request* request = Find(id);
    if (request == nullptr || request->wire_id == 0 || !WaitsForToken(*request)) continue;
    ++request->quiet_moves;
    Move(*request, "its worker is quiet");
  }
}

void Router::Impl::OnHeardAgain(WorkerState& worker) {
  worker.quiet = false;
  link_timers.Set(worker.link.value,
                  std::min(QuietAt(worker), clock->Now() + options.silence_limit));
  PlacePending();
}

}  // namespace aisp
