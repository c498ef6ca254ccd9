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

void ExpectSplit(std::string_view address, std::string_view host,
                 std::optional<std::string_view> port) {
  SCOPED_TRACE(address);
  const SplitAddress split = SplitHostPort(address);
  EXPECT_EQ(split.host, host);
  EXPECT_EQ(split.port, port);
}

TEST(HostPort, IsSplitAtTheColonOfThePort) {
  ExpectSplit("localhost:80", "localhost", "80");
  ExpectSplit("localhost", "localhost", std::nullopt);
  ExpectSplit("localhost:", "localhost", "");
  ExpectSplit(":80", "", "80");
  ExpectSplit("[::1]:80", "[::1]", "80");
  ExpectSplit("[::1]", "[::1]", std::nullopt);
  ExpectSplit("::1", "::1", std::nullopt);
  ExpectSplit("", "", std::nullopt);
}

}  // namespace
}  // namespace aisp
