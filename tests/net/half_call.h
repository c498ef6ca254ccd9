// A client of a gRPC server that sends parts of calls, byte by byte if needed.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "tests/net/http2_frame.h"

namespace aisp {

// Speaks enough HTTP/2 to send the head of a call and a part of its message.
class HalfCall {
 public:
  // `authorization` and `timeout` may be empty. `from`: the last byte of its own address. `takes`
  // false: its flow-control window is zero, so it can receive no message bytes.
  HalfCall(uint16_t port, const std::string& authorization, const std::string& timeout = "",
           const std::string& path = "/aisp.v1.Inference/Generate", uint32_t from = 1,
           bool takes = true) {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in own{};
    own.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl((127U << 24) + from);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&own), sizeof(own)), 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    std::string bytes = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    // SETTINGS_INITIAL_WINDOW_SIZE: 0
    bytes += half::Frame(4, 0, 0, takes ? "" : std::string("\0\x04\0\0\0\0", 6));
    const auto add = [this](const std::string& name, const std::string& value) {
      head_ += std::string(1, '\0') + Literal(name) + Literal(value);
    };
    add(":method", "POST");
    add(":scheme", "http");
    add(":path", path);
    add(":authority", "t");
    add("te", "trailers");
    add("content-type", "application/grpc");
    if (!authorization.empty()) add("authorization", authorization);
    if (!timeout.empty()) add("grpc-timeout", timeout);
    bytes += half::Frame(1, 4, 1, head_);
    TrySend(bytes);
  }
  ~HalfCall() { close(fd_); }
  // A gRPC message of `announced` bytes of which `sent` follow.
  void Announce(uint32_t announced, size_t sent) {
    std::string data(5, '\0');
    for (int i = 0; i < 4; ++i) data[4 - i] = static_cast<char>(announced >> (8 * i));
    TrySend(half::Frame(0, 0, 1, data + std::string(sent, 'x')));
  }
  // Sends a window update: so many bytes more may be sent to it.
  void GiveRoom(uint32_t bytes) {
    std::string update;
    for (int i = 3; i >= 0; --i) update += static_cast<char>(bytes >> (8 * i));
    TrySend(half::Frame(8, 0, 0, update) + half::Frame(8, 0, 1, update));
  }
  // Everything received until the server ends the call or the connection; empty after `limit`.
  std::string AwaitEnd(std::chrono::milliseconds limit) {
    std::string got;
    const auto until = std::chrono::steady_clock::now() + limit;
    while (got.find("grpc-status") == std::string::npos) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          until - std::chrono::steady_clock::now());
      pollfd state{fd_, POLLIN, 0};
      if (left.count() <= 0 || poll(&state, 1, static_cast<int>(left.count())) <= 0) return "";
      char buffer[4096];
      const ssize_t n = recv(fd_, buffer, sizeof(buffer), 0);
      if (n <= 0) return got + "closed";
      got.append(buffer, static_cast<size_t>(n));
    }
    return got;
  }

  // Whether the server resets the call.
  bool AwaitReset(std::chrono::milliseconds limit) {
    constexpr size_t kHead = 9;
    constexpr char kReset = 3;
    std::string got;
    const auto until = std::chrono::steady_clock::now() + limit;
    while (true) {
      while (got.size() >= kHead) {
        const auto byte = [&got](size_t at) { return static_cast<unsigned char>(got[at]); };
        const size_t size = kHead + (byte(0) << 16 | byte(1) << 8 | byte(2));
        if (got[3] == kReset) return true;
        if (got.size() < size) break;
        got.erase(0, size);
      }
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          until - std::chrono::steady_clock::now());
      pollfd state{fd_, POLLIN, 0};
      if (left.count() <= 0 || poll(&state, 1, static_cast<int>(left.count())) <= 0) return false;
      char buffer[4096];
      const ssize_t n = recv(fd_, buffer, sizeof(buffer), 0);
      if (n <= 0) return false;
      got.append(buffer, static_cast<size_t>(n));
    }
  }

  // As below, with heads of about twenty bytes: repeated fields are sent by their index.
  int OpenAndResetShort(int calls) {
    // Sends all fields of head_ once more, this time with indexing.
    std::string remembered;
    size_t fields = 0;
    for (size_t at = 0; at < head_.size(); ++fields) {
      const size_t name = static_cast<unsigned char>(head_[at + 1]);
      const size_t value = static_cast<unsigned char>(head_[at + 2 + name]);
      remembered += '\x40' + head_.substr(at + 1, name + value + 2);
      at += name + value + 3;
    }
    if (!TrySend(half::Frame(1, 4, 3, remembered))) return 0;
    head_.clear();
    // The newest field has index 62.
    for (size_t i = fields; i > 0; --i) head_ += static_cast<char>(0x80 | (61 + i));
    return OpenAndReset(calls, 5);
  }
  // Opens calls with this one's head and resets each at once; returns how many of `calls` were
  // accepted.
  int OpenAndReset(int calls, uint32_t first_stream = 3) {
    const std::string reset("\0\0\0\x08", 4);
    for (int i = 0; i < calls; i += 50) {
      std::string bytes;
      for (int k = i; k < i + 50; ++k) {
        const uint32_t stream = 2 * static_cast<uint32_t>(k) + first_stream;
        bytes += half::Frame(1, 4, stream, head_) + half::Frame(3, 0, stream, reset);
      }
      if (!TrySend(bytes)) return i;
    }
    return calls;
  }
  // Sends another head of `frames` frames without an end; returns how many were accepted.
  int SendEndlessHead(int frames) {
    if (!TrySend(half::Frame(1, 0, 3, std::string(1, '\0') + Literal("x") + Literal("y"))))
      return 0;
    const std::string field =
        std::string(1, '\0') + Literal("x-more") + Literal(std::string(120, 'v'));
    std::string block;
    while (block.size() + field.size() <= 16'000) block += field;
    for (int i = 0; i < frames; ++i) {
      if (!TrySend(half::Frame(9, 0, 3, block))) return i;
    }
    return frames;
  }

 private:
  static std::string Literal(const std::string& text) {
    return std::string(1, static_cast<char>(text.size())) + text;
  }
  // False: the server has closed the connection, which may be the point of a test.
  bool TrySend(const std::string& bytes) const {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t n = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return false;
      sent += static_cast<size_t>(n);
    }
    return true;
  }
  int fd_ = -1;
  std::string head_;
};

}  // namespace aisp
