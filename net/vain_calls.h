// VainCalls: calls that come to nothing. A client may open calls and reset them as fast as it sends
// (CVE-2023-44487): gRPC 1.51 makes each of them, counts none of them as concurrent, and what is
// behind them in its threads waits, links between processes too. So of each party (a tenant, or the
// address of those without a key, as in net/intake_budget.h) so many may come to nothing at once
// and in a second. Who goes on beyond that has its connection closed.
//
// A call counts towards its address from its head on, of any service; what has a key and
// a whole message is given back, and counts towards the tenant when it is cancelled. Inside net/
// only (it brings gRPC). Any thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "common/clock.h"
#include "net/connection_bytes.h"

namespace aisp {

// The party of a caller without a key, named as gRPC's contexts name it.
std::string AddressOfPeer(const std::string& grpc_peer);

class VainCalls {
 public:
  struct Limits {
    double at_once = 0;
    double per_second = 0;
  };
  VainCalls(std::shared_ptr<ConnectionBytes> bytes, const Limits& limits);

  // One more of `party`; where that is one too many, the connection of `grpc_peer` ends.
  void Count(const std::string& party, const std::string& grpc_peer, Instant now);
  // It came to something.
  void GiveBack(const std::string& party);

  // Counts each call of a server towards its address, whatever it asks for.
  static void Watch(const std::shared_ptr<VainCalls>& calls, grpc::ServerBuilder* builder);

 private:
  class Hook;
  struct Bucket {
    double left = 0;
    Instant at;
  };
  static constexpr size_t kMostParties = 4096;
  void Refill(Bucket* bucket, Instant now) const;

  const std::shared_ptr<ConnectionBytes> bytes_;
  const Limits limits_;
  const SteadyClock clock_;
  std::mutex mutex_;
  std::unordered_map<std::string, Bucket> parties_;  // those that are full may be missing
  Instant next_warning_;
};

}  // namespace aisp
