// VainCalls: calls that come to nothing. A client may open calls and reset them as fast as it sends
// (CVE-2023-44487): gRPC 1.51 makes each of them, counts none of them as concurrent, and what is
// behind them in its threads waits, links between processes too. So of each party (a tenant, or the
// address of those without a key, as in net/intake_budget.h) so many may come to nothing at once
// and in a second. Beyond that each of its connections that has some of its own is closed: who
// merely shares the address keeps his.
//
// A call counts towards its address from its head on, of any service. What has a key is given back
// when its message is whole, or when it has ended with an answer that its client did not reset
// before: refused as often as it likes, it is bounded by the streams that may be open. It counts
// towards the tenant when it is cancelled. Inside net/ only (it brings gRPC). Any thread.
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

  // One more of `party`, on the connection of `grpc_peer`, which ends where that is one too many.
  void Count(const std::string& party, const std::string& grpc_peer, Instant now);
  // It came to something.
  void GiveBack(const std::string& party, const std::string& grpc_peer);

  // Counts each call of a server towards its address, whatever it asks for.
  static void Watch(const std::shared_ptr<VainCalls>& calls, grpc::ServerBuilder* builder);

 private:
  class Hook;
  class LateHead;
  void OnHead(const std::string& grpc_peer);
  struct Bucket {
    double left = 0;
    Instant at;
  };
  using Buckets = std::unordered_map<std::string, Bucket>;  // those that are full may be missing
  static constexpr size_t kMost = 4096;
  // Of one connection, before others of its party can cost it anything.
  static constexpr Limits kOwn{.at_once = 16, .per_second = 16};
  static void Refill(Bucket* bucket, const Limits& limits, Instant now);
  // False: there is nothing left.
  static bool Take(Buckets* buckets, const Limits& limits, const std::string& name, Instant now);
  static void Return(Buckets* buckets, const Limits& limits, const std::string& name);

  const std::shared_ptr<ConnectionBytes> bytes_;
  const Limits limits_;
  const SteadyClock clock_;
  std::mutex mutex_;
  Buckets parties_;
  Buckets connections_;
  Instant next_warning_;
};

}  // namespace aisp
