// GrpcAcceptor: accepts on a listening socket that was handed to this process and gives the
// connections to a gRPC server, which cannot listen on a descriptor itself. Unlike gRPC's own
// listener it can stop accepting while streams go on: what is in the queue then is the successor's.
// And it bounds connections, which gRPC does not: one beyond a bound is closed at once. To know
// when one has ended it keeps a second descriptor of each, which reports the end (gRPC shuts a
// socket down before it closes it) and keeps nothing else alive. By the same descriptor those end
// that send without getting anywhere (net/connection_bytes.h). Inside net/ only (it brings gRPC).
//
// Start, Retire and Stop on one thread; the accepting runs on its own.
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
    size_t per_address = 4096;  // of IPv6: per /64
    // What the kernel keeps of a connection until gRPC reads it, which it does in one go: as many
    // calls as fit are made before one is counted. 0: as much as the kernel likes.
    int receive_buffer = 0;
  };
  // Before BuildAndStart. Takes `listen_fd`, which AdoptListenSocket or ListenOn gave. `bytes`,
  // where there is one, learns of each connection and ends those that have sent too much.
  GrpcAcceptor(grpc::ServerBuilder* builder, int listen_fd,
               std::shared_ptr<grpc::ServerCredentials> credentials, const Limits& limits,
               std::shared_ptr<ConnectionBytes> bytes = nullptr);
  ~GrpcAcceptor();
  GrpcAcceptor(const GrpcAcceptor&) = delete;
  GrpcAcceptor& operator=(const GrpcAcceptor&) = delete;

  // After BuildAndStart.
  void Start();
  // Accepts no more; `ended` runs on the accepting thread when the last connection has ended, at
  // once if there is none, never after Stop. Once, after Start.
  void Retire(std::function<void()> ended);
  // Nothing is accepted and nothing watched after it; the socket is closed here. Idempotent.
  void Stop();

 private:
  struct Connection {
    UniqueDescriptor watch;
    std::string party;
    std::string key;          // in bytes_
    uint64_t counted_at = 0;  // bytes received when its streams were counted
    uint64_t streams = 0;
  };

  struct CutLately {
    double left = 0;  // new connections, when `at`
    Instant at;
    Instant cut_at;
  };

  void Run();
  // Closes the socket: what waits in its queue is the successor's.
  void CloseListener();
  // False: it is to be tried again after a pause.
  bool AcceptOne();
  // Whether one more may be served; it is closed if not.
  bool Admit(int fd, const sockaddr_storage& peer);
  void Ended(uint64_t number);
  void EndThoseThatSendTooMuch(Instant now);
  void EndThoseWithTooManyStreams(Instant now);
  // Of an address that has had a connection cut lately.
  bool DialsTooOften(const std::string& party);
  void EndForStreams(Connection* connection, Instant now);
  // One round of events. False: the thread is done.
  bool Serve();

  const std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server_;
  int listen_fd_;
  std::optional<Waker> waker_;
  std::atomic<bool> stop_{false};
  std::function<void()> all_ended_;  // set before retire_
  std::atomic<bool> retire_{false};
  const Limits limits_;
  const std::shared_ptr<ConnectionBytes> bytes_;  // may be null
  // The thread's.
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
