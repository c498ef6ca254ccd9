// How many resources of the server a client may hold before and while its requests are read.
#include <atomic>
#include <vector>

#include "tests/net/http_fixture.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class HttpIntakeTest : public HttpServerTest {
 protected:
  // Like a server with API keys: "authorization: NAME" is the tenant NAME; without it no body is
  // read.
  void AskForKeys() {
    options_.intake = [](const HttpRequest& head) -> HttpIntake {
      return {.read_body = !head.Header("authorization").empty(),
              .party = std::string(head.Header("authorization"))};
    };
  }
  void AwaitConnections(size_t count) {
    while (Connections() != count) {
    }
  }
};

std::string Announce(size_t bytes, const std::string& fields = "") {
  return "POST / HTTP/1.1\r\nHost: x\r\n" + fields + "Content-Length: " + std::to_string(bytes) +
         "\r\n\r\n";
}

TEST_F(HttpIntakeTest, AnnouncedBodiesTakeNothingUntilTheyArrive) {
  options_.max_total_body_bytes = 64 << 10;
  options_.max_party_body_bytes = 48 << 10;
  StartServer();
  std::vector<HttpClient> idle;
  for (int i = 0; i < 64; ++i) {
    idle.push_back(Client());
    ASSERT_TRUE(idle.back().SendRaw(Announce(16 << 20)));
  }
  AwaitConnections(64);
  EXPECT_EQ(Client().Request("POST", "/", std::string(40 << 10, 'x'))->status, 200);
}

// Otherwise a few thousand of them that ask again at once would keep the loop busy.
TEST_F(HttpIntakeTest, WhoIsRefusedAgainAndAgainIsReadLessOften) {
  std::atomic<int> asked{0};
  StartServer([&](const Exchange& exchange) {
    ++asked;
    exchange->Respond(exchange->request().path == "/full" ? 429 : 200, {}, "");
  });
  HttpClient client = Client();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(client.Request("GET", "/full")->status, 429);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(10 + 20 + 40));
  // Pipelined requests wait in the kernel, and closed connections are freed meanwhile.
  std::string ahead;
  for (int i = 0; i < 1000; ++i) ahead += "GET /full HTTP/1.1\r\nHost: x\r\n\r\n";
  ASSERT_TRUE(client.SendRaw(ahead));
  client.Close();
  AwaitConnections(0);
  EXPECT_LT(asked.load(), 100);
  // Other clients are not affected, nor is this one later.
  HttpClient other = Client();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(other.Request("GET", "/full")->status, 429);
  EXPECT_EQ(other.Request("GET", "/")->status, 200);
  EXPECT_EQ(other.Request("GET", "/")->status, 200);
}

// With a request now and then they would stay open forever without exceeding their time.
TEST_F(HttpIntakeTest, ConnectionsThatATenantKeepsMakeRoomForOthers) {
  options_.max_connections = 5;
  AskForKeys();
  StartServer();
  std::vector<HttpClient> kept;
  for (int i = 0; i < 4; ++i) {
    kept.push_back(Client());
    EXPECT_EQ(kept.back().Request("GET", "/", "", {{"authorization", "mallory"}})->status, 200);
  }
  // A connection in the middle of a request may be closed too: it gets an error.
  kept.push_back(Client());
  ASSERT_TRUE(kept.back().SendRaw(Announce(1, "authorization: mallory\r\n")));
  AwaitConnections(5);
  std::vector<HttpClient> others;
  for (int i = 0; i < 2; ++i) {
    others.push_back(Client());
    const auto answer = others.back().Request("GET", "/", "", {{"authorization", "alice"}});
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 200) << answer->body;
    // The connection that had been idle for longest.
    EXPECT_EQ(kept[static_cast<size_t>(i)].ReceiveRaw().value_or("lost"), "");
  }
  EXPECT_EQ(kept[3].Request("GET", "/", "", {{"authorization", "mallory"}})->status, 200);
  // The tenant is not known before a request: the client's own oldest connection is closed.
  EXPECT_EQ(Client().Request("GET", "/", "", {{"authorization", "mallory"}})->status, 200);
}

TEST_F(HttpIntakeTest, OneClientsHalfSentBodiesLeaveRoomForOthers) {
  options_.max_total_body_bytes = 64 << 10;
  options_.max_party_body_bytes = 32 << 10;
  AskForKeys();
  StartServer();
  std::vector<HttpClient> half;
  for (int i = 0; i < 2; ++i) {
    half.push_back(Client());
    ASSERT_TRUE(half.back().SendRaw(Announce(32 << 10, "authorization: mallory\r\n") +
                                    std::string(16 << 10, 'x')));
  }
  // One of the three is told so; which one depends on the order of arrival.
  HttpClient third = Client();
  ASSERT_TRUE(
      third.SendRaw(Announce(32 << 10, "authorization: mallory\r\n") + std::string(20 << 10, 'x')));
  half.push_back(std::move(third));
  const auto refused = half.back().ReceiveRaw();
  ASSERT_TRUE(refused);
  EXPECT_THAT(*refused, StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(*refused, HasSubstr("more request bodies at once than one client may (32768 bytes)"));
  const auto served =
      Client().Request("POST", "/", std::string(24 << 10, 'x'), {{"authorization", "alice"}});
  EXPECT_EQ(served->status, 200);
}

TEST_F(HttpIntakeTest, TheBodyOfAStrangerIsNotRead) {
  AskForKeys();
  std::atomic<size_t> read{0};
  StartServer([&](const Exchange& exchange) {
    read += exchange->request().body.size();
    exchange->Respond(exchange->request().Header("authorization").empty() ? 401 : 200, {}, "");
  });
  HttpClient stranger = Client();
  ASSERT_TRUE(stranger.SendRaw(Announce(16 << 20)));
  const auto answer = stranger.ReceiveRaw();
  ASSERT_TRUE(answer);
  EXPECT_THAT(*answer, StartsWith("HTTP/1.1 401 ")) << "at once, without a byte of the body";
  EXPECT_THAT(*answer, HasSubstr("Connection: close"));
  EXPECT_EQ(read, 0u);
  HttpClient asking = Client();
  ASSERT_TRUE(asking.SendRaw(Announce(3, "Expect: 100-continue\r\n")));
  EXPECT_THAT(asking.ReceiveRaw().value_or(""), StartsWith("HTTP/1.1 401 ")) << "no 100 Continue";
  HttpClient known = Client();
  EXPECT_EQ(known.Request("POST", "/", "abc", {{"authorization", "alice"}})->status, 200);
  EXPECT_EQ(read, 3u);
  // Without a body there is nothing left to read, and the connection stays open.
  HttpClient get = Client();
  EXPECT_EQ(get.Request("GET", "/")->status, 401);
  EXPECT_EQ(get.Request("GET", "/", "", {{"authorization", "alice"}})->status, 200);
}

TEST_F(HttpIntakeTest, ConnectionsWithoutARequestAreBoundedByAddressAndThoseOfTenantsAreNot) {
  options_.max_waiting_per_address = 3;
  AskForKeys();
  StartServer();
  std::vector<HttpClient> idle;
  for (int i = 0; i < 3; ++i) idle.push_back(Client());
  AwaitConnections(3);
  const auto refused = Client().Request("GET", "/");
  ASSERT_TRUE(refused) << refused.error().ToString();
  EXPECT_EQ(refused->status, 503);
  EXPECT_THAT(refused->body, HasSubstr("your address has 3 connections"));
  // A connection that has sent a tenant's request may stay.
  for (HttpClient& client : idle) {
    EXPECT_EQ(client.Request("GET", "/", "", {{"authorization", "alice"}})->status, 200);
  }
  EXPECT_EQ(Client().Request("GET", "/", "", {{"authorization", "bob"}})->status, 200);
}

TEST_F(HttpIntakeTest, ConnectionsThatRunARequestDoNotCountAsWaiting) {
  options_.max_waiting_per_address = 2;
  std::vector<Exchange> held;
  std::atomic<size_t> count{0};
  StartServer([&](Exchange exchange) {
    held.push_back(std::move(exchange));
    ++count;
  });
  std::vector<HttpClient> running;
  for (size_t i = 0; i < 8; ++i) {
    running.push_back(Client());
    ASSERT_TRUE(running.back().SendRaw(Announce(0)));
    while (count != i + 1) {
    }
  }
  loop_.On([&] {
    for (const Exchange& exchange : held) exchange->Respond(200, {}, "");
    held.clear();
  });
}

// Request smuggling attempts, each on one connection: the rest must never be read as a separate
// request.
TEST_F(HttpIntakeTest, NothingIsSmuggledBehindARequest) {
  std::atomic<int> smuggled{0};
  StartServer([&](const Exchange& exchange) {
    if (exchange->request().path == "/smuggled") ++smuggled;
    Echo(exchange);
  });
  // The text after the request line and Host.
  for (const std::string& attack : std::vector<std::string>{
           "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
           "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
           "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
           "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
           "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
           "Transfer-Encoding:\013chunked\r\n\r\n0\r\n\r\n",
           "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
           "X: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
           "X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
           "Content-Length: 0\r\nContent-Length: 44\r\n\r\n",
           "Content-Length: 0, 44\r\n\r\n",
           std::string("Content-Length: 0\0\r\n\r\n", 23),
           "Host: y\r\n\r\n",
           "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
       }) {
    std::string request = "POST / HTTP/1.1\r\nHost: x\r\n";
    request.append(attack).append("GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n");
    const std::string answer = Raw(request);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 ")) << attack;
    EXPECT_THAT(answer, HasSubstr("Connection: close")) << attack;
  }
  EXPECT_THAT(Raw("POST /#/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_EQ(smuggled, 0);
}

// A target means what a proxy before the server would read in it (RFC 9112, 3.2).
TEST_F(HttpIntakeTest, TargetsOfEveryForm) {
  StartServer([](const Exchange& exchange) {
    const HttpRequest& request = exchange->request();
    const std::string host(request.Header("host"));
    exchange->Respond(200, {}, "<" + request.path + "|" + request.query + ">" + host);
  });
  struct Row {
    const char *line, *status, *holds;
  };
  for (const auto& [line, status, holds] : std::vector<Row>{
           {"OPTIONS *", "200", "<*|>said"},
           {"OPTIONS http://h", "200", "<*|>h"},
           {"OPTIONS http://h?x", "200", "</|x>h"},
           {"OPTIONS http://h/", "200", "</|>"},
           {"GET http://h", "200", "</|>"},
           {"GET http://h?/other", "200", "</|/other>"},
           {"GET HTTP://h:1/a?b?c", "200", "</a|b?c>h:1"},
           {"GET https://[::1]:8080//a", "200", "<//a|>[::1]:8080"},
           {"POST *", "400", "'*'"},
           {"GET *", "400", "'*'"},
           {"OPTIONS *?x", "400", "'*'"},
           {"OPTIONS **", "400", "'*'"},
           {"GET http:///a", "400", "host"},
           {"GET http://:80/a", "400", "host"},
           {"GET http://u@h/a", "400", "host"},
           {"GET http://h\\a", "400", "host"},
           {"GET ftp://h/a", "400", "target"},
           {"GET h:1", "400", "target"},
           {"CONNECT h:1", "501", "proxies"},
           {"CONNECT /a", "501", "proxies"},
       }) {
    const std::string answer =
        Raw(std::string(line) + " HTTP/1.1\r\nHost: said\r\nConnection: close\r\n\r\n");
    EXPECT_THAT(answer, StartsWith(std::string("HTTP/1.1 ") + status)) << line;
    EXPECT_THAT(answer, HasSubstr(holds)) << line;
  }
}

TEST_F(HttpIntakeTest, NothingIsSmuggledBehindChunks) {
  std::atomic<int> smuggled{0};
  StartServer([&](const Exchange& exchange) {
    if (exchange->request().path == "/smuggled") ++smuggled;
    Echo(exchange);
  });
  // The text after the request line and Host.
  for (const std::string& attack : std::vector<std::string>{
           "Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n",
           "Transfer-Encoding: chunked\r\n\r\n-0\r\n\r\n",
           "Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n\r\n",
           "Transfer-Encoding: chunked\r\n\r\n1\r\nZZ\r\n0\r\n\r\n",
           "Transfer-Encoding: chunked\r\n\r\n\r\n0\r\n\r\n",
           "Transfer-Encoding: chunked\r\n\r\n0\n\r\n",
           "Transfer-Encoding: chunked\r\n\r\n1\nZ\r\n0\r\n\r\n",
           "Transfer-Encoding: chunked\r\n\r\n1;a=\"\n\"\r\nZ\r\n0\r\n\r\n",
           "Transfer-Encoding: chunked\r\n\r\n1;a=\"\x01\"\r\nZ\r\n0\r\n\r\n",
           "Transfer-Encoding: chunked\r\n\r\n1;a\n\r\nZ\r\n0\r\n\r\n",
           "Transfer-Encoding: chunked\r\n\r\n1\r\nZ\r\n0;a=\"\n\n\"\r\n\r\n",
           "Transfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n Z: a\r\n\r\n",
           "Transfer-Encoding: chunked\r\n\r\n0\r\nX: y\nZ: a\r\n\r\n",
           "Transfer-Encoding: chunked\r\n\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
       }) {
    std::string request = "POST / HTTP/1.1\r\nHost: x\r\n";
    request.append(attack).append("GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n");
    const std::string answer = Raw(request);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 ")) << attack;
    EXPECT_THAT(answer, HasSubstr("Connection: close")) << attack;
  }
  EXPECT_EQ(smuggled, 0);
}

TEST_F(HttpIntakeTest, FieldsOfATrailerAreNoHeaders) {
  StartServer([](const Exchange& exchange) {
    exchange->Respond(200, {}, std::string(exchange->request().Header("authorization")) + "|");
  });
  HttpClient client = Client();
  ASSERT_TRUE(client.SendRaw(
      "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n0\r\nAuthorization: Bearer root\r\n\r\n"));
  EXPECT_THAT(client.ReceiveRaw().value_or(""), ::testing::EndsWith("\r\n\r\n|"));
}

}  // namespace
}  // namespace aisp
