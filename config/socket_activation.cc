#include "config/socket_activation.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include "common/strings.h"

namespace aisp {
namespace {

// SD_LISTEN_FDS_START.
constexpr int kFirstFd = 3;
constexpr std::array<std::string_view, 3> kNames = {"http", "workers", "grpc"};

std::string Take(const char* name) {
  const char* value = std::getenv(name);
  std::string out = value == nullptr ? "" : value;
  unsetenv(name);
  return out;
}

}  // namespace

Result<std::map<std::string, int>> ParseActivationSockets(const std::string& listen_pid,
                                                          const std::string& listen_fds,
                                                          const std::string& listen_fdnames,
                                                          int64_t pid) {
  std::map<std::string, int> out;
  if (listen_pid.empty() || listen_fds.empty()) return out;
  const auto meant_for = ParseInt(listen_pid);
  const auto count = ParseIntInRange(listen_fds, 0, static_cast<int64_t>(kNames.size()));
  if (!meant_for) return InvalidArgument("LISTEN_PID is '" + Excerpt(listen_pid) + "', no number");
  if (*meant_for != pid) return out;
  if (!count) {
    return InvalidArgument("LISTEN_FDS is '" + Excerpt(listen_fds) + "'; allowed: 0 to " +
                           std::to_string(kNames.size()));
  }
  std::vector<std::string> names;
  if (!listen_fdnames.empty()) {
    for (const std::string_view name : Split(listen_fdnames, ':')) names.emplace_back(name);
  } else {
    names.assign(kNames.begin(), kNames.begin() + *count);
  }
  if (names.size() != static_cast<size_t>(*count)) {
    return InvalidArgument("LISTEN_FDNAMES has " + std::to_string(names.size()) +
                           " names for LISTEN_FDS=" + listen_fds);
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const bool known = std::find(kNames.begin(), kNames.end(), names[i]) != kNames.end();
    if (!known || !out.emplace(names[i], kFirstFd + static_cast<int>(i)).second) {
      return InvalidArgument("LISTEN_FDNAMES has '" + Excerpt(names[i]) +
                             "'; each of http, workers and grpc may stand there once");
    }
  }
  return out;
}

Result<std::map<std::string, int>> TakeActivationSockets() {
  const std::string pid = Take("LISTEN_PID");
  const std::string fds = Take("LISTEN_FDS");
  const std::string names = Take("LISTEN_FDNAMES");
  return ParseActivationSockets(pid, fds, names, getpid());
}

}  // namespace aisp
