// Links between routers and workers, and their messages.
#include "simulate/simulation.h"

namespace aisp::simulate {

LinkId Simulation::NewLink(Worker* worker) {
  const LinkId first(by_link_.size() + 1);
  by_link_.insert(by_link_.end(), routers_.size(), worker);
  for (size_t r = 0; r < routers_.size(); ++r)
    routers_[r]->OnLinkUp(LinkId(first.value + r), worker->id());
  return first;
}

void Simulation::Register(Worker& worker) {
  v1::WorkerMessage message;
  *message.mutable_register_() = worker.Registration();
  SendToRouter(worker, std::move(message));
}

void Simulation::Rejoin(Worker& worker) {
  worker.set_link(NewLink(&worker));
  Register(worker);
}

void Simulation::Send(LinkId link, v1::RouterMessage message) {
  Worker* worker = by_link_.at(link.value - 1);
  NameForWorker(RouterOf(link), &message);
  const uint64_t place = to_workers_.Put(std::move(message));
  Schedule(Now() + message_, {Event::kToWorker, worker, nullptr, place});
}

void Simulation::SendToRouter(Worker& from, v1::WorkerMessage message) {
  const auto send = [&](uint64_t r, v1::WorkerMessage heard) {
    if (heard.body_case() == v1::WorkerMessage::BODY_NOT_SET) return;
    const uint64_t place = to_router_.Put(std::move(heard));
    Schedule(Now() + message_,
             {Event::kToRouter, &from, nullptr, place, LinkId(from.link().value + r)});
  };
  const uint64_t routers = routers_.size();
  if (routers == 1) return send(0, std::move(message));
  for (uint64_t r = 0; r < routers; ++r) send(r, HeardBy({r, routers}, message));
}

}  // namespace aisp::simulate
