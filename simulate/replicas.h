// Messages between workers and several routers. A worker has one id for each request: router r of n
// owns the ids whose remainder by n is r. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "worker.pb.h"

namespace aisp::simulate {

// One of n routers. A worker's first link is that of router 0, the others follow.
struct Replica {
  uint64_t index = 0;
  uint64_t count = 1;

  uint64_t ToWorker(uint64_t wire_id) const { return wire_id * count + index; }
  // The inverse; lossless, because a worker's id names its router.
  uint64_t Own(uint64_t worker_id) const { return worker_id / count; }
  bool Owns(uint64_t worker_id) const { return worker_id % count == index; }
};

// Changes the ids in a router's message to those of the worker.
void NameForWorker(const Replica& router, v1::RouterMessage* message);
// The part of a worker's message that is for that router; without a body: none.
v1::WorkerMessage HeardBy(const Replica& router, const v1::WorkerMessage& message);

}  // namespace aisp::simulate
