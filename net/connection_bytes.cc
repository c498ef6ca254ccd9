#include "net/connection_bytes.h"

// <linux/tcp.h> rather than <netinet/tcp.h>, whose tcp_info lacks the byte counts.
#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/strings.h"

namespace aisp {
namespace {

std::string Key(const unsigned char* v6_bytes, uint16_t port) {
  std::string key(reinterpret_cast<const char*>(v6_bytes), 16);
  return key + ":" + std::to_string(port);
}

void MapV4(const void* v4, unsigned char* v6) {
  constexpr unsigned char kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  std::memcpy(v6, kPrefix, sizeof(kPrefix));
  std::memcpy(v6 + sizeof(kPrefix), v4, 4);
}

}  // namespace

std::string PeerKey(const std::string& grpc_peer) {
  const size_t scheme = grpc_peer.find(':');
  const size_t colon = grpc_peer.rfind(':');
  if (scheme == std::string::npos || colon <= scheme) return "";
  const auto port = ParseIntInRange(std::string_view(grpc_peer).substr(colon + 1), 0, 65535);
  if (!port) return "";
  std::string host = grpc_peer.substr(scheme + 1, colon - scheme - 1);
  for (const char* bracket : {"%5B", "%5D", "[", "]"}) {
    if (const size_t at = host.find(bracket); at != std::string::npos)
      host.erase(at, std::strlen(bracket));
  }
  host = host.substr(0, host.find('%'));  // without the zone
  unsigned char v6[16] = {};
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    MapV4(&v4, v6);
  } else if (inet_pton(AF_INET6, host.c_str(), v6) != 1) {
    return "";
  }
  return Key(v6, static_cast<uint16_t>(*port));
}

std::string PeerKey(const sockaddr_storage& peer) {
  unsigned char v6[16] = {};
  if (peer.ss_family == AF_INET6) {
    const auto& address = reinterpret_cast<const sockaddr_in6&>(peer);
    std::memcpy(v6, &address.sin6_addr, sizeof(v6));
    return Key(v6, ntohs(address.sin6_port));
  }
  if (peer.ss_family != AF_INET) return "";
  const auto& address = reinterpret_cast<const sockaddr_in&>(peer);
  MapV4(&address.sin_addr, v6);
  return Key(v6, ntohs(address.sin_port));
}

bool ConnectionBytes::Read(int fd, Counts* out) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
      size < offsetof(tcp_info, tcpi_bytes_received) + sizeof(info.tcpi_bytes_received))
    return false;
  *out = {.received = info.tcpi_bytes_received, .taken = info.tcpi_bytes_acked};
  return true;
}

uint64_t ConnectionBytes::Received(int fd) {
  Counts counts;
  return Read(fd, &counts) ? counts.received : 0;
}

void ConnectionBytes::Open(const std::string& key) {
  const std::lock_guard lock(mutex_);
  if (!key.empty()) connections_[key].open = true;
}

void ConnectionBytes::Add(const std::string& key, int fd) {
  const std::lock_guard lock(mutex_);
  if (!key.empty()) connections_[key].sockets.push_back({.fd = fd, .since = {}, .ended = false});
}

void ConnectionBytes::Remove(const std::string& key, int fd) {
  const std::lock_guard lock(mutex_);
  const auto it = connections_.find(key);
  if (it == connections_.end()) return;
  std::erase_if(it->second.sockets, [fd](const Socket& socket) { return socket.fd == fd; });
  if (it->second.sockets.empty() && !it->second.open) connections_.erase(it);
}

void ConnectionBytes::Remove(const std::string& key) {
  const std::lock_guard lock(mutex_);
  connections_.erase(key);
}

void ConnectionBytes::OnHead(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto it = connections_.find(key);
  if (it == connections_.end()) return;
  for (Socket& socket : it->second.sockets) Read(socket.fd, &socket.since);
}

void ConnectionBytes::OnProgress(const std::string& key) {
  const std::lock_guard lock(mutex_);
  if (const auto it = connections_.find(key); it != connections_.end()) {
    it->second.progressed = true;
  }
}

void ConnectionBytes::OnReading(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto it = connections_.find(key);
  if (it != connections_.end()) ++it->second.reading;
}

void ConnectionBytes::OnRead(const std::string& key, bool whole) {
  const std::lock_guard lock(mutex_);
  const auto it = connections_.find(key);
  if (it == connections_.end() || it->second.reading == 0) return;
  --it->second.reading;
  for (Socket& socket : it->second.sockets) {
    Counts now;
    if (!Read(socket.fd, &now)) continue;
    if (whole) {
      socket.since = now;
    } else {
      // The bytes may have been of the message or of a half-read head; count them as the message.
      socket.since.received += std::min(MessageBytes(), now.received - socket.since.received);
    }
  }
}

void ConnectionBytes::End(Socket* socket) {
  socket->ended = true;
  // Close with a reset; otherwise gRPC would go on answering what arrives for up to a minute.
  const linger reset{1, 0};
  setsockopt(socket->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  shutdown(socket->fd, SHUT_RDWR);
  // Discard what is unread in the kernel, which may be thousands of calls.
  while (recv(socket->fd, nullptr, size_t{1} << 30, MSG_DONTWAIT | MSG_TRUNC) > 0) continue;
}

void ConnectionBytes::Cut(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto it = connections_.find(key);
  if (it == connections_.end()) return;
  it->second.cut = true;
  for (Socket& socket : it->second.sockets) {
    if (!socket.ended) End(&socket);
  }
}

bool ConnectionBytes::WasCut(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto it = connections_.find(key);
  return it != connections_.end() && it->second.cut;
}

size_t ConnectionBytes::Enforce() {
  size_t over = 0;
  const std::lock_guard lock(mutex_);
  for (auto& [key, connection] : connections_) {
    const bool progressed = std::exchange(connection.progressed, false);
    for (Socket& socket : connection.sockets) {
      Counts now;
      if (socket.ended || !Read(socket.fd, &now)) continue;
      if (progressed) {
        socket.since = now;
        continue;
      }
      const uint64_t allowed =
          kSlack + (now.taken - socket.since.taken) + connection.reading * MessageBytes();
      if (now.received - socket.since.received <= allowed) continue;
      End(&socket);
      ++over;
    }
  }
  return over;
}

}  // namespace aisp
