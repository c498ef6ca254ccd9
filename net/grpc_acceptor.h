// GrpcAcceptor: accepts on a listening socket that was handed to this process and gives the connections to a gRPC server,
// which cannot listen on a descriptor itself. Unlike gRPC's own listener it can stop accepting while streams go on: what is in
// the queue then is the successor's. Inside net/ only (it brings gRPC).
//
// Start and Stop on one thread; the accepting runs on its own.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>

#include "common/clock.h"
#include "common/threads.h"

namespace aisp {

class GrpcAcceptor {
 public:
  // Before BuildAndStart. Takes `listen_fd`, which AdoptListenSocket or ListenOn gave.
  GrpcAcceptor(grpc::ServerBuilder* builder, int listen_fd);
  ~GrpcAcceptor();
  GrpcAcceptor(const GrpcAcceptor&) = delete;
  GrpcAcceptor& operator=(const GrpcAcceptor&) = delete;

  // After BuildAndStart.
  void Start();
  // Nothing is accepted after it; the socket is closed here. Idempotent.
  void Stop();
  // When the youngest connection was accepted, by the steady clock. After Stop.
  std::optional<Instant> last_accept() const { return last_accept_; }

 private:
  void Run();

  const std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server_;
  int listen_fd_;
  std::optional<Instant> last_accept_;
  std::optional<Waker> waker_;
  Thread thread_;
};

}  // namespace aisp
