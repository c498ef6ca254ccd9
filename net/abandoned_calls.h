// AbandonedCalls: limits calls that are reset or abandoned before they did any work. A client may
// open and reset calls as fast as it can send (CVE-2023-44487, rapid reset). gRPC 1.51 creates each
// of them, counts none as concurrent, and delays everything else in its threads, including links
// between processes. So each party (a tenant, or an address without a key, as in
// net/intake_budget.h) has a rate limit for such calls. Beyond it, those of its connections that
// exceed their own limit are closed; others that share the address stay.
//
// Every call, of any service, is charged to its address when its head arrives. The charge is
// returned when its message is complete, or when it ended with an answer before its client reset
// it; such calls are bounded by the limit of open streams. A cancelled call with a key is charged
// to the tenant. For net/ only (it includes gRPC). Any thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "common/clock.h"
#include "net/connection_bytes.h"

namespace aisp {

// The party of a caller without a key, from gRPC's name of the peer.
std::string AddressOfPeer(const std::string& grpc_peer);

class AbandonedCalls {
 public:
  struct Limits {
    double at_once = 0;
    double per_second = 0;
  };
  AbandonedCalls(std::shared_ptr<ConnectionBytes> bytes, const Limits& limits);

  // Charges `party`, and closes the connection of `grpc_peer` when the limits are exceeded.
  void Count(const std::string& party, const std::string& grpc_peer, Instant now);
  // Returns the charge of a call that did some work.
  void GiveBack(const std::string& party, const std::string& grpc_peer);

  // Charges each call of a server, of any service, to its address.
  static void Watch(const std::shared_ptr<AbandonedCalls>& calls, grpc::ServerBuilder* builder);

 private:
  class Hook;
  class LateHead;
  void OnHead(const std::string& grpc_peer);
  struct Bucket {
    double left = 0;
    Instant at;
  };
  using Buckets = std::unordered_map<std::string, Bucket>;  // full ones may be missing
  static constexpr size_t kMost = 4096;
  // Limit of one connection, below which it is safe from its party's excess.
  static constexpr Limits kOwn{.at_once = 16, .per_second = 16};
  static void Refill(Bucket* bucket, const Limits& limits, Instant now);
  // False: the bucket is empty.
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
