#include "net/grpc_acceptor.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/check.h"
#include "common/log.h"

namespace aisp {
namespace {

// Without a descriptor for a new connection it waits in the queue; it is tried again after this.
constexpr int kRetryMs = 100;

bool NothingToAccept(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

// The connection itself has failed before it was taken; the next one may be well.
bool ConnectionBroke(int error) {
  return error == ECONNABORTED || error == EINTR || error == EPROTO || error == ENETDOWN;
}

}  // namespace

GrpcAcceptor::GrpcAcceptor(grpc::ServerBuilder* builder, int listen_fd)
    : server_(builder->experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
          grpc::InsecureServerCredentials())),
      listen_fd_(listen_fd) {
  Result<Waker> waker = Waker::Create();
  AISP_CHECK_MSG(waker.has_value(), waker ? "" : waker.error().message);
  waker_ = std::move(*waker);
}

GrpcAcceptor::~GrpcAcceptor() {
  Stop();
  if (listen_fd_ >= 0) close(listen_fd_);
}

void GrpcAcceptor::Start() {
  thread_ = Thread("grpc-accept", [this] { Run(); });
}

void GrpcAcceptor::Stop() {
  if (!thread_.joinable()) return;
  waker_->Wake();
  thread_.Join();
  close(listen_fd_);
  listen_fd_ = -1;
}

void GrpcAcceptor::Run() {
  bool pause = false;
  for (;;) {
    pollfd fds[2] = {{waker_->fd(), POLLIN, 0}, {listen_fd_, POLLIN, 0}};
    const int ready = poll(fds, pause ? 1 : 2, pause ? kRetryMs : -1);
    pause = false;
    if (ready < 0 && errno != EINTR) LogError("poll failed", {{"error", std::strerror(errno)}});
    if ((fds[0].revents & POLLIN) != 0) return;
    if (ready <= 0 || (fds[1].revents & POLLIN) == 0) continue;
    const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      // Another process that shares the socket may have been faster.
      if (NothingToAccept(errno) || ConnectionBroke(errno)) continue;
      LogWarning("a gRPC connection could not be accepted", {{"error", std::strerror(errno)}});
      pause = true;
      continue;
    }
    last_accept_ = SteadyClock().Now();
    const int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listen_fd_;
    connection.fd = fd;
    server_->HandleNewConnection(&connection);
  }
}

}  // namespace aisp
