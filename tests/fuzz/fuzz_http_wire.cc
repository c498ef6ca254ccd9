// Bytes that arrive at the HTTP server's port. The scanner of heads gives the same result however
// the bytes are split. The server answers only valid HTTP, passes on no body beyond its limits, and
// frees the connection when its client has gone.
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>

#include "common/check.h"
#include "common/strings.h"
#include "net/http_client.h"
#include "net/http_head.h"
#include "net/http_reader.h"
#include "net/http_server.h"
#include "tests/fuzz/await_readable.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/net/loop_thread.h"

namespace aisp {
namespace {

// Above what the parser can hold of one field.
constexpr size_t kMaxHeader = 128 << 10, kMaxBody = 8192;

struct Server {
  LoopThread loop;
  std::unique_ptr<HttpServer> server;
  std::atomic<int> handled{0};
  uint16_t port = 0;

  Server() {
    HttpServerOptions options;
    options.max_header_bytes = kMaxHeader;
    options.max_body_bytes = kMaxBody;
    options.half_close_is_disconnect = false;
    loop.On([&] {
      server = std::make_unique<HttpServer>(
          &loop.loop(), options, [this](const std::shared_ptr<HttpExchange>& exchange) {
            const HttpRequest& request = exchange->request();
            AISP_CHECK(request.body.size() <= kMaxBody);
            AISP_CHECK(!request.method.empty() && request.method != "CONNECT");
            AISP_CHECK(request.path.starts_with('/') ||
                       (request.path == "*" && request.method == "OPTIONS"));
            for (const auto& [name, value] : request.headers) {
              AISP_CHECK(!name.empty());
              AISP_CHECK(value.find_first_of(std::string_view("\r\n\0", 3)) == std::string::npos);
            }
            ++handled;
            exchange->Respond(200, {}, "ok");
          });
      AISP_CHECK(server->Start());
      port = server->port();
    });
  }
};

void CheckScanner(std::string_view input) {
  HttpHeadScanner whole;
  const size_t size = whole.Scan(input);
  AISP_CHECK(size <= input.size());
  HttpHeadScanner trickled;
  size_t found = 0;
  for (size_t n = 1; n <= input.size() && found == 0 && trickled.error().empty(); ++n)
    found = trickled.Scan(input.substr(0, n));
  AISP_CHECK(found == size);
  AISP_CHECK(trickled.error().empty() == whole.error().empty());
}

// All answers in a row are valid HTTP.
void CheckAnswers(const std::string& answers) {
  HttpReader reader;
  reader.Feed(answers);
  int count = 0;
  for (bool in_answer = false;;) {
    if (!in_answer) reader.Begin();
    in_answer = true;
    const auto item = reader.Next();
    AISP_CHECK_MSG(item.has_value(), answers);
    if (item->kind == HttpReader::Kind::kMore) {
      // No part of an incomplete answer: the server ends none in the middle.
      AISP_CHECK_MSG(reader.AtEof().has_value() || answers.empty() || count > 0, answers);
      return;
    }
    if (item->kind == HttpReader::Kind::kHead)
      AISP_CHECK(reader.status() == 200 || (reader.status() >= 400 && reader.status() < 600));
    if (item->kind == HttpReader::Kind::kEnd) {
      in_answer = false;
      ++count;
    }
  }
}

// The input as it is, or as the body of a request that a grammar makes of it.
std::string WireOf(std::string_view input) {
  if (input.empty() || (input[0] & 1) == 0) return std::string(input.substr(input.empty() ? 0 : 1));
  ByteSource bytes(input.substr(1));
  static constexpr const char* kFields[] = {"Content-Length: 3\r\n",
                                            "Transfer-Encoding: chunked\r\n",
                                            "Connection: close\r\n",
                                            "Expect: 100-continue\r\n",
                                            "X: y\r\n",
                                            "Trailer: X\r\n",
                                            "Content-Length: 9999999\r\n",
                                            " folded\r\n"};
  static constexpr const char* kPieces[] = {"0\r\n\r\n",
                                            "3\r\nabc\r\n",
                                            "3;a=b\r\nabc\r\n",
                                            "a\r\n0123456789\r\n",
                                            "abc",
                                            "\r\n",
                                            "ffffffffffffffff\r\n",
                                            "0\r\nX: y\r\n\r\n",
                                            "3\nabc\n",
                                            "1 \r\nx\r\n",
                                            "-1\r\n",
                                            "2000\r\n"};
  static const std::string kLongest(65'533, 'x');
  static const std::string kLong[] = {"X: " + kLongest + "\r\n", "X: " + kLongest + "y\r\n",
                                      kLongest + "y: z\r\n", "0\r\nX: " + kLongest + "y\r\n\r\n",
                                      "3;" + kLongest + "\r\nabc\r\n"};
  std::string out;
  while (!bytes.spent() && out.size() < 32768) {
    out += bytes.Below(16) == 15 ? "GET /x?y HTTP/1.0\r\nHost: a\r\n"
                                 : "POST / HTTP/1.1\r\nHost: a\r\n";
    for (size_t n = bytes.Below(4); n > 0; --n)
      out += bytes.Below(64) == 63 ? bytes.Pick(kLong) : bytes.Pick(kFields);
    out += "\r\n";
    for (size_t n = bytes.Below(8); n > 0; --n) {
      switch (bytes.Below(64)) {
        case 63:
          out += bytes.Pick(kLong);
          break;
        case 60:
        case 61:
        case 62:
          out += bytes.Text(40);
          break;
        default:
          out += bytes.Pick(kPieces);
      }
    }
  }
  return out;
}

}  // namespace

void FuzzOne(std::string_view input) {
  static Server& s = *new Server;
  const std::string wire = WireOf(input);
  CheckScanner(wire);
  auto client = HttpClient::Connect("127.0.0.1", s.port, std::chrono::seconds(20));
  AISP_CHECK(client);
  const int fd = client->fd();
  (void)send(fd, wire.data(), wire.size(), MSG_NOSIGNAL);
  shutdown(fd, SHUT_WR);
  std::string answers;
  for (char buffer[4096];;) {
    AISP_CHECK(AwaitReadable(fd, 20'000));
    const ssize_t n = recv(fd, buffer, sizeof(buffer), 0);
    if (n < 0) return;  // reset: the server had not read all of it
    if (n == 0) break;
    answers.append(buffer, static_cast<size_t>(n));
  }
  CheckAnswers(answers);
}

}  // namespace aisp
