// Listening sockets that whoever started this process made for it: systemd's protocol
// (sd_listen_fds(3)), which `aisp up` and process managers such as systemd and s6 speak.
#pragma once

#include <map>
#include <string>

#include "common/result.h"

namespace aisp {

// Descriptors by name, from LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES, which are removed from the
// environment; empty when LISTEN_PID names another process or is absent. Without names: "http",
// "workers", "grpc". Call once, before any thread starts. INVALID_ARGUMENT: not numbers, an unknown
// name, or the same name twice.
Result<std::map<std::string, int>> TakeActivationSockets();

// The same from the values of the three variables; `pid`: of this process.
Result<std::map<std::string, int>> ParseActivationSockets(const std::string& listen_pid,
                                                          const std::string& listen_fds,
                                                          const std::string& listen_fdnames,
                                                          int64_t pid);

}  // namespace aisp
