// TCP sockets for the tcp transport: numeric addresses only, so that nothing waits for a name
// server.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/result.h"
#include "kvcache/transport/unique_fd.h"

namespace aisp {

// Listens, non-blocking. `address` is an IPv4 or IPv6 address; port 0: any free one.
Result<UniqueFd> ListenTcp(const std::string& address, uint16_t port);
Result<uint16_t> LocalPort(int socket);
// Who an address counts as where places are shared out: the host, of IPv6 its /64.
std::string PartyOf(const sockaddr_storage& peer);

// Connected and non-blocking; fails within `timeout`.
Result<UniqueFd> ConnectTcp(const std::string& address, uint16_t port, Duration timeout);

// No delay; keep-alive and, for data that is not acknowledged, a limit of `stall_timeout`: a peer
// whose host vanished ends the connection instead of holding it half open.
void TuneTcp(int socket, Duration stall_timeout);
// So many bytes must have come before the socket counts as readable.
void WakeAtBytes(int socket, size_t bytes);

// All bytes on a non-blocking socket, or an error by `deadline` (of SteadyClock). For handshakes.
Status SendAll(int socket, std::span<const std::byte> bytes, Instant deadline);
Status ReceiveAll(int socket, std::span<std::byte> bytes, Instant deadline);

}  // namespace aisp
