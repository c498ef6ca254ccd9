// ConnectionBytes: bounds the bytes that a gRPC connection may send without completing a head or a
// message. gRPC limits header fields per frame, not over a head's continuation frames, so a head
// without end would fill memory before any key is checked.
//
// In HTTP/2 the frames of one head are contiguous. So when a head or a message completes, no other
// head is half-read, and the bytes received since then are what counts. The bound is kSlack, plus
// the bytes sent to the peer in that time (it answers with window updates), plus the messages
// awaited from it. The kernel counts the bytes. A connection beyond the bound is shut down.
//
// A key names an accepted connection (by gRPC's name of the peer) or a dialled link
// (net/dialled_bytes.h), which may have several connections one after another. Any thread; does not
// use gRPC.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace aisp {

// One canonical spelling for "ipv4:192.0.2.7:5000", "ipv6:%5B2001:db8::1%5D:5000" and the socket
// address they name; "" for anything else.
std::string PeerKey(const std::string& grpc_peer);
std::string PeerKey(const sockaddr_storage& peer);

class ConnectionBytes {
 public:
  static constexpr uint64_t kSlack = 1 << 20;

  explicit ConnectionBytes(size_t max_message_bytes) : max_message_bytes_(max_message_bytes) {}

  // Makes `key` count even while it has no connection, until it is removed.
  void Open(const std::string& key);
  // Watches `fd`, which the caller owns, until Remove.
  void Add(const std::string& key, int fd);
  void Remove(const std::string& key, int fd);
  void Remove(const std::string& key);

  // A head is complete.
  void OnHead(const std::string& key);
  // A head or message is complete. For frequent callers: makes no system call, and also forgives
  // what arrives until the next Enforce.
  void OnProgress(const std::string& key);
  // A message is awaited on a call whose head is complete; OnRead: it arrived or was given up.
  void OnReading(const std::string& key);
  void OnRead(const std::string& key, bool whole);

  // Bytes that `fd` received since it was opened, read or not; 0 if the kernel does not count.
  static uint64_t Received(int fd);

  // Shuts down the connections of `key`.
  void Cut(const std::string& key);
  // Whether Cut was called for `key`; false if only Enforce shut it down.
  bool WasCut(const std::string& key);
  // Shuts down the connections beyond their bound and returns their number.
  size_t Enforce();

 private:
  struct Counts {
    uint64_t received = 0;
    uint64_t taken = 0;  // bytes that the peer acknowledged
  };
  struct Socket {
    int fd = -1;
    Counts since;  // counts when the last head or message completed
    bool ended = false;
  };
  struct Connection {
    std::vector<Socket> sockets;
    uint64_t reading = 0;
    bool cut = false;
    bool open = false;  // kept even without a socket
    bool progressed = false;
  };
  static void End(Socket* socket);
  // False if the kernel does not count.
  static bool Read(int fd, Counts* out);
  // A message plus overhead: a frame header per 16 KiB, and TLS records.
  uint64_t MessageBytes() const { return max_message_bytes_ + max_message_bytes_ / 16; }

  const size_t max_message_bytes_;
  std::mutex mutex_;
  std::unordered_map<std::string, Connection> connections_;
};

}  // namespace aisp
