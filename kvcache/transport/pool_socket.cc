#include "kvcache/transport/pool_socket.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "common/strings.h"
#include "kvcache/transport/cookie.h"

namespace aisp {
namespace {

constexpr size_t kMostFds = 3;  // of a reply

struct Address {
  sockaddr_un un{};
  socklen_t size = 0;
};

Result<Address> AbstractAddress(std::string_view name) {
  Address address;
  if (name.empty() || name.size() + 1 > sizeof(address.un.sun_path)) {
    return InvalidArgument(
        fmt::format("a socket name of {} bytes; 1 to 107 are possible", name.size()));
  }
  address.un.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(),
            address.un.sun_path + 1);  // a leading zero byte: the abstract namespace
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

}  // namespace

Error SocketError(std::string_view what) {
  Code code = Code::kUnavailable;
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINPROGRESS)
    code = Code::kDeadlineExceeded;
  if (errno == EACCES || errno == EPERM) code = Code::kPermissionDenied;
  if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) code = Code::kResourceExhausted;
  return {code, fmt::format("{}: {}", what, std::strerror(errno))};
}

Result<UniqueFd> ListenUnix(std::string_view name) {
  AISP_ASSIGN_OR_RETURN(const Address address, AbstractAddress(name));
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return tl::unexpected(SocketError("opening a Unix socket"));
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.un), address.size) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    return tl::unexpected(SocketError("listening on a Unix socket"));
  }
  return fd;
}

Result<UniqueFd> ConnectUnix(std::string_view name, Duration timeout) {
  AISP_ASSIGN_OR_RETURN(const Address address, AbstractAddress(name));
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) return tl::unexpected(SocketError("opening a Unix socket"));
  const int64_t us = std::max<int64_t>(timeout.count() / 1000, 1);  // 0 would mean no limit
  const timeval limit{.tv_sec = us / 1'000'000, .tv_usec = us % 1'000'000};
  if (setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) != 0 ||
      setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) != 0) {
    return tl::unexpected(SocketError("setting a time limit"));
  }
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.un), address.size) != 0) {
    return tl::unexpected(
        SocketError("connecting to the pool's owner (gone, or not on this host)"));
  }
  return fd;
}

Status CheckPeerUser(int socket) {
  ucred cred{};
  socklen_t size = sizeof(cred);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &cred, &size) != 0) {
    return tl::unexpected(SocketError("SO_PEERCRED"));
  }
  if (cred.uid != geteuid()) {
    return Fail(
        Code::kPermissionDenied,
        fmt::format("the peer runs as user {}, this process as {}; shared memory needs one user",
                    cred.uid, geteuid()));
  }
  return {};
}

Status SendReply(int socket, const PoolReply& reply, int pool_fd, int scratch_fd, int notes_fd) {
  iovec data{const_cast<PoolReply*>(&reply), sizeof(reply)};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFds * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  std::array<int, kMostFds> fds{};
  size_t count = 0;
  if (pool_fd >= 0) fds = {pool_fd, scratch_fd}, count = 2;
  if (notes_fd >= 0) fds[count++] = notes_fd;
  if (count > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), count * sizeof(int));
  }
  if (sendmsg(socket, &message, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(reply))) {
    return tl::unexpected(SocketError("sending a pool to its writer"));
  }
  return {};
}

Result<ReceivedReply> ReceiveReply(int socket) {
  ReceivedReply received;
  iovec data{&received.reply, sizeof(received.reply)};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFds * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (n < 0) return tl::unexpected(SocketError("waiting for the pool's owner"));
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
      const bool notes = received.reply.notes == 1 && i + 1 == count;
      (notes ? received.notes : received.pool ? received.scratch : received.pool).Reset(fd);
    }
  }
  if (n == 0) return Unavailable("the pool's owner closed the connection");
  if (n != static_cast<ssize_t>(sizeof(PoolReply)) || received.reply.magic != kPoolMagic) {
    return FailedPrecondition("the pool's owner speaks another protocol version");
  }
  return received;
}

std::string PoolDescriptor(std::string_view lane, std::string_view socket, const Hash128& cookie) {
  return fmt::format("{} {} {}", lane, socket, cookie.ToHex());
}

Result<GrantedPool> AskForPool(std::string_view lane, std::string_view descriptor,
                               Duration timeout) {
  const std::vector<std::string_view> parts = Split(descriptor, ' ');
  if (parts.size() != 3 || parts[0] != lane) {
    return InvalidArgument(fmt::format("not a {} descriptor: '{}'", lane, Excerpt(descriptor)));
  }
  GrantedPool granted;
  AISP_ASSIGN_OR_RETURN(granted.cookie, ParseCookie(parts[2]));
  AISP_ASSIGN_OR_RETURN(granted.socket, ConnectUnix(parts[1], timeout));
  AISP_RETURN_IF_ERROR(CheckPeerUser(granted.socket.get()));
  const PoolHello hello{.cookie = granted.cookie};
  if (send(granted.socket.get(), &hello, sizeof(hello), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(sizeof(hello))) {
    return tl::unexpected(SocketError("greeting the pool's owner"));
  }
  AISP_ASSIGN_OR_RETURN(granted.received, ReceiveReply(granted.socket.get()));
  if (granted.received.reply.code == static_cast<uint32_t>(Code::kFailedPrecondition)) {
    return FailedPrecondition(
        "the pool's owner cannot know of this process's death (another PID namespace?)");
  }
  if (granted.received.reply.code == static_cast<uint32_t>(Code::kResourceExhausted))
    return ResourceExhausted("the pool has as many writers as it allows");
  if (granted.received.reply.code != 0) {
    return Fail(Code::kPermissionDenied,
                "the pool's owner refused the descriptor's cookie: it is another incarnation's");
  }
  return granted;
}

Status OwnerAlive(int socket) {
  pollfd state{socket, POLLRDHUP, 0};
  if (poll(&state, 1, 0) > 0)
    return Unavailable("the pool's owner is gone; connect to its successor");
  return {};
}

}  // namespace aisp
