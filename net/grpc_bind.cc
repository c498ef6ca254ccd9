#include "net/grpc_bind.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace aisp {
namespace {

Error Explain(const std::string& address, std::string_view choose) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return {Code::kInvalidArgument, "an address is HOST:PORT"};
  std::string host = address.substr(0, colon);
  if (host.size() > 1 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const std::string port = address.substr(colon + 1);
  const int rc = getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &found);
  if (rc != 0) return {Code::kInvalidArgument, gai_strerror(rc)};
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  const bool bound = fd >= 0 && bind(fd, found->ai_addr, found->ai_addrlen) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  freeaddrinfo(found);
  if (bound) return {Code::kUnavailable, "it was busy a moment ago; try again"};
  if (error != EADDRINUSE) return {Code::kInvalidArgument, std::strerror(error)};
  return {Code::kAlreadyExists,
          "another program has port " + port +
              " (`ss -ltnp` shows which); stop it or choose another port: " + std::string(choose)};
}

}  // namespace

Error BindError(const std::string& address, std::string_view choose) {
  return Explain(address, choose).WithContext("cannot listen for gRPC on " + address);
}

}  // namespace aisp
