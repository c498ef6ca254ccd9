#include "net/connection_bytes.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <string>

#include "net/unique_descriptor.h"
#include "tests/net/loopback_listener.h"

namespace aisp {
namespace {

TEST(ConnectionBytes, PeersHaveOneSpelling) {
  sockaddr_storage v4{};
  auto& in = reinterpret_cast<sockaddr_in&>(v4);
  in.sin_family = AF_INET;
  in.sin_port = htons(5000);
  inet_pton(AF_INET, "192.0.2.7", &in.sin_addr);
  EXPECT_EQ(PeerKey("ipv4:192.0.2.7:5000"), PeerKey(v4));
  EXPECT_NE(PeerKey("ipv4:192.0.2.7:5001"), PeerKey(v4));
  sockaddr_storage v6{};
  auto& in6 = reinterpret_cast<sockaddr_in6&>(v6);
  in6.sin6_family = AF_INET6;
  in6.sin6_port = htons(443);
  inet_pton(AF_INET6, "2001:db8::1", &in6.sin6_addr);
  EXPECT_EQ(PeerKey("ipv6:%5B2001:db8::1%5D:443"), PeerKey(v6));
  EXPECT_EQ(PeerKey("ipv6:[2001:db8::1%25eth0]:443"), PeerKey(v6));
  inet_pton(AF_INET6, "::ffff:192.0.2.7", &in6.sin6_addr);
  EXPECT_EQ(PeerKey("ipv4:192.0.2.7:443"), PeerKey(v6)) << "as gRPC names a mapped address";
  EXPECT_EQ(PeerKey("unix:/tmp/socket"), "");
}

// Otherwise gRPC would read on: thousands of calls may be buffered there.
TEST(ConnectionBytes, WhatACutConnectionHasSentIsDropped) {
  const LoopbackListener listener;
  const UniqueDescriptor client = listener.Connect();
  const UniqueDescriptor server = listener.Accept();
  const std::string sent(100'000, 'x');
  ASSERT_EQ(send(client.get(), sent.data(), sent.size(), 0), static_cast<ssize_t>(sent.size()));
  pollfd state{server.get(), POLLIN, 0};
  ASSERT_EQ(poll(&state, 1, 20'000), 1);
  ConnectionBytes bytes(1 << 20);
  bytes.Add("key", server.get());
  bytes.Cut("key");
  char left[16];
  EXPECT_LE(recv(server.get(), left, sizeof(left), MSG_DONTWAIT), 0);
}

}  // namespace
}  // namespace aisp
