// grpc.health.v1.Health of an InferenceServer. For net/ only (it includes gRPC). Any thread.
#pragma once

#include <memory>
#include <mutex>

#include "health.grpc.pb.h"
#include "net/rpc_reactor.h"

namespace aisp {

class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  using Request = grpc::health::v1::HealthCheckRequest;
  using Response = grpc::health::v1::HealthCheckResponse;

  // `all_calls`: LiveRpcs's limit for calls without a key.
  HealthService(std::shared_ptr<LiveRpcs> live, size_t max_watchers, size_t all_calls);
  ~HealthService() override;

  void SetServing(bool serving);

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context, const Request* request,
                                  Response* response) override;
  grpc::ServerWriteReactor<Response>* Watch(grpc::CallbackServerContext* context,
                                            const Request* request) override;

 private:
  class Watcher;
  struct State;
  const std::shared_ptr<LiveRpcs> live_;
  const size_t all_calls_;
  const std::shared_ptr<State> state_;
};

}  // namespace aisp
