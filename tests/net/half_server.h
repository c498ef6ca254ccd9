// A gRPC server that answers with parts of HTTP/2, byte by byte if needed.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "net/unique_descriptor.h"
#include "tests/net/http2_frame.h"
#include "tests/net/loopback_listener.h"

namespace aisp {

// Speaks enough HTTP/2 to answer the first call of one connection.
class HalfServer {
 public:
  std::string address() const { return listener_.address(); }

  // Accepts a connection and reads until the call's head is complete.
  void AwaitCall() {
    connection_ = listener_.Accept();
    ASSERT_TRUE(Send(half::Frame(4, 0, 0, "")));
    ReadExactly(24);  // the preface
    for (char type = 4; type != 1;) {
      const std::string head = ReadExactly(9);
      ASSERT_EQ(head.size(), 9u);
      type = head[3];
      size_t length = 0;
      for (size_t i = 0; i < 3; ++i) length = length << 8 | static_cast<unsigned char>(head[i]);
      ReadExactly(length);
    }
  }
  bool SendHead() {
    const std::string fields =
        std::string(1, '\x88') + half::Field("content-type", "application/grpc");
    return Send(half::Frame(1, 4, 1, fields));
  }
  // Ends the connection in the middle of a head.
  void CloseInAHead() {
    EXPECT_TRUE(Send(half::Frame(1, 0, 1, std::string(1, '\x88') + half::Field("x", "y"))));
    connection_ = UniqueDescriptor();
  }
  // Sends `frames` frames of a head without an end; returns how many were accepted.
  int SendEndlessHead(int frames, bool begun) {
    std::string fields;
    while (fields.size() < 16'000) fields += half::Field("x-more", std::string(120, 'v'));
    // After a complete head the next one holds trailers.
    const std::string first =
        begun ? half::Field("x", "y")
              : std::string(1, '\x88') + half::Field("content-type", "application/grpc");
    if (!Send(half::Frame(1, 0, 1, first))) return 0;
    for (int i = 0; i < frames; ++i) {
      if (!Send(half::Frame(9, 0, 1, fields))) return i;
    }
    return frames;
  }

 private:
  bool Send(const std::string& bytes) const {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n =
          send(connection_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return false;
      sent += static_cast<size_t>(n);
    }
    return true;
  }
  std::string ReadExactly(size_t size) const {
    std::string out(size, '\0');
    const ssize_t n = recv(connection_.get(), out.data(), size, MSG_WAITALL);
    out.resize(n < 0 ? 0 : static_cast<size_t>(n));
    return out;
  }

  const LoopbackListener listener_;
  UniqueDescriptor connection_;
};

}  // namespace aisp
