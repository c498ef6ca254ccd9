// Requests, answers and errors of the HttpServer over real sockets.
#include <sys/socket.h>

#include <atomic>
#include <future>

#include "tests/net/http_fixture.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(HttpServerTest, KeepsAConnectionForManyRequests) {
  StartServer();
  HttpClient client = Client();
  for (int i = 0; i < 20; ++i) {
    const auto answer = client.Request("POST", "/echo?n=" + std::to_string(i), "body");
    ASSERT_TRUE(answer) << answer.error().ToString();
    EXPECT_EQ(answer->status, 200);
    EXPECT_EQ(answer->body, "POST /echo?n=" + std::to_string(i) + "|body");
  }
  EXPECT_EQ(Connections(), 1u);
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  StartServer();
  const std::string answers =
      Raw("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n"
          "POST /2 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
          "GET /3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const size_t first = answers.find("GET /1?|");
  const size_t second = answers.find("POST /2?|abc");
  const size_t third = answers.find("GET /3?|");
  ASSERT_NE(third, std::string::npos) << answers;
  EXPECT_LT(first, second);
  EXPECT_LT(second, third);
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsOneAfterTheOtherWhenTheHandlerTakesItsTime) {
  int running = 0;
  int most = 0;
  StartServer([&](const Exchange& exchange) {
    most = std::max(most, ++running);
    auto timer = std::make_shared<std::shared_ptr<IoLoop::Timer>>();
    *timer = loop_.loop().RunAt(SteadyClock().Now() + std::chrono::milliseconds(5),
                                [&, exchange, timer] {
                                  --running;
                                  Echo(exchange);
                                  loop_.loop().Post([timer] { timer->reset(); });
                                });
  });
  HttpClient client = Client();
  std::string requests;
  for (int i = 0; i < 5; ++i)
    requests += "GET /" + std::to_string(i) + " HTTP/1.1\r\nHost: x\r\n\r\n";
  requests += "GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  ASSERT_TRUE(client.SendRaw(requests));
  const auto answers = client.ReceiveRaw();
  ASSERT_TRUE(answers);
  EXPECT_THAT(*answers, HasSubstr("GET /last?|"));
  EXPECT_EQ(most, 1);
}

TEST_F(HttpServerTest, ManyRequestsOfOneConnectionKeepNobodyWaiting) {
  constexpr int kPiped = 400;
  struct Seen {
    std::atomic<int> piped{0};
    std::atomic<int> before_other{-1};
    std::promise<void> begun, other_sent;
  };
  // The handler's requests too: some are left when the test has its result.
  const auto seen = std::make_shared<Seen>();
  StartServer([seen](const Exchange& exchange) {
    if (exchange->request().path == "/other") {
      seen->before_other = seen->piped.load();
    } else if (exchange->request().path == "/piped" && ++seen->piped == 1) {
      // All but this request are still to be read when the other client's request arrives.
      seen->begun.set_value();
      seen->other_sent.get_future().wait();
    }
    exchange->Respond(200, {}, "");
  });
  HttpClient other = Client();
  HttpClient client = Client();
  std::string requests;
  for (int i = 0; i < kPiped; ++i) requests += "HEAD /piped HTTP/1.1\r\nHost: x\r\n\r\n";
  ASSERT_EQ(other.Request("GET", "/known")->status, 200);
  ASSERT_TRUE(client.SendRaw(requests));
  seen->begun.get_future().wait();
  const bool sent =
      other.SendRaw("GET /other HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").has_value();
  seen->other_sent.set_value();
  ASSERT_TRUE(sent);
  const auto answer = other.ReceiveRaw();
  ASSERT_TRUE(answer);
  EXPECT_THAT(*answer, HasSubstr("200"));
  EXPECT_LT(seen->before_other, kPiped / 2) << "it waited for all that another connection had sent";
}

TEST_F(HttpServerTest, ReadsChunkedBodies) {
  StartServer();
  EXPECT_THAT(
      Raw("POST /c HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
          "5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\nTrailer: t\r\n\r\n"),
      HasSubstr("POST /c?|hello world"));
}

TEST_F(HttpServerTest, AnswersHeadWithoutABody) {
  StartServer();
  HttpClient client = Client();
  const auto head = client.Request("HEAD", "/h");
  ASSERT_TRUE(head) << head.error().ToString();
  EXPECT_EQ(head->Header("content-length"), "9");
  EXPECT_EQ(head->body, "");
  const auto next = client.Request("GET", "/after");
  ASSERT_TRUE(next) << next.error().ToString();
  EXPECT_EQ(next->body, "GET /after?|");
}

TEST_F(HttpServerTest, AnswersHeadOfAStreamWithoutABody) {
  StartServer([](const Exchange& exchange) {
    exchange->BeginStream(200, {{"Content-Type", "text/event-stream"}});
    exchange->Write("data: x\n\n");
    exchange->End();
  });
  HttpClient client = Client();
  for (int i = 0; i < 2; ++i) {
    const auto head = client.Request("HEAD", "/h");
    ASSERT_TRUE(head) << head.error().ToString();
    EXPECT_EQ(head->status, 200);
  }
}

TEST_F(HttpServerTest, SaysContinueToAClientThatAsks) {
  StartServer();
  HttpClient client = Client();
  ASSERT_TRUE(
      client.SendRaw("POST /e HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n"
                     "Connection: close\r\n\r\n"));
  char interim[64] = {};
  const ssize_t n = recv(client.fd(), interim, 25, MSG_WAITALL | MSG_PEEK);
  while (n < 0 && recv(client.fd(), interim, 25, MSG_PEEK) < 25) {
  }
  EXPECT_THAT(interim, StartsWith("HTTP/1.1 100 Continue\r\n\r\n"));
  ASSERT_TRUE(client.SendRaw("ok"));
  EXPECT_THAT(client.ReceiveRaw().value_or(""), HasSubstr("POST /e?|ok"));
}

TEST_F(HttpServerTest, HeedsNoExpectationOfHttp10) {
  StartServer();
  HttpClient client = Client();
  ASSERT_TRUE(
      client.SendRaw("POST /e HTTP/1.0\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"));
  while (Connections() == 0) {
  }
  ASSERT_TRUE(client.SendRaw("ok"));
  EXPECT_THAT(client.ReceiveRaw().value_or(""), StartsWith("HTTP/1.1 200 "))
      << "100 is no answer that a client of HTTP/1.0 knows";
}

TEST_F(HttpServerTest, RefusesOtherExpectations) {
  StartServer();
  EXPECT_THAT(Raw("POST /e HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: wonders\r\n\r\n"),
              StartsWith("HTTP/1.1 417 "));
}

TEST_F(HttpServerTest, RefusesPackedBodiesByName) {
  StartServer();
  const auto answer = [&](const std::string& encoding) {
    return Raw("POST /e HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n" +
               encoding + "\r\nok");
  };
  for (const char* const packed : {"gzip", "br", "zstd", "gzip, identity", "x"}) {
    const std::string refused = answer("Content-Encoding: " + std::string(packed) + "\r\n");
    EXPECT_THAT(refused, StartsWith("HTTP/1.1 415 "));
    EXPECT_THAT(refused, HasSubstr(packed));
  }
  EXPECT_THAT(answer("Content-Encoding: Identity\r\n"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(answer("Content-Encoding:\r\n"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(HttpServerTest, SpeaksHttp10) {
  StartServer();
  const std::string answer = Raw("GET /old HTTP/1.0\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("GET /old?|"));
  EXPECT_THAT(answer, HasSubstr("Connection: close"));
}

TEST_F(HttpServerTest, StreamsToHttp10WithoutChunks) {
  StartServer([](const Exchange& exchange) {
    exchange->BeginStream(200, {});
    exchange->Write("data: 1\n\n");
    exchange->End();
  });
  const std::string answer = Raw("GET /old HTTP/1.0\r\n\r\n");
  EXPECT_THAT(answer, ::testing::EndsWith("\r\n\r\ndata: 1\n\n"));
  EXPECT_THAT(answer, Not(HasSubstr("chunked")));
}

TEST_F(HttpServerTest, TellsTheHandlerEverythingAboutARequest) {
  HttpRequest seen;
  StartServer([&](const Exchange& exchange) {
    seen = exchange->request();
    exchange->Respond(204, {}, "");
  });
  const Instant before = SteadyClock().Now();
  HttpClient client = Client();
  const auto answer = client.Request("PUT", "http://host/a%20b?q=1&r", "", {{"X-Trace", "t1"}});
  ASSERT_TRUE(answer) << answer.error().ToString();
  EXPECT_EQ(answer->status, 204);
  EXPECT_EQ(answer->Header("content-length"), "");
  EXPECT_EQ(seen.method, "PUT");
  EXPECT_EQ(seen.path, "/a%20b");
  EXPECT_EQ(seen.query, "q=1&r");
  EXPECT_EQ(seen.Header("x-trace"), "t1");
  EXPECT_EQ(seen.Header("absent"), "");
  EXPECT_THAT(seen.peer, StartsWith("127.0.0.1:"));
  EXPECT_GE(seen.received, before);
  EXPECT_LE(seen.received, SteadyClock().Now());
}

TEST_F(HttpServerTest, AnswersGarbageWith400AndCloses) {
  StartServer();
  const std::string chunked = "Transfer-Encoding: chunked\r\n";
  for (const std::string& garbage : std::vector<std::string>{
           std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 TLS hello", 21),
           "GET\r\n\r\n",
           "GET / HTTP/1.1\r\nHost: x\r\nNo colon here\r\n\r\n",
           "GET / HTTP/1.1\r\nHost : x\r\n\r\n",
           "GET / HTTP/1.1\r\n\r\n",
           "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
           "GET relative HTTP/1.1\r\nHost: x\r\n\r\n",
           "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
           "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
           "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n" + chunked + "\r\n0\r\n\r\n",
           "POST / HTTP/1.1\r\nHost: x\r\n" + chunked + "\r\nzz\r\n",
       }) {
    const std::string answer = Raw(garbage);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 ")) << garbage;
    EXPECT_THAT(answer, HasSubstr("Connection: close")) << garbage;
    EXPECT_THAT(answer, HasSubstr("{\"status\":400")) << garbage;
  }
  EXPECT_THAT(Raw("GET / HTTP/2.7\r\nHost: x\r\n\r\n"), StartsWith("HTTP/1.1 505 "));
  EXPECT_EQ(Client().Request("GET", "/still-alive")->status, 200);
}

TEST_F(HttpServerTest, RefusesABodyOverTheLimit) {
  options_.max_body_bytes = 1000;
  StartServer();
  HttpClient client = Client();
  EXPECT_EQ(client.Request("POST", "/", std::string(1000, 'x'))->status, 200);
  const auto declared = client.Request("POST", "/", std::string(1001, 'x'));
  ASSERT_TRUE(declared) << declared.error().ToString();
  EXPECT_EQ(declared->status, 413);
  EXPECT_THAT(declared->body, HasSubstr("larger than 1000 bytes"));
  EXPECT_THAT(declared->body, HasSubstr("\"path\":\"/\""));
  std::string chunks = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 20; ++i) chunks += "40\r\n" + std::string(64, 'y') + "\r\n";
  EXPECT_THAT(Raw(chunks), AllOf(StartsWith("HTTP/1.1 413 "), HasSubstr("\"path\":\"/\"")));
}

TEST_F(HttpServerTest, RefusesBodiesOverTheLimitOfAllTogether) {
  options_.max_body_bytes = 1000;
  options_.max_total_body_bytes = 1500;
  std::shared_ptr<HttpExchange> first;
  StartServer([&](Exchange exchange) {
    if (exchange->request().path == "/hold") {
      first = std::move(exchange);
    } else {
      Echo(exchange);
    }
  });
  HttpClient holder = Client();
  ASSERT_TRUE(holder.SendRaw("POST /hold HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n" +
                             std::string(900, 'x')));
  bool held = false;
  while (!held) loop_.On([&] { held = first != nullptr; });
  EXPECT_EQ(Client().Request("POST", "/", std::string(600, 'y'))->status, 200);
  const auto refused = Client().Request("POST", "/", std::string(601, 'y'));
  ASSERT_TRUE(refused) << refused.error().ToString();
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(refused->Header("Retry-After"), "1");
  loop_.On([&] {
    Echo(first);
    first.reset();
  });
  holder.Close();
  while (Connections() > 0) {
  }
  EXPECT_EQ(Client().Request("POST", "/", std::string(1000, 'y'))->status, 200);
}

TEST_F(HttpServerTest, DeliversThe413ToAClientThatIsStillSending) {
  options_.max_body_bytes = 1000;
  StartServer();
  HttpClient client = Client();
  const auto answer = client.Request("POST", "/", std::string(8 << 20, 'x'));
  ASSERT_TRUE(answer) << answer.error().ToString();
  EXPECT_EQ(answer->status, 413);
}

TEST_F(HttpServerTest, RefusesAHeadOverTheLimit) {
  options_.max_header_bytes = 2000;
  StartServer();
  HttpClient client = Client();
  EXPECT_EQ(client.Request("GET", "/", "", {{"X", std::string(1500, 'h')}})->status, 200);
  const auto answer = client.Request("GET", "/", "", {{"X", std::string(3000, 'h')}});
  ASSERT_TRUE(answer) << answer.error().ToString();
  EXPECT_EQ(answer->status, 431);
  EXPECT_THAT(Raw("GET /" + std::string(100000, 'u')), StartsWith("HTTP/1.1 431 "));
}

TEST_F(HttpServerTest, RefusesAHeadOfTooManyFields) {
  StartServer();
  const auto head = [](size_t fields) {
    std::string out = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
    for (size_t i = 2; i < fields; ++i) out += "a:\r\n";
    return out + "\r\n";
  };
  EXPECT_THAT(Raw(head(256)), StartsWith("HTTP/1.1 200 "));
  const std::string refused = Raw(head(257));
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(refused, HasSubstr("more than 256 fields"));
}

// The parser throws for fields of more than 16 bits of length.
TEST_F(HttpServerTest, RefusesAFieldThatTheParserCannotHold) {
  options_.max_header_bytes = 256 << 10;
  StartServer();
  const std::string begin = "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
  const std::string chunked = "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n";
  EXPECT_THAT(Raw(begin + "a: " + std::string(65'000, 'x') + "\r\n\r\n"),
              StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Raw(begin + chunked + "a: " + std::string(65'000, 'x') + "\r\n\r\n"),
              StartsWith("HTTP/1.1 200 "));
  for (const size_t bytes : {65'533, 65'534, 65'535, 65'536, 70'000, 200'000}) {
    const std::string text(bytes, 'x');
    for (const std::string& field : {"a: " + text + "\r\n\r\n", text + ": a\r\n\r\n"}) {
      std::string head = begin, trailer = begin + chunked;
      EXPECT_THAT(Raw(head.append(field)), StartsWith("HTTP/1.1 431 ")) << bytes;
      EXPECT_THAT(Raw(trailer.append(field)), StartsWith("HTTP/1.1 400 ")) << bytes;
    }
  }
}

TEST_F(HttpServerTest, CutsARequestThatDoesNotArriveInTime) {
  options_.read_timeout = std::chrono::milliseconds(100);
  StartServer();
  EXPECT_THAT(Raw("GET / HTTP/1.1\r\nHost: x\r\n"), StartsWith("HTTP/1.1 408 "));
  EXPECT_THAT(Raw("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"),
              StartsWith("HTTP/1.1 408 "));
}

TEST_F(HttpServerTest, CutsARequestThatTricklesIn) {
  options_.read_timeout = std::chrono::milliseconds(150);
  StartServer();
  HttpClient client = Client(std::chrono::milliseconds(20));
  ASSERT_TRUE(client.SendRaw("GET / HTTP/1.1\r\nHost: x\r\nX: "));
  std::string answer;
  // Each byte comes well within the timeout; the whole request does not.
  for (int i = 0; i < 1000 && answer.empty(); ++i) {
    ASSERT_TRUE(client.SendRaw("y"));
    answer = client.ReceiveRaw().value_or("");
  }
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 408 "));
}

TEST_F(HttpServerTest, ClosesIdleConnectionsSilently) {
  options_.idle_timeout = std::chrono::milliseconds(80);
  StartServer();
  HttpClient client = Client();
  EXPECT_EQ(client.Request("GET", "/")->status, 200);
  EXPECT_EQ(client.ReceiveRaw().value_or("lost"), "");
}

TEST_F(HttpServerTest, RefusesConnectionsOverTheLimitAndSaysSo) {
  options_.max_connections = 2;
  StartServer();
  HttpClient a = Client();
  HttpClient b = Client();
  EXPECT_EQ(a.Request("GET", "/")->status, 200);
  EXPECT_EQ(b.Request("GET", "/")->status, 200);
  HttpClient c = Client();
  const auto refused = c.Request("GET", "/");
  ASSERT_TRUE(refused) << refused.error().ToString();
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(refused->Header("Retry-After"), "1");
  a.Close();
  while (Connections() > 2) {
  }
  c.Close();
  while (Connections() > 1) {
  }
  EXPECT_EQ(Client().Request("GET", "/")->status, 200);
}

TEST_F(HttpServerTest, ServesManyConnectionsAtOnce) {
  std::vector<std::shared_ptr<HttpExchange>> waiting;
  StartServer([&](Exchange exchange) {
    waiting.push_back(std::move(exchange));
    if (waiting.size() < 300) return;
    for (const auto& each : waiting) Echo(each);
    waiting.clear();
  });
  std::vector<HttpClient> clients;
  for (int i = 0; i < 300; ++i) {
    clients.push_back(Client());
    ASSERT_TRUE(clients.back().SendRaw("GET /" + std::to_string(i) +
                                       " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
  }
  for (int i = 0; i < 300; ++i) {
    EXPECT_THAT(clients[i].ReceiveRaw().value_or(""),
                HasSubstr("GET /" + std::to_string(i) + "?|"));
  }
}

TEST_F(HttpServerTest, KeepsHeaderValuesOfTheHandlerOnOneLine) {
  StartServer([](const Exchange& exchange) {
    exchange->Respond(200, {{"X-Echo", "a\r\nEvil: 1"}}, "");
  });
  const auto answer = Client().Request("GET", "/");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->Header("X-Echo"), "a  Evil: 1");
  EXPECT_EQ(answer->Header("Evil"), "");
}

TEST_F(HttpServerTest, AnswersForAHandlerThatDropsTheExchange) {
  StartServer([](const Exchange&) {});
  EXPECT_EQ(Client().Request("GET", "/")->status, 500);
}

TEST_F(HttpServerTest, NamesTheTakenPortAndTheWayOut) {
  StartServer();
  loop_.On([&] {
    HttpServerOptions options;
    options.port = port_;
    HttpServer second(&loop_.loop(), options, [](const Exchange&) {});
    const Status started = second.Start();
    ASSERT_FALSE(started);
    EXPECT_EQ(started.error().code, Code::kAlreadyExists);
    EXPECT_THAT(started.error().message, HasSubstr("127.0.0.1:" + std::to_string(port_)));
    EXPECT_THAT(started.error().message, HasSubstr("--port"));
    options.address = "203.0.113.7";
    HttpServer elsewhere(&loop_.loop(), options, [](const Exchange&) {});
    EXPECT_FALSE(elsewhere.Start());
  });
}

TEST_F(HttpServerTest, SendsLargeAnswersWhole) {
  const std::string large(9 << 20, 'L');
  StartServer([&](const Exchange& exchange) { exchange->Respond(200, {}, large); });
  HttpClient client = Client();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.Request("GET", "/")->body, large);
}

}  // namespace
}  // namespace aisp
