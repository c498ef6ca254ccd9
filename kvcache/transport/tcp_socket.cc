#include "kvcache/transport/tcp_socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "common/hash.h"

namespace aisp {
namespace {

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

Result<Address> NumericAddress(const std::string& text, uint16_t port) {
  Address address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    address.size = sizeof(*v4);
  } else if (inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    address.size = sizeof(*v6);
  } else {
    return InvalidArgument(
        fmt::format("'{}' is no IPv4 or IPv6 address; KV addresses are numeric", text));
  }
  return address;
}

Error Errno(const std::string& what, Code code = Code::kUnavailable) {
  return {code, fmt::format("{}: {}", what, std::strerror(errno))};
}

Status WaitFor(int socket, int16_t events, Instant deadline, const char* what) {
  const SteadyClock clock;
  while (true) {
    const double ms = ToMs(deadline - clock.Now());
    pollfd state{socket, events, 0};
    const int n = poll(&state, 1, ms <= 0 ? 0 : static_cast<int>(ms) + 1);
    if (n > 0) return {};
    if (n < 0 && errno != EINTR) return tl::unexpected(Errno("poll"));
    if (n == 0) return Fail(Code::kDeadlineExceeded, fmt::format("{} took too long", what));
  }
}

// The bytes of an address without its port; those of IPv4 also where IPv6 stands for it.
std::string HostOf(const sockaddr_storage& peer) {
  if (peer.ss_family == AF_INET) {
    const in_addr& host = reinterpret_cast<const sockaddr_in&>(peer).sin_addr;
    return {reinterpret_cast<const char*>(&host), sizeof(host)};
  }
  const in6_addr& host = reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr;
  const auto* bytes = reinterpret_cast<const char*>(&host);
  if (IN6_IS_ADDR_V4MAPPED(&host)) return {bytes + sizeof(host) - sizeof(in_addr), sizeof(in_addr)};
  return {bytes, sizeof(host)};
}

uint16_t PortOf(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET
                   ? reinterpret_cast<const sockaddr_in&>(address).sin_port
                   : reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
}

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

void SetOption(int socket, int level, int option, int value) {
  static_cast<void>(setsockopt(socket, level, option, &value, sizeof(value)));
}

}  // namespace

Result<UniqueFd> ListenTcp(const std::string& address, uint16_t port) {
  AISP_ASSIGN_OR_RETURN(const Address bound, NumericAddress(address, port));
  UniqueFd fd(socket(bound.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return tl::unexpected(Errno("opening a TCP socket", Code::kResourceExhausted));
  SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (bind(fd.get(), bound.get(), bound.size) != 0 || listen(fd.get(), SOMAXCONN) != 0) {
    return tl::unexpected(Errno(fmt::format("listening on {} port {}", address, port)));
  }
  return fd;
}

Result<uint16_t> LocalPort(int socket) {
  Address address;
  address.size = sizeof(address.storage);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) {
    return tl::unexpected(Errno("getsockname"));
  }
  return PortOf(address.storage);
}

std::string PartyOf(const sockaddr_storage& peer) {
  constexpr size_t kPrefix = 8;
  return HostOf(peer).substr(0, kPrefix);
}

Result<UniqueFd> ConnectTcp(const std::string& address, uint16_t port, Duration timeout) {
  AISP_ASSIGN_OR_RETURN(const Address remote, NumericAddress(address, port));
  const std::string where = fmt::format("connecting to {} port {}", address, port);
  UniqueFd fd(socket(remote.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return tl::unexpected(Errno("opening a TCP socket", Code::kResourceExhausted));
  if (connect(fd.get(), remote.get(), remote.size) == 0) return fd;
  if (errno != EINPROGRESS) return tl::unexpected(Errno(where));
  AISP_RETURN_IF_ERROR(WaitFor(fd.get(), POLLOUT, SteadyClock().Now() + timeout, where.c_str()));
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
    errno = error;
    return tl::unexpected(Errno(where));
  }
  return fd;
}

uint32_t WithinMachineMark(int socket) {
  static const std::string boot_id = BootId();
  Address here;
  Address there;
  here.size = there.size = sizeof(sockaddr_storage);
  if (boot_id.empty() ||
      getsockname(socket, reinterpret_cast<sockaddr*>(&here.storage), &here.size) != 0 ||
      getpeername(socket, reinterpret_cast<sockaddr*>(&there.storage), &there.size) != 0 ||
      HostOf(here.storage) != HostOf(there.storage)) {
    return 0;
  }
  const auto [low, high] = std::minmax({PortOf(here.storage), PortOf(there.storage)});
  constexpr uint64_t kBits = 0xffffff;
  const uint64_t hash = Hash64(fmt::format("{} {} {}", boot_id, low, high));
  return std::max<uint32_t>(1, static_cast<uint32_t>(hash & kBits));
}

void TuneTcp(int socket, Duration stall_timeout) {
  const int ms = static_cast<int>(std::max(1.0, ToMs(stall_timeout)));
  SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, ms / 2000));
  SetOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, ms / 8000));
  SetOption(socket, IPPROTO_TCP, TCP_KEEPCNT, 4);
  SetOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, ms);
}

void WakeAtBytes(int socket, size_t bytes) {
  SetOption(socket, SOL_SOCKET, SO_RCVLOWAT, static_cast<int>(bytes));
}

Status SendAll(int socket, std::span<const std::byte> bytes, Instant deadline) {
  while (!bytes.empty()) {
    const ssize_t n = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n > 0) {
      bytes = bytes.subspan(static_cast<size_t>(n));
    } else if (errno == EAGAIN || errno == EINTR) {
      AISP_RETURN_IF_ERROR(WaitFor(socket, POLLOUT, deadline, "greeting the peer"));
    } else {
      return tl::unexpected(Errno("greeting the peer"));
    }
  }
  return {};
}

Status ReceiveAll(int socket, std::span<std::byte> bytes, Instant deadline) {
  while (!bytes.empty()) {
    const ssize_t n = recv(socket, bytes.data(), bytes.size(), 0);
    if (n > 0) {
      bytes = bytes.subspan(static_cast<size_t>(n));
    } else if (n == 0) {
      return Unavailable("the peer closed the connection; it may have restarted");
    } else if (errno == EAGAIN || errno == EINTR) {
      AISP_RETURN_IF_ERROR(WaitFor(socket, POLLIN, deadline, "waiting for the peer's greeting"));
    } else {
      return tl::unexpected(Errno("waiting for the peer's greeting"));
    }
  }
  return {};
}

}  // namespace aisp
