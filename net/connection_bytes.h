// ConnectionBytes: what the connections of a gRPC server may send without getting anywhere. gRPC
// itself bounds the fields of a head frame by frame, not over the frames that continue it, so a
// head without an end would be kept for ever, before any key is looked at.
//
// In HTTP/2 nothing comes between the frames of one head. So whenever a head or a message is
// complete, no other head is half-read, and what counts is what a connection has sent since: no
// more than kSlack, what it was sent itself in that time (a client answers with window updates) and
// the messages that are awaited of it. The kernel counts the bytes. Beyond that it is shut down.
//
// A key names a connection that was accepted as gRPC's contexts name its peer, or the link for
// which one was dialled (net/dialled_bytes.h); of a link there may be several, one after another.
// Any thread; no gRPC here.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace aisp {

// "ipv4:192.0.2.7:5000" and "ipv6:%5B2001:db8::1%5D:5000" and the address that they stand for, as
// one spelling; "" for what is neither.
std::string PeerKey(const std::string& grpc_peer);
std::string PeerKey(const sockaddr_storage& peer);

class ConnectionBytes {
 public:
  static constexpr uint64_t kSlack = 1 << 20;

  explicit ConnectionBytes(size_t max_message_bytes) : max_message_bytes_(max_message_bytes) {}

  // What is told of `key` counts before it has a connection and between two, until it is removed.
  void Open(const std::string& key);
  // `fd` is watched, not owned, until one of the two below.
  void Add(const std::string& key, int fd);
  void Remove(const std::string& key, int fd);
  void Remove(const std::string& key);

  // A head is complete.
  void OnHead(const std::string& key);
  // A head or a message is, for those to whom these come in thousands: costs no call of the system,
  // and what came until the next look is forgiven.
  void OnProgress(const std::string& key);
  // A message is awaited, of a call whose head was; then it is here, or is awaited no more.
  void OnReading(const std::string& key);
  void OnRead(const std::string& key, bool whole);

  // What `fd` has received since it was opened, read or not; 0 where the kernel does not count.
  static uint64_t Received(int fd);

  // Shuts down the connections of `key`.
  void Cut(const std::string& key);
  // Whether it was; not where the bound of bytes ended it.
  bool WasCut(const std::string& key);
  // Shuts down the connections that are beyond their bound and returns how many they are.
  size_t Enforce();

 private:
  struct Counts {
    uint64_t received = 0;
    uint64_t taken = 0;  // of what was sent, by the peer
  };
  struct Socket {
    int fd = -1;
    Counts since;  // when a head or a message was complete last
    bool ended = false;
  };
  struct Connection {
    std::vector<Socket> sockets;
    uint64_t reading = 0;
    bool cut = false;
    bool open = false;  // stays without a socket
    bool progressed = false;
  };
  static void End(Socket* socket);
  // False where the kernel does not count.
  static bool Read(int fd, Counts* out);
  // A message in frames of 16 KiB, each with a head of its own, in TLS's records.
  uint64_t MessageBytes() const { return max_message_bytes_ + max_message_bytes_ / 16; }

  const size_t max_message_bytes_;
  std::mutex mutex_;
  std::unordered_map<std::string, Connection> connections_;
};

}  // namespace aisp
