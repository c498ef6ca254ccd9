// GrpcAcceptor: accepts on an inherited listening socket and passes the connections to a gRPC
// server, which cannot do that itself. It can stop accepting while streams continue, leaving the
// queue to the successor process. It also bounds connections, which gRPC does not: those beyond a
// bound are closed at once. For that it keeps a duplicate descriptor of each connection, which
// reports the end (gRPC shuts a socket down before closing it). The same descriptor is used to end
// connections that send without making progress (net/connection_bytes.h). For net/ only (it
// includes gRPC).
//
// Start, Retire and Stop on one thread; accepting runs on a thread of its own.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "common/clock.h"
#include "common/threads.h"
#include "net/connection_bytes.h"
#include "net/open_streams.h"
#include "net/unique_descriptor.h"

namespace aisp {

class GrpcAcceptor {
 public:
  struct Limits {
    size_t connections = 4096;
    size_t per_address = 4096;  // for IPv6: per /64 network
    // Size of the kernel's receive buffer. gRPC reads all of it at once and creates the calls in it
    // before any is counted, so this bounds them. 0: the kernel's default.
    int receive_buffer = 0;
  };
  // Call before BuildAndStart. Takes ownership of `listen_fd` (from AdoptListenSocket or ListenOn).
  // `bytes`, if not null, is told of each connection and ends those that send too much.
  GrpcAcceptor(grpc::ServerBuilder* builder, int listen_fd,
               std::shared_ptr<grpc::ServerCredentials> credentials, const Limits& limits,
               std::shared_ptr<ConnectionBytes> bytes = nullptr);
  ~GrpcAcceptor();
  GrpcAcceptor(const GrpcAcceptor&) = delete;
  GrpcAcceptor& operator=(const GrpcAcceptor&) = delete;

  // Call after BuildAndStart.
  void Start();
  // Stops accepting. `ended` runs on the accepting thread once the last connection has ended, at
  // once if there is none, and never after Stop. Call once, after Start.
  void Retire(std::function<void()> ended);
  // Stops accepting and watching, and closes the socket. Idempotent.
  void Stop();

 private:
  struct Connection {
    UniqueDescriptor watch;
    std::string party;
    std::string key;          // its key in bytes_
    uint64_t counted_at = 0;  // bytes received at the last count of streams
    uint64_t streams = 0;
  };

  struct CutLately {
    double left = 0;  // tokens of the rate limit at time `at`
    Instant at;
    Instant cut_at;
  };

  void Run();
  // Closes the socket; its queue is left to the successor.
  void CloseListener();
  // False: try again after a pause.
  bool AcceptOne();
  // Whether one more connection is allowed; otherwise closes it.
  bool Admit(int fd, const sockaddr_storage& peer);
  void Ended(uint64_t number);
  void EndThoseThatSendTooMuch(Instant now);
  void EndThoseWithTooManyStreams(Instant now);
  // Rate limit for an address that had a connection cut recently.
  bool DialsTooOften(const std::string& party);
  void EndForStreams(Connection* connection, Instant now);
  // One round of events. False: the thread ends.
  bool Serve();

  const std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server_;
  int listen_fd_;
  std::optional<Waker> waker_;
  std::atomic<bool> stop_{false};
  std::function<void()> all_ended_;  // set before retire_
  std::atomic<bool> retire_{false};
  const Limits limits_;
  const std::shared_ptr<ConnectionBytes> bytes_;  // may be null
  // Used by the accepting thread only.
  UniqueDescriptor epoll_;
  uint64_t last_number_ = 0;
  std::unordered_map<uint64_t, Connection> connections_;
  std::unordered_map<std::string, size_t> parties_;
  Instant next_warning_;
  Instant next_look_;
  Instant next_count_;
  Instant next_stream_warning_;
  OpenStreams open_streams_;
  std::unordered_map<std::string, CutLately> cut_lately_;  // by party
  Thread thread_;
};

}  // namespace aisp
