#include "net/abandoned_calls.h"

#include <arpa/inet.h>
#include <grpcpp/support/server_interceptor.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "common/log.h"
#include "net/intake_budget.h"

namespace aisp {
namespace {
constexpr Duration kWarnInterval = std::chrono::seconds(10);
}  // namespace

// "ipv4:192.0.2.7:5000", "ipv6:%5B2001:db8::1%5D:5000".
std::string AddressOfPeer(const std::string& grpc_peer) {
  const bool v6_peer = grpc_peer.starts_with("ipv6:%5B");
  const size_t begin = v6_peer ? 8 : grpc_peer.find(':') + 1;
  const size_t end = v6_peer ? grpc_peer.find("%5D") : grpc_peer.rfind(':');
  if (begin > grpc_peer.size() || end == std::string::npos || end <= begin) return grpc_peer;
  std::string host = grpc_peer.substr(begin, end - begin);
  host = host.substr(0, host.find('%'));  // without the zone
  unsigned char v6[16] = {};
  if (inet_pton(AF_INET6, host.c_str(), v6) != 1) return host;
  return AddressParty(v6);
}

AbandonedCalls::AbandonedCalls(std::shared_ptr<ConnectionBytes> bytes, const Limits& limits)
    : bytes_(std::move(bytes)), limits_(limits) {}

void AbandonedCalls::Refill(Bucket* bucket, const Limits& limits, Instant now) {
  bucket->left =
      std::min(limits.at_once, bucket->left + ToMs(now - bucket->at) / 1000 * limits.per_second);
  bucket->at = now;
}

bool AbandonedCalls::Take(Buckets* buckets, const Limits& limits, const std::string& name,
                          Instant now) {
  if (buckets->size() >= kMost && !buckets->contains(name)) {
    std::erase_if(*buckets, [&](const auto& entry) {
      Bucket bucket = entry.second;
      Refill(&bucket, limits, now);
      return bucket.left >= limits.at_once;
    });
  }
  // Above the limit, unknown names share one bucket.
  const bool room = buckets->size() < kMost || buckets->contains(name);
  Bucket& bucket =
      buckets->try_emplace(room ? name : "", Bucket{limits.at_once, now}).first->second;
  Refill(&bucket, limits, now);
  bucket.left -= 1;
  if (bucket.left >= 0) return true;
  bucket.left = 0;
  return false;
}

void AbandonedCalls::Return(Buckets* buckets, const Limits& limits, const std::string& name) {
  const auto it = buckets->find(name);
  if (it != buckets->end()) it->second.left = std::min(limits.at_once, it->second.left + 1);
}

void AbandonedCalls::Count(const std::string& party, const std::string& grpc_peer, Instant now) {
  {
    const std::lock_guard lock(mutex_);
    const bool party_left = Take(&parties_, limits_, party, now);
    const bool own_left = Take(&connections_, kOwn, grpc_peer, now);
    if (party_left || own_left) return;
    if (now >= next_warning_) {
      next_warning_ = now + kWarnInterval;
      LogWarning("gRPC connections are closed: too many reset or abandoned calls",
                 {{"party", party}, {"a_second", limits_.per_second}});
    }
  }
  bytes_->Cut(PeerKey(grpc_peer));
}

void AbandonedCalls::GiveBack(const std::string& party, const std::string& grpc_peer) {
  const std::lock_guard lock(mutex_);
  Return(&parties_, limits_, party);
  Return(&connections_, kOwn, grpc_peer);
}

// For services that gRPC runs on its own threads, where the peer is known only in this hook.
class AbandonedCalls::LateHead final : public grpc::experimental::Interceptor {
 public:
  LateHead(std::shared_ptr<AbandonedCalls> calls, grpc::ServerContextBase* context)
      : calls_(std::move(calls)), context_(context) {}
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      calls_->OnHead(context_->peer());
    }
    methods->Proceed();
  }

 private:
  const std::shared_ptr<AbandonedCalls> calls_;
  grpc::ServerContextBase* const context_;
};

// gRPC asks it for an interceptor when the head of a call has arrived, before the message.
class AbandonedCalls::Hook final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Hook(std::shared_ptr<AbandonedCalls> calls) : calls_(std::move(calls)) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* call) override {
    const std::string peer = call->server_context()->peer();
    if (peer.empty()) return new LateHead(calls_, call->server_context());
    calls_->OnHead(peer);
    return nullptr;
  }

 private:
  const std::shared_ptr<AbandonedCalls> calls_;
};

void AbandonedCalls::OnHead(const std::string& grpc_peer) {
  bytes_->OnHead(PeerKey(grpc_peer));
  Count(AddressOfPeer(grpc_peer), grpc_peer, clock_.Now());
}

void AbandonedCalls::Watch(const std::shared_ptr<AbandonedCalls>& calls,
                           grpc::ServerBuilder* builder) {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> hooks;
  hooks.push_back(std::make_unique<Hook>(calls));
  builder->experimental().SetInterceptorCreators(std::move(hooks));
}

}  // namespace aisp
