#include "kvcache/transport/peer_death.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "common/strings.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5
#endif

namespace aisp {
namespace {

Error Errno(const std::string& what) {
  const Code code = errno == ESRCH    ? Code::kNotFound
                    : errno == EMFILE ? Code::kResourceExhausted
                                      : Code::kUnavailable;
  return {code, fmt::format("{}: {}", what, std::strerror(errno))};
}

Result<UniqueFd> PidFd(pid_t pid) {
  UniqueFd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!fd) return tl::unexpected(Errno(fmt::format("pidfd_open({})", pid)));
  return fd;
}

}  // namespace

Result<uint64_t> PeerWatch::StartTime(pid_t pid) {
  const std::string path = fmt::format("/proc/{}/stat", pid);
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return NotFound(fmt::format("there is no process {}", pid));
  char text[1024];
  const ssize_t n = read(fd.get(), text, sizeof(text));
  if (n <= 0) return NotFound(fmt::format("there is no process {}", pid));
  // The second field, the name, may contain anything; the last ')' ends it. Start time is field 22.
  const std::string_view stat(text, static_cast<size_t>(n));
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string_view::npos || name_end + 2 > stat.size())
    return Internal(path + " is malformed");
  const std::vector<std::string_view> fields = Split(stat.substr(name_end + 2), ' ');
  constexpr size_t kStartTime = 22 - 3;
  if (fields.size() <= kStartTime) return Internal(path + " is malformed");
  AISP_ASSIGN_OR_RETURN(const int64_t ticks, ParseInt(fields[kStartTime]));
  return static_cast<uint64_t>(ticks);
}

Result<PeerWatch> PeerWatch::Open(pid_t pid, uint64_t start_time) {
  if (pid <= 0) return InvalidArgument(fmt::format("{} is not a process", pid));
  AISP_ASSIGN_OR_RETURN(UniqueFd fd, PidFd(pid));
  if (start_time != 0) {
    // Read after opening the pidfd: if it matches, the pidfd names that very process.
    AISP_ASSIGN_OR_RETURN(const uint64_t now, StartTime(pid));
    if (now != start_time)
      return NotFound(fmt::format("pid {} belongs to another process by now", pid));
  }
  return PeerWatch(std::move(fd), pid);
}

Result<PeerWatch> PeerWatch::OpenSocketPeer(int socket) {
  ucred cred{};
  socklen_t size = sizeof(cred);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &cred, &size) != 0)
    return tl::unexpected(Errno("SO_PEERCRED"));
  if (cred.pid <= 0)
    return Unavailable("the peer's process is not visible from this PID namespace");
  int peer_fd = -1;
  size = sizeof(peer_fd);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &peer_fd, &size) == 0)
    return PeerWatch(UniqueFd(peer_fd), cred.pid);
  // An older kernel. The pid is the peer's if its end of the socket is still open after the pidfd
  // was opened.
  AISP_ASSIGN_OR_RETURN(UniqueFd fd, PidFd(cred.pid));
  pollfd state{socket, POLLIN | POLLRDHUP, 0};
  if (poll(&state, 1, 0) < 0 || (state.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0) {
    return NotFound(
        fmt::format("process {} closed the connection before it could be watched", cred.pid));
  }
  return PeerWatch(std::move(fd), cred.pid);
}

Result<PeerWatch> PeerWatch::OfConnection(int socket) {
  UniqueFd fd(fcntl(socket, F_DUPFD_CLOEXEC, 0));
  if (!fd) return tl::unexpected(Errno("duplicating a connection"));
  return PeerWatch(std::move(fd), 0);
}

Result<PeerWatch> PeerWatch::Duplicate() const {
  UniqueFd fd(fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  if (!fd) return tl::unexpected(Errno("duplicating a pidfd"));
  return PeerWatch(std::move(fd), pid_);
}

bool PeerWatch::Dead() const {
  // A connection is also readable when data arrives.
  const short gone = pid_ != 0 ? POLLIN | POLLHUP : POLLHUP | POLLRDHUP | POLLERR;
  pollfd state{fd_.get(), static_cast<short>(pid_ != 0 ? POLLIN : POLLRDHUP), 0};
  return poll(&state, 1, 0) == 1 && (state.revents & gone) != 0;
}

}  // namespace aisp
