// What workers and several routers say to each other, where a worker has one name for each request:
// the requests of router r of n are those of which the remainder of the id by n is r. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "worker.pb.h"

namespace aisp::simulate {

// Of the n routers; the first link of a worker is that of router 0, the others follow.
struct Replica {
  uint64_t index = 0;
  uint64_t count = 1;

  uint64_t ToWorker(uint64_t wire_id) const { return wire_id * count + index; }
  // The other way; nothing is lost, for a worker's id names its router.
  uint64_t Own(uint64_t worker_id) const { return worker_id / count; }
  bool Owns(uint64_t worker_id) const { return worker_id % count == index; }
};

// From a router to a worker: its ids become those of the worker.
void NameForWorker(const Replica& router, v1::RouterMessage* message);
// What of a worker's message that router hears; without a body: nothing.
v1::WorkerMessage HeardBy(const Replica& router, const v1::WorkerMessage& message);

}  // namespace aisp::simulate
