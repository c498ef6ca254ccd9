#include "net/listen_socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/strings.h"
#include "net/host_port.h"

namespace aisp {
namespace {

Error ListenError(const std::string& host, uint16_t port, const std::string& flag, int error) {
  const std::string port_text = std::to_string(port);
  std::string message = "cannot listen on " + host + ":" + port_text + ": " + std::strerror(error);
  if (error == EADDRINUSE) {
    message += "; another program has port " + port_text +
               " (`ss -ltnp` shows which), so stop it or choose another port: " + flag +
               ", or 0 for a free one";
  } else if (error == EACCES) {
    message += "; ports below 1024 need a privilege: choose another with " + flag;
  }
  return Error{error == EADDRINUSE ? Code::kAlreadyExists : Code::kInvalidArgument,
               std::move(message)};
}

}  // namespace

Result<int> ListenOn(const std::string& host, uint16_t port, const std::string& port_flag) {
  const std::string name(WithoutBrackets(host));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int rc = getaddrinfo(name.empty() ? nullptr : name.c_str(), std::to_string(port).c_str(),
                             &hints, &found);
  if (rc != 0) {
    return InvalidArgument("cannot listen on " + host + ":" + std::to_string(port) + ": " +
                           gai_strerror(rc));
  }
  const int fd =
      socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, found->ai_protocol);
  const int yes = 1;
  const bool listens =
      fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
      bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0;
  const int error = errno;
  freeaddrinfo(found);
  if (listens) return fd;
  if (fd >= 0) close(fd);
  return tl::unexpected(ListenError(host, port, port_flag, error));
}

Result<int> ListenOn(const std::string& address, const std::string& port_flag) {
  const SplitAddress split = SplitHostPort(address);
  if (!split.port)
    return InvalidArgument("'" + address +
                           "' is no address; it wants host:port, an IPv6 number in brackets");
  AISP_ASSIGN_OR_RETURN(const int64_t port, ParseIntInRange(*split.port, 0, UINT16_MAX));
  return ListenOn(std::string(split.host), static_cast<uint16_t>(port), port_flag);
}

Status AdoptListenSocket(int fd) {
  int listens = 0;
  socklen_t size = sizeof(listens);
  if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) {
    return InvalidArgument("descriptor " + std::to_string(fd) +
                           " was handed over as a listening socket and is none");
  }
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
      fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    return Internal("cannot adopt descriptor " + std::to_string(fd) + ": " + std::strerror(errno));
  }
  return {};
}

uint16_t PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
  if (address.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
  return 0;
}

}  // namespace aisp
