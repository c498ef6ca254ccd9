// The owner's side of a connection over tcp that a test answers by hand, byte by byte.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "kvcache/transport/kv_transport.h"
#include "kvcache/transport/tcp_wire.h"
#include "kvcache/transport/unique_fd.h"

namespace aisp {

// The bytes of a value of the wire, to send or to receive.
template <typename T>
std::span<std::byte> Room(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

// kPatience from now.
Instant Later();

struct FakeOwner {
  UniqueFd socket;  // greeted; does not block
  KvPeerId peer;    // as the writer knows it
};
// Connects `writer` to a new owner at `address`, which greets with `reply` of its socket.
FakeOwner ConnectToFakeOwner(KvTransport& writer, const std::string& address,
                             const std::function<TcpHelloReply(int socket)>& reply);

}  // namespace aisp
