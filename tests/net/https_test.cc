// The HTTP server with TLS: which clients are served and which are not; everything else is
// unchanged.
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>

#include "tests/net/http_fixture.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_files.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;

// A blocking client. It trusts `authority` and presents the certificate `own`, if any.
class TlsClient {
 public:
  TlsClient(uint16_t port, const Certificate& authority, const Certificate* own = nullptr)
      : context_(SSL_CTX_new(TLS_client_method())), fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    signal(SIGPIPE, SIG_IGN);
    BIO* bio = BIO_new_mem_buf(authority.cert_pem.data(), -1);
    X509* ca = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context_), ca);
    X509_free(ca);
    BIO_free(bio);
    SSL_CTX_set_verify(context_, SSL_VERIFY_PEER, nullptr);
    if (own != nullptr) Show(*own);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, fd_);
    SSL_set1_host(ssl_, "localhost");
    SSL_set_tlsext_host_name(ssl_, "localhost");
  }
  ~TlsClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
    close(fd_);
    ERR_clear_error();
  }
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  bool Handshake() { return SSL_connect(ssl_) == 1; }
  bool Send(const std::string& bytes) {
    return SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size())) ==
           static_cast<int>(bytes.size());
  }
  // Reads until the server ends the connection.
  std::string ReadAll() {
    std::string out;
    char buffer[65536];
    for (int n = 0; (n = SSL_read(ssl_, buffer, sizeof(buffer))) > 0;)
      out.append(buffer, static_cast<size_t>(n));
    return out;
  }
  int fd() const { return fd_; }
  // Sends only the first message of the handshake.
  void SendHello() {
    fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_NONBLOCK);
    EXPECT_NE(SSL_connect(ssl_), 1);
  }
  bool HasBytes() const {
    pollfd state{fd_, POLLIN, 0};
    return poll(&state, 1, 0) == 1;
  }

 private:
  void Show(const Certificate& own) {
    BIO* bio = BIO_new_mem_buf(own.cert_pem.data(), -1);
    X509* cert = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
    SSL_CTX_use_certificate(context_, cert);
    X509_free(cert);
    BIO_free(bio);
    bio = BIO_new_mem_buf(own.key_pem.data(), -1);
    EVP_PKEY* key = PEM_read_bio_PrivateKey(bio, nullptr, nullptr, nullptr);
    SSL_CTX_use_PrivateKey(context_, key);
    EVP_PKEY_free(key);
    BIO_free(bio);
  }

  SSL_CTX* const context_;
  const int fd_;
  SSL* ssl_ = nullptr;
};

const std::string kGet = "GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

class Https : public HttpServerTest {
 protected:
  void UseTls(const Certificate& certificate, const Certificate* client_ca = nullptr) {
    folder_.Write("cert.pem", certificate.cert_pem);
    folder_.Write("key.pem", certificate.key_pem);
    options_.tls.cert_file = folder_.path() + "/cert.pem";
    options_.tls.key_file = folder_.path() + "/key.pem";
    if (client_ca == nullptr) return;
    folder_.Write("ca.pem", client_ca->cert_pem);
    options_.tls.client_ca_file = folder_.path() + "/ca.pem";
  }
  std::string StartError() {
    std::string error;
    loop_.On([&] {
      HttpServer server(&loop_.loop(), options_, [](const Exchange& e) { Echo(e); });
      const Status started = server.Start();
      error = started ? "" : started.error().message;
    });
    return error;
  }

  const Certificate authority_ = MakeAuthority("test authority");
  const Certificate server_cert_ = MakeCertificate(authority_, "localhost");
  const TempFolder folder_;
};

// Handshakes make the loop compute; connected clients are answered in between.
TEST_F(Https, ACrowdThatShakesHandsKeepsNobodyWaiting) {
  constexpr size_t kCrowd = 60;
  std::vector<std::unique_ptr<TlsClient>> crowd;
  std::atomic<size_t> greeted{0};  // handshakes of the crowd done when the request was handled
  UseTls(server_cert_);
  StartServer([&](const Exchange& exchange) {
    for (const auto& each : crowd) greeted += each->HasBytes();
    Echo(exchange);
  });
  TlsClient client(port_, authority_);
  ASSERT_TRUE(client.Handshake());
  for (size_t i = 0; i < kCrowd; ++i)
    crowd.push_back(std::make_unique<TlsClient>(port_, authority_));
  for (size_t accepted = 0; accepted < kCrowd + 1;)
    loop_.On([&] { accepted = server_->connections(); });
  loop_.On([&] {
    for (const auto& each : crowd) each->SendHello();
    EXPECT_TRUE(client.Send(kGet));
  });
  EXPECT_THAT(client.ReadAll(), HasSubstr("200 OK"));
  EXPECT_LT(greeted, kCrowd / 4);
}

TEST_F(Https, ARequestIsAnsweredAndConnectionsAreKept) {
  UseTls(server_cert_);
  StartServer();
  TlsClient client(port_, authority_);
  ASSERT_TRUE(client.Handshake());
  EXPECT_TRUE(
      client.Send("POST /a?b=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello" + kGet));
  const std::string answers = client.ReadAll();
  EXPECT_THAT(answers, HasSubstr("POST /a?b=1|hello"));
  EXPECT_THAT(answers, HasSubstr("GET /x?|"));
}

TEST_F(Https, LargeBodiesAndStreamsPassWhole) {
  UseTls(server_cert_);
  options_.max_unsent_bytes = 8 << 20;
  const std::string piece(100'000, 'p');
  StartServer([&](const Exchange& exchange) {
    exchange->BeginStream(200, {});
    for (int i = 0; i < 9; ++i) exchange->Write(piece);
    exchange->Write(exchange->request().body);
    exchange->End();
  });
  const std::string body(3'000'000, 'b');
  TlsClient client(port_, authority_);
  ASSERT_TRUE(client.Handshake());
  EXPECT_TRUE(client.Send("POST / HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) +
                          "\r\n\r\n"));
  EXPECT_TRUE(client.Send(body));
  const std::string answer = client.ReadAll();
  EXPECT_EQ(answer.size() - answer.find("\r\n\r\n") - 4, 9 * piece.size() + body.size());
}

TEST_F(Https, PlainHttpAndRubbishAreNotAnswered) {
  UseTls(server_cert_);
  StartServer();
  EXPECT_EQ(Raw(kGet).find("HTTP/1.1 200"), std::string::npos);
  TlsClient silent(port_, authority_);
  TlsClient after(port_, authority_);
  ASSERT_TRUE(after.Handshake());
  EXPECT_TRUE(after.Send(kGet));
  EXPECT_THAT(after.ReadAll(), HasSubstr("GET /x"));
}

TEST_F(Https, AClientThatNeverFinishesTheHandshakeIsCutInTime) {
  options_.read_timeout = std::chrono::milliseconds(100);
  UseTls(server_cert_);
  StartServer();
  const TlsClient silent(port_, authority_);
  char byte = 0;
  EXPECT_EQ(recv(silent.fd(), &byte, 1, 0), 0);
}

TEST_F(Https, WithAClientAuthorityOnlyItsClientsAreServed) {
  const Certificate other = MakeAuthority("another authority");
  const Certificate good = MakeCertificate(authority_, "client");
  const Certificate foreign = MakeCertificate(other, "client");
  const Certificate expired = MakeCertificate(authority_, "client", -1);
  UseTls(server_cert_, &authority_);
  StartServer();
  const auto served = [&](const Certificate* own) {
    TlsClient client(port_, authority_, own);
    if (!client.Handshake()) return false;
    // With TLS 1.3 the server's refusal comes after the client's last handshake message.
    if (!client.Send(kGet)) return false;
    return client.ReadAll().find("GET /x") != std::string::npos;
  };
  EXPECT_TRUE(served(&good));
  EXPECT_FALSE(served(nullptr));
  EXPECT_FALSE(served(&foreign));
  EXPECT_FALSE(served(&expired));
}

TEST_F(Https, FilesThatDoNotFitAreRefusedByName) {
  UseTls(server_cert_);
  options_.tls.cert_file = folder_.path() + "/nowhere.pem";
  EXPECT_THAT(StartError(), HasSubstr("http.tls_cert_file: there is no file"));
  UseTls(server_cert_);
  folder_.Write("key.pem", MakeCertificate(authority_, "x").key_pem);
  EXPECT_THAT(StartError(), HasSubstr("http.tls_key_file"));
  folder_.Write("cert.pem", "no certificate");
  EXPECT_THAT(StartError(), HasSubstr("http.tls_cert_file"));
  UseTls(MakeCertificate(authority_, "localhost", -1));
  EXPECT_THAT(StartError(), HasSubstr("has expired"));
}

}  // namespace
}  // namespace aisp
