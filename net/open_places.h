// OpenPlaces: slots for streams that need no key. When all are in use, the oldest stream of the
// address with the most is evicted, so that nobody can keep others out. Any thread.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "net/rpc_reactor.h"

namespace aisp {

class OpenPlaces {
 public:
  explicit OpenPlaces(size_t most) : most_(most) {}

  // Takes a slot for `rpc`. Returns the stream that the caller must end for it; null: none.
  [[nodiscard]] std::shared_ptr<LiveRpc> Take(std::shared_ptr<LiveRpc> rpc, std::string address);
  // Returns the slot; no effect if it was already evicted.
  void Leave(const LiveRpc* rpc);

 private:
  struct Place {
    std::shared_ptr<LiveRpc> rpc;
    std::string address;
  };
  const size_t most_;
  std::mutex mutex_;
  std::list<Place> places_;  // oldest first
};

}  // namespace aisp
