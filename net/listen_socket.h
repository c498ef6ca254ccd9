// Listening TCP sockets as plain descriptors, for servers that are handed one (by a supervisor, by
// systemd) instead of binding an address themselves. A socket that several processes hold is one
// queue: a connection in it is taken by whichever of them accepts, and none is lost as long as one
// process holds it. See docs/decisions/007-socket-hand-over.md.
#pragma once

#include <cstdint>
#include <string>

#include "common/result.h"

namespace aisp {

// Binds and listens; port 0 picks a free one. The descriptor does not block and is closed on exec.
// ALREADY_EXISTS: the port is taken; the message says how to find by whom and which flag
// (`port_flag`, e.g. "--port N") chooses another.
Result<int> ListenOn(const std::string& host, uint16_t port, const std::string& port_flag);
// "host:port" split at the last colon, then as above.
Result<int> ListenOn(const std::string& address, const std::string& port_flag);
// Makes an inherited descriptor ours: checks that it listens, sets it non-blocking and
// close-on-exec.
Status AdoptListenSocket(int fd);
// 0 when `fd` is no bound socket.
uint16_t PortOf(int fd);

}  // namespace aisp
