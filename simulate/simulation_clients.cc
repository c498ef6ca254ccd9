// Requests from their clients' view.
#include <algorithm>
#include <ctime>

#include "simulate/simulation.h"

namespace aisp::simulate {
namespace {

// CPU time of this thread: the cost of a placement, whatever else the machine does.
double CpuMicros() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

}  // namespace

void Simulation::ScheduleArrival(size_t index) {
  if (index == items_.size()) return;
  outcome_.requests[index].arrived_s = at_s_[index];
  Schedule(kSimulationStart + FromMs(at_s_[index] * 1e3) + frontend_,
           {Event::kArrival, nullptr, nullptr, index});
}

void Simulation::Arrive(size_t index) {
  ScheduleArrival(index + 1);
  const loadgen::WorkItem& item = items_[index];
  auto client = std::make_unique<Client>();
  client->simulation = this;
  client->index = index;
  RouterRequest request;
  request.tokens = prompts_.Ids(item.parts);
  request.max_new_tokens = static_cast<uint32_t>(std::max<int64_t>(1, item.output_tokens));
  request.tenant.service_class = item.service_class;
  if (options_.objectives && !Yields(item.service_class)) request.objective = limits_;
  request.prefill = options_.prefill;
  Served& served = outcome_.requests[index];
  served.service_class = item.service_class;
  served.input_tokens = static_cast<int64_t>(request.tokens.size());
  outcome_.prompt_tokens += served.input_tokens;
  clients_[index] = std::move(client);
  Duration hint{};
  const double begin = CpuMicros();
  const auto id =
      routers_[index % routers_.size()]->Submit(std::move(request), clients_[index].get(), &hint);
  outcome_.decisions_us.push_back(static_cast<float>(CpuMicros() - begin));
  if (id) return;
  served.end = Served::End::kRefused;
  clients_[index].reset();
  ++ended_;
  ++missed_;
}

void Simulation::Finished(size_t index, bool well) {
  const Client& client = *clients_[index];
  Served& served = outcome_.requests[index];
  const Instant arrived = kSimulationStart + FromMs(served.arrived_s * 1e3);
  served.output_tokens = client.tokens;
  served.end = well ? Served::End::kDone : Served::End::kFailed;
  served.e2e_ms = ToMs(Now() - arrived);
  if (client.tokens > 0) served.ttft_ms = ToMs(client.first - arrived);
  if (client.tokens > 1)
    served.tpot_ms = ToMs(Now() - client.first) / static_cast<double>(client.tokens - 1);
  ++ended_;
  if (!served.Within(limits_)) ++missed_;
  finished_.push_back(index);
}

bool Simulation::Hopeless() const {
  return static_cast<double>(missed_) > hopeless_ * static_cast<double>(items_.size());
}

}  // namespace aisp::simulate
