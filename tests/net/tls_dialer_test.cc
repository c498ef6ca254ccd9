// https on the client's side: which servers it trusts, and that streams arrive.
#include "net/tls_dialer.h"

#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "net/http_client.h"
#include "net/sse_client.h"
#include "tests/net/loop_thread.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_files.h"

#include <gmock/gmock.h>

namespace aisp {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::seconds kWait{20};

// A server that handles one connection at a time, answers each request with the same bytes, and
// sends nothing if the handshake fails.
class OneAnswerServer {
 public:
  OneAnswerServer(const Certificate& own, std::string answer, const std::string& client_ca = "")
      : cert_("cert.pem", own.cert_pem),
        key_("key.pem", own.key_pem),
        answer_(std::move(answer)),
        context_(SSL_CTX_new(TLS_server_method())),
        listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    SSL_CTX_use_certificate_file(context_, cert_.path().c_str(), SSL_FILETYPE_PEM);
    SSL_CTX_use_PrivateKey_file(context_, key_.path().c_str(), SSL_FILETYPE_PEM);
    if (!client_ca.empty()) {
      SSL_CTX_load_verify_locations(context_, client_ca.c_str(), nullptr);
      SSL_CTX_set_verify(context_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    socklen_t size = sizeof(address);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~OneAnswerServer() {
    shutdown(listener_, SHUT_RDWR);  // ends accept
    thread_.join();
    close(listener_);
    SSL_CTX_free(context_);
  }
  OneAnswerServer(const OneAnswerServer&) = delete;
  OneAnswerServer& operator=(const OneAnswerServer&) = delete;
  uint16_t port() const { return port_; }

 private:
  void Serve() {
    for (;;) {
      const int fd = accept(listener_, nullptr, nullptr);
      if (fd < 0) return;
      SSL* ssl = SSL_new(context_);
      SSL_set_fd(ssl, fd);
      if (SSL_accept(ssl) == 1) Answer(ssl);
      SSL_free(ssl);
      close(fd);
      ERR_clear_error();
    }
  }
  // Bodies of the requests here are "{}" or nothing, so a request ends with its head or with "}".
  void Answer(SSL* ssl) {
    std::string request;
    char bytes[4096];
    for (int n = 0; (n = SSL_read(ssl, bytes, sizeof(bytes))) > 0;) {
      request.append(bytes, static_cast<size_t>(n));
      const bool post = request.starts_with("POST");
      if (!request.ends_with(post ? "{}" : "\r\n\r\n")) continue;
      SSL_write(ssl, answer_.data(), static_cast<int>(answer_.size()));
      request.clear();
    }
    SSL_shutdown(ssl);
  }

  const TempFile cert_, key_;
  const std::string answer_;
  SSL_CTX* const context_;
  const int listener_;
  uint16_t port_ = 0;
  std::thread thread_;
};

TlsDialerOptions Trusting(const std::string& ca_file) {
  TlsDialerOptions out;
  out.ca_file = ca_file;
  return out;
}

TlsDialerOptions TrustingAll() {
  TlsDialerOptions out;
  out.insecure = true;
  return out;
}

constexpr const char* kHello = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
constexpr const char* kStream =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 22\r\n\r\n"
    "data: one\n\ndata: two\n\n";

class TlsDialerTest : public ::testing::Test {
 protected:
  std::shared_ptr<const TlsDialer> Dialer(const TlsDialerOptions& options) {
    auto made = TlsDialer::Create(options);
    EXPECT_TRUE(made) << made.error().message;
    return made ? *made : nullptr;
  }
  // The result of a GET, or why it failed.
  std::string Get(uint16_t port, const std::shared_ptr<const TlsDialer>& dialer,
                  const std::string& host = "127.0.0.1") {
    auto client = HttpClient::Connect(host, port, kWait, dialer);
    if (!client) return client.error().message;
    const auto answer = client->Request("GET", "/");
    return answer ? answer->body : answer.error().message;
  }

  const Certificate authority_ = MakeAuthority("a test's authority");
  const Certificate server_ = MakeCertificate(authority_, "localhost");
  const TempFile ca_{"ca.pem", authority_.cert_pem};
};

TEST_F(TlsDialerTest, TrustsTheAuthorityThatItWasGivenAndTheNamesItSigned) {
  const OneAnswerServer server(server_, kHello);
  const auto dialer = Dialer(Trusting(ca_.path()));
  EXPECT_EQ(Get(server.port(), dialer), "hello");
  EXPECT_EQ(Get(server.port(), dialer, "localhost"), "hello");
}

TEST_F(TlsDialerTest, RefusesWhatItDoesNotTrustAndSaysWhy) {
  const OneAnswerServer server(server_, kHello);
  const Certificate other = MakeAuthority("another");
  const TempFile other_ca("other.pem", other.cert_pem);
  EXPECT_THAT(Get(server.port(), Dialer(Trusting(other_ca.path()))),
              HasSubstr("certificate is refused"));
  EXPECT_THAT(Get(server.port(), Dialer({})), HasSubstr("certificate is refused"));
  EXPECT_EQ(Get(server.port(), Dialer(TrustingAll())), "hello");
}

TEST_F(TlsDialerTest, RefusesAnotherNameAndAnExpiredCertificate) {
  const Certificate elsewhere = MakeCertificate(authority_, "elsewhere.example");
  const OneAnswerServer named(elsewhere, kHello);
  const auto dialer = Dialer(Trusting(ca_.path()));
  EXPECT_THAT(Get(named.port(), dialer, "localhost"), HasSubstr("certificate is refused"));
  const OneAnswerServer old(MakeCertificate(authority_, "localhost", -1), kHello);
  EXPECT_THAT(Get(old.port(), dialer), HasSubstr("expired"));
}

TEST_F(TlsDialerTest, ShowsItsOwnCertificateToWhoAsks) {
  const OneAnswerServer server(server_, kHello, ca_.path());
  const Certificate own = MakeCertificate(authority_, "client");
  const TempFile cert("own.pem", own.cert_pem), key("own_key.pem", own.key_pem);
  EXPECT_EQ(Get(server.port(),
                Dialer({.ca_file = ca_.path(), .cert_file = cert.path(), .key_file = key.path()})),
            "hello");
  EXPECT_NE(Get(server.port(), Dialer(Trusting(ca_.path()))), "hello");
}

TEST_F(TlsDialerTest, BadFilesAreNamed) {
  const auto missing = TlsDialer::Create(Trusting("/nowhere/ca.pem"));
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message, HasSubstr("/nowhere/ca.pem"));
  const TempFile junk("junk.pem", "not a certificate");
  TlsDialerOptions junk_options = TrustingAll();
  junk_options.cert_file = junk_options.key_file = junk.path();
  const auto broken = TlsDialer::Create(junk_options);
  ASSERT_FALSE(broken);
  EXPECT_THAT(broken.error().message, HasSubstr(junk.path()));
}

TEST_F(TlsDialerTest, AServerWithoutTlsIsAnErrorAndNoHang) {
  // A listener that closes every accepted connection.
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  socklen_t size = sizeof(address);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  std::thread closing([&] { close(accept(listener, nullptr, nullptr)); });
  EXPECT_THAT(Get(ntohs(address.sin_port), Dialer(TrustingAll())), HasSubstr("TLS to"));
  closing.join();
  close(listener);
}

class Heard final : public SseListener {
 public:
  void OnResent() override {}
  void OnHead(int, const HttpHeaders&) override {}
  void OnEvent(const SseEvent& event) override { data += event.data + ";"; }
  void OnBody(std::string_view) override {}
  void OnEnd(const Status& end, bool) override {
    error = end ? "" : end.error().message;
    ended.set_value();
  }
  std::string data, error;
  std::promise<void> ended;
};

TEST_F(TlsDialerTest, StreamsComeOverKeptConnectionsAndFailuresHaveAReason) {
  const OneAnswerServer server(server_, kStream);
  LoopThread loop;
  for (const bool trusted : {true, false}) {
    const auto dialer = trusted ? Dialer(Trusting(ca_.path())) : Dialer({});
    std::unique_ptr<SseClient> client;
    loop.On([&] {
      client = std::move(*SseClient::Create(&loop.loop(), "localhost", server.port(), dialer));
    });
    for (int i = 0; i < 3; ++i) {
      Heard heard;
      std::unique_ptr<SseCall> call;
      loop.On([&] { call = client->Post({"/", {}, "{}"}, &heard); });
      ASSERT_EQ(heard.ended.get_future().wait_for(kWait), std::future_status::ready);
      if (trusted) {
        EXPECT_EQ(heard.data, "one;two;");
        EXPECT_EQ(heard.error, "");
      } else {
        EXPECT_THAT(heard.error, HasSubstr("certificate is refused"));
      }
      loop.On([&] { call.reset(); });
    }
    loop.On([&] {
      EXPECT_EQ(client->connections_opened(), trusted ? 1u : 3u);
      client.reset();
    });
  }
}

}  // namespace
}  // namespace aisp
