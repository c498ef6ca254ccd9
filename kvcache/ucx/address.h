// Numeric socket addresses for UCX.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>
#include <ucs/type/status.h>

#include <string>

#include "common/result.h"

namespace aisp::ucx {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
  // Points into this.
  ucs_sock_addr_t ucs() const { return {reinterpret_cast<const sockaddr*>(&storage), bytes}; }
};

// INVALID_ARGUMENT: neither an IPv4 nor an IPv6 address.
Result<SocketAddress> ParseAddress(const std::string& address, uint16_t port);
uint16_t PortOf(const sockaddr_storage& address);

}  // namespace aisp::ucx
