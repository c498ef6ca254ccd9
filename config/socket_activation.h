// Listening sockets created by the parent process, by systemd's protocol (sd_listen_fds(3)), which
// `aisp up`, systemd and s6 implement.
#pragma once

#include <map>
#include <string>

#include "common/result.h"

namespace aisp {

// Descriptors by name from LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES, which are then unset; empty
// when LISTEN_PID is absent or another process. Without names: "http", "workers", "grpc". Call
// once, before any thread starts. INVALID_ARGUMENT: not a number, an unknown name, or a name given
// twice.
Result<std::map<std::string, int>> TakeActivationSockets();

// The same for given values of the variables; `pid`: this process.
Result<std::map<std::string, int>> ParseActivationSockets(const std::string& listen_pid,
                                                          const std::string& listen_fds,
                                                          const std::string& listen_fdnames,
                                                          int64_t pid);

}  // namespace aisp
