// Request heads that two programs could parse differently are refused before they are parsed.
#include "net/http_head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace aisp {
namespace {

using ::testing::HasSubstr;

std::string Head(const std::string& fields) {
  return "POST / HTTP/1.1\r\nHost: x\r\n" + fields + "\r\n";
}

TEST(HttpHeadScanner, FindsTheEndOfAHeadHoweverItArrives) {
  const std::string head = Head("Content-Length: 3\r\nX-Empty:\r\nX-Tab: a\tb\r\n");
  const std::string bytes = "\r\n" + head + "abc";
  HttpHeadScanner whole;
  EXPECT_EQ(whole.Scan(bytes), head.size() + 2);
  HttpHeadScanner trickled;
  for (size_t n = 0; n < head.size() + 2; ++n) {
    ASSERT_EQ(trickled.Scan(std::string_view(bytes).substr(0, n)), 0u) << n;
    ASSERT_EQ(trickled.error(), "") << n;
  }
  EXPECT_EQ(trickled.Scan(bytes), head.size() + 2);
  EXPECT_EQ(trickled.error(), "");
}

TEST(HttpHeadScanner, TakesHostsOfEveryForm) {
  for (const char* const host : {"", "a", "a:", "a:0", "a:65535", "a-b.c_d:80", "1.2.3.4:8080",
                                 "[::1]", "[::1]:8080", "[::ffff:1.2.3.4]:", "[fe80::1%25eth0]"}) {
    HttpHeadScanner scanner;
    EXPECT_GT(scanner.Scan("GET / HTTP/1.1\r\nHost: " + std::string(host) + "\r\n\r\n"), 0u)
        << host << scanner.error();
  }
}

struct Ambiguous {
  std::string head;
  const char* said;
};

TEST(HttpHeadScanner, RefusesWhatCouldBeReadInTwoWays) {
  const std::vector<Ambiguous> cases = {
      {Head("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), "twice"},
      {Head("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n"), "twice"},
      {Head("Transfer-Encoding: chunked, identity\r\n"), "only Transfer-Encoding"},
      {Head("Transfer-Encoding: identity, chunked\r\n"), "only Transfer-Encoding"},
      {Head("Transfer-Encoding: xchunked\r\n"), "only Transfer-Encoding"},
      {Head("Transfer-Encoding: \"chunked\"\r\n"), "only Transfer-Encoding"},
      {Head("Transfer-Encoding: gzip\r\n"), "only Transfer-Encoding"},
      {Head("Transfer-Encoding:\r\n"), "only Transfer-Encoding"},
      {Head("Transfer-Encoding: chunked;q=1\r\n"), "only Transfer-Encoding"},
      {Head("Transfer-Encoding: chunked\x0b\r\n"), "control byte"},
      {Head("transfer-encoding : chunked\r\n"), "not NAME: VALUE"},
      {Head("Transfer_Encoding\t: chunked\r\n"), "not NAME: VALUE"},
      {Head("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"), "exclude"},
      {Head("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n"), "exclude"},
      {Head("Content-Length: 3\r\nContent-Length: 3\r\n"), "twice"},
      {Head("Content-Length: 3, 3\r\n"), "no number"},
      {Head("Content-Length: +3\r\n"), "no number"},
      {Head("Content-Length: 0x3\r\n"), "no number"},
      {Head("Content-Length:\r\n"), "no number"},
      {Head("Host: x\r\n"), "Host stands there twice"},
      {"POST / HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n", "Host stands there twice"},
      {"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "no name or address"},
      {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "no name or address"},
      {"GET / HTTP/1.1\r\nHost: user@a\r\n\r\n", "no name or address"},
      {"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", "no name or address"},
      {"GET / HTTP/1.1\r\nHost: []\r\n\r\n", "no name or address"},
      {"GET / HTTP/1.1\r\nHost: [::1]x\r\n\r\n", "no name or address"},
      {"GET / HTTP/1.1\r\nHost: a]\r\n\r\n", "no name or address"},
      {"GET / HTTP/1.1\r\nHost: ::1\r\n\r\n", "no name or address"},
      {"GET / HTTP/1.1\r\nHost: a:65536\r\n\r\n", "no name or address"},
      {"GET / HTTP/1.1\r\nHost: a:-1\r\n\r\n", "no name or address"},
      {"GET / HTTP/1.1\r\nHost: a:8x\r\n\r\n", "no name or address"},
      {"GET / HTTP/1.1\r\nHost: [\r\n\r\n", "no name or address"},
      {"GET / HTTP/1.1\r\nHost: a\xff\r\n\r\n", "no name or address"},
      {Head("Authorization: Bearer a\r\nAuthorization: Bearer b\r\n"), "Authorization stands"},
      {Head("X-Api-Key: a\r\nx-api-key: b\r\n"), "X-Api-Key stands"},
      {Head("X: a\r\n b\r\n"), "folded"},
      {Head("X: a\r\n\tb\r\n"), "folded"},
      {Head("X: a\rb\r\n"), "CR stands"},
      {Head("X: a\nTransfer-Encoding: chunked\r\n"), "LF alone"},
      {Head(std::string("X: a\0b\r\n", 8)), "control byte"},
      {Head("X: a\x7f\r\n"), "control byte"},
      {Head(": no name\r\n"), "not NAME: VALUE"},
      {Head("Content Length: 3\r\n"), "not NAME: VALUE"},
      {"POST  / HTTP/1.1\r\nHost: x\r\n\r\n", "request line"},
      {"POST\t/ HTTP/1.1\r\nHost: x\r\n\r\n", "request line"},
      {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.0"},
      {"\n\nPOST / HTTP/1.1\r\n\r\n", "LF alone"},
  };
  for (const Ambiguous& c : cases) {
    HttpHeadScanner scanner;
    EXPECT_EQ(scanner.Scan(c.head), 0u) << c.head;
    EXPECT_THAT(scanner.error(), HasSubstr(c.said)) << c.head;
  }
}

TEST(HttpHeadScanner, TakesTheHostsThatThereAre) {
  for (const std::string host :
       {"", "x", "a.example:8080", "[::1]:80", "[fe80::1%25eth0]", "a_b"}) {
    const std::string head = "GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n";
    HttpHeadScanner scanner;
    EXPECT_EQ(scanner.Scan(head), head.size()) << scanner.error();
  }
}

TEST(HttpHeadScanner, HoldsWhatIsBesideChunksToTheSameRules) {
  EXPECT_EQ(HttpHeadScanner::RefuseExtension(";a=\"b \tc\""), "");
  EXPECT_THAT(HttpHeadScanner::RefuseExtension(";a=\"\n\""), HasSubstr("control byte"));
  EXPECT_EQ(HttpHeadScanner::RefuseTrailers("\r\nGET"), "");
  EXPECT_EQ(HttpHeadScanner::RefuseTrailers("X: a\r\nY: b\r\n\r\nGET\n"), "");
  EXPECT_THAT(HttpHeadScanner::RefuseTrailers("X: a\r\n b\r\n\r\n"), HasSubstr("folded"));
  EXPECT_THAT(HttpHeadScanner::RefuseTrailers("X: a\nY: b\r\n\r\n"), HasSubstr("LF alone"));
  std::string many;
  for (size_t i = 0; i <= HttpHeadScanner::kMaxFields; ++i) many += "X: a\r\n";
  EXPECT_THAT(HttpHeadScanner::RefuseTrailers(many + "\r\n"), HasSubstr("fields"));
}

}  // namespace
}  // namespace aisp
