#include "net/connection_bytes.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace aisp
