#include "net/host_port.h"

#include <gtest/gtest.h>

namespace aisp {
namespace {

TEST(HostPort, PutsIpv6NumbersInBrackets) {
  EXPECT_EQ(HostPort("127.0.0.1", 80), "127.0.0.1:80");
  EXPECT_EQ(HostPort("", 80), ":80");
  EXPECT_EQ(HostPort("::1", 80), "[::1]:80");
  EXPECT_EQ(HostPort("[::1]", 80), "[::1]:80");
  EXPECT_EQ(WithoutBrackets("[::1]"), "::1");
  EXPECT_EQ(WithoutBrackets("localhost"), "localhost");
  EXPECT_EQ(WithoutBrackets("["), "[");
}

}  // namespace
}  // namespace aisp
