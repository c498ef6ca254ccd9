// Listening TCP sockets as plain descriptors, for servers that inherit one (from a supervisor or
// systemd) instead of binding. Processes that hold the same socket share one queue: a connection
// goes to whichever accepts it, and none is lost while one process holds the socket. See
// docs/decisions/007-socket-hand-over.md.
#pragma once

#include <cstdint>
#include <string>

#include "common/result.h"

namespace aisp {

// Binds and listens; port 0 picks a free one. The descriptor is non-blocking and close-on-exec.
// ALREADY_EXISTS: the port is in use; the message says how to find the user and which flag
// (`port_flag`, e.g. "--port N") chooses another.
Result<int> ListenOn(const std::string& host, uint16_t port, const std::string& port_flag);
// "host:port" split at the last colon, then as above.
Result<int> ListenOn(const std::string& address, const std::string& port_flag);
// Checks that an inherited descriptor listens; sets it non-blocking and close-on-exec.
Status AdoptListenSocket(int fd);
// 0 when `fd` is not a bound socket.
uint16_t PortOf(int fd);

}  // namespace aisp
