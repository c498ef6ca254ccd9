// TCP sockets for the tcp transport: numeric addresses only, so that nothing waits for DNS.
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

// A non-blocking listening socket. `address`: IPv4 or IPv6; port 0: any free one.
Result<UniqueFd> ListenTcp(const std::string& address, uint16_t port);
Result<uint16_t> LocalPort(int socket);
// The group an address counts to when connections are limited: the IPv4 host, or the IPv6 /64.
std::string PartyOf(const sockaddr_storage& peer);

// A connected, non-blocking socket; fails within `timeout`.
Result<UniqueFd> ConnectTcp(const std::string& address, uint16_t port, Duration timeout);

// 24 bits of a connection within one machine: of the kernel's boot id and the ports of both ends.
// Its ends see the same mark. Those of a proxy or tunnel between two processes see others. 0: the
// ends' addresses differ, or unknown.
uint32_t WithinMachineMark(int socket);

// Sets no-delay, keep-alive and a limit of `stall_timeout` for unacknowledged data, so that a
// vanished host ends the connection.
void TuneTcp(int socket, Duration stall_timeout);
// The socket becomes readable only once this many bytes have arrived.
void WakeAtBytes(int socket, size_t bytes);

// Transfers all bytes on a non-blocking socket, or fails at `deadline` (SteadyClock). For
// handshakes.
Status SendAll(int socket, std::span<const std::byte> bytes, Instant deadline);
Status ReceiveAll(int socket, std::span<std::byte> bytes, Instant deadline);

}  // namespace aisp
