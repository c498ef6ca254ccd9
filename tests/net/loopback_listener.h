// A socket that listens on a free loopback port; accept() on it blocks.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "net/unique_descriptor.h"

namespace aisp {

class LoopbackListener {
 public:
  LoopbackListener() {
    at_.sin_family = AF_INET;
    at_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at_);
    auto* address = reinterpret_cast<sockaddr*>(&at_);
    EXPECT_EQ(bind(socket_.get(), address, size), 0);
    EXPECT_EQ(listen(socket_.get(), 4), 0);
    EXPECT_EQ(getsockname(socket_.get(), address, &size), 0);
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(ntohs(at_.sin_port)); }
  UniqueDescriptor Accept() const {
    return UniqueDescriptor(accept(socket_.get(), nullptr, nullptr));
  }
  UniqueDescriptor Connect() const {
    UniqueDescriptor client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&at_), sizeof(at_)), 0);
    return client;
  }

 private:
  const UniqueDescriptor socket_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in at_{};
};

}  // namespace aisp
