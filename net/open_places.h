// OpenPlaces: places for streams that need no key. Where all are taken, the one that came first of
// the address with most of them leaves: nobody's streams keep others out. Any thread.
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

  // Whom the caller has to end, so that there is room for `rpc`; null: nobody.
  [[nodiscard]] std::shared_ptr<LiveRpc> Take(std::shared_ptr<LiveRpc> rpc, std::string address);
  // No error for who has left already.
  void Leave(const LiveRpc* rpc);

 private:
  struct Place {
    std::shared_ptr<LiveRpc> rpc;
    std::string address;
  };
  const size_t most_;
  std::mutex mutex_;
  std::list<Place> places_;  // in the order in which they came
};

}  // namespace aisp
