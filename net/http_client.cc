#include "net/http_client.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "common/strings.h"
#include "net/host_port.h"

namespace aisp {
namespace {

constexpr size_t kMaxHead = 256 << 10;

std::string SystemError(const std::string& what) { return what + ": " + std::strerror(errno); }

}  // namespace

std::string_view HttpAnswer::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (EqualsIgnoreCaseAscii(key, name)) return value;
  }
  return {};
}

struct HttpClient::Impl {
  enum class Body { kNone, kLength, kChunked, kUntilClose };

  ~Impl() {
    SSL_free(ssl);
    if (fd >= 0) close(fd);
  }
  Status Await(short events) const;
  Status SendAll(std::string_view bytes) const;
  Status SendAllTls(std::string_view bytes) const;
  // Waits until the OpenSSL call that returned `answer` can continue; an error: the call failed.
  Status AwaitTls(int answer) const;
  Status Handshake();
  // Appends received bytes to `input`; false at the end of the connection.
  Result<bool> Receive();
  Result<std::string> ReadLine();
  // The same for heads and trailers; those of one answer share kMaxHead.
  Result<std::string> ReadHeadLine();
  Result<HttpAnswer> ReadHead(bool head_request);
  Result<std::optional<std::string>> ReadChunk();
  std::string Take(size_t limit);

  int fd = -1;
  SSL* ssl = nullptr;                    // for https
  std::shared_ptr<const TlsDialer> tls;  // owner of ssl's context
  std::string authority;
  Duration timeout{};
  std::string input;  // received and not yet consumed
  Body body = Body::kNone;
  size_t left = 0;  // bytes left of the body or chunk
  size_t head_bytes = 0;
  SseReader sse;
};

Status HttpClient::Impl::Await(short events) const {
  pollfd waiting{fd, events, 0};
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
  int ready = 0;
  do {
    ready = poll(&waiting, 1, static_cast<int>(ms));
  } while (ready < 0 && errno == EINTR);
  if (ready > 0) return {};
  if (ready < 0) return Internal(SystemError("poll"));
  return Fail(Code::kDeadlineExceeded,
              authority + " did not answer within " + std::to_string(ms) + " ms");
}

Status HttpClient::Impl::AwaitTls(int answer) const {
  switch (SSL_get_error(ssl, answer)) {
    case SSL_ERROR_WANT_READ:
      return Await(POLLIN);
    case SSL_ERROR_WANT_WRITE:
      return Await(POLLOUT);
    default:
      return Unavailable("TLS to " + authority +
                         " failed: " + TlsFailure(ssl, "the connection was closed"));
  }
}

Status HttpClient::Impl::Handshake() {
  for (;;) {
    const int answer = SSL_connect(ssl);
    if (answer == 1) return {};
    AISP_RETURN_IF_ERROR(AwaitTls(answer));
  }
}

Status HttpClient::Impl::SendAllTls(std::string_view bytes) const {
  while (!bytes.empty()) {
    const int n = SSL_write(ssl, bytes.data(), static_cast<int>(bytes.size()));
    if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else {
      AISP_RETURN_IF_ERROR(AwaitTls(n));
    }
  }
  return {};
}

Status HttpClient::Impl::SendAll(std::string_view bytes) const {
  if (ssl != nullptr) return SendAllTls(bytes);
  while (!bytes.empty()) {
    const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN) {
      AISP_RETURN_IF_ERROR(Await(POLLOUT));
    } else if (errno != EINTR) {
      return Unavailable(SystemError("sending to " + authority));
    }
  }
  return {};
}

Result<bool> HttpClient::Impl::Receive() {
  char bytes[64 << 10];
  while (ssl != nullptr) {
    const int n = SSL_read(ssl, bytes, sizeof(bytes));
    if (n > 0) {
      input.append(bytes, static_cast<size_t>(n));
      return true;
    }
    if (SSL_get_error(ssl, n) == SSL_ERROR_ZERO_RETURN) return false;
    AISP_RETURN_IF_ERROR(AwaitTls(n));
  }
  for (;;) {
    AISP_RETURN_IF_ERROR(Await(POLLIN));
    const ssize_t n = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (n == 0) return false;
    if (n > 0) {
      input.append(bytes, static_cast<size_t>(n));
      return true;
    }
    if (errno != EAGAIN && errno != EINTR) {
      return Unavailable(SystemError("receiving from " + authority));
    }
  }
}

std::string HttpClient::Impl::Take(size_t limit) {
  std::string out = input.substr(0, limit);
  input.erase(0, out.size());
  return out;
}

Result<std::string> HttpClient::Impl::ReadLine() {
  size_t end = 0;
  while ((end = input.find("\r\n")) == std::string::npos) {
    if (input.size() > kMaxHead) return Unavailable("an endless line from " + authority);
    AISP_ASSIGN_OR_RETURN(const bool more, Receive());
    if (!more) return Unavailable(authority + " closed the connection");
  }
  std::string line = Take(end);
  input.erase(0, 2);
  return line;
}

Result<std::string> HttpClient::Impl::ReadHeadLine() {
  AISP_ASSIGN_OR_RETURN(std::string line, ReadLine());
  head_bytes += line.size() + 2;
  if (head_bytes > kMaxHead) {
    return Unavailable("more than " + std::to_string(kMaxHead) +
                       " bytes of heads and trailers from " + authority);
  }
  return line;
}

Result<HttpAnswer> HttpClient::Impl::ReadHead(bool head_request) {
  HttpAnswer answer;
  head_bytes = 0;
  do {  // skip interim answers (1xx)
    AISP_ASSIGN_OR_RETURN(const std::string status_line, ReadHeadLine());
    if (!status_line.starts_with("HTTP/1.") || status_line.size() < 12) {
      return Unavailable("no HTTP answer from " + authority + ": " + Excerpt(status_line));
    }
    AISP_ASSIGN_OR_RETURN(const int64_t status, ParseInt(status_line.substr(9, 3)));
    answer.status = static_cast<int>(status);
    answer.headers.clear();
    for (;;) {
      AISP_ASSIGN_OR_RETURN(const std::string line, ReadHeadLine());
      if (line.empty()) break;
      const size_t colon = line.find(':');
      if (colon == std::string::npos) return Unavailable("a broken head from " + authority);
      answer.headers.emplace_back(line.substr(0, colon),
                                  std::string(Trim(std::string_view(line).substr(colon + 1))));
    }
  } while (answer.status < 200);
  left = 0;
  sse = SseReader();
  if (head_request || answer.status == 204 || answer.status == 304) {
    body = Body::kNone;
  } else if (EqualsIgnoreCaseAscii(answer.Header("Transfer-Encoding"), "chunked")) {
    body = Body::kChunked;
  } else if (const auto length = answer.Header("Content-Length"); !length.empty()) {
    AISP_ASSIGN_OR_RETURN(const int64_t bytes, ParseInt(length));
    left = static_cast<size_t>(bytes);
    body = left > 0 ? Body::kLength : Body::kNone;
  } else {
    body = Body::kUntilClose;
  }
  return answer;
}

Result<std::optional<std::string>> HttpClient::Impl::ReadChunk() {
  if (left == 0) {
    AISP_ASSIGN_OR_RETURN(const std::string size, ReadLine());
    const auto end = size.data() + size.size();
    if (std::from_chars(size.data(), end, left, 16).ec != std::errc()) {
      return Unavailable("a broken chunk from " + authority + ": " + Excerpt(size));
    }
    if (left == 0) {
      body = Body::kNone;
      for (;;) {
        AISP_ASSIGN_OR_RETURN(const std::string trailer, ReadHeadLine());
        if (trailer.empty()) return std::nullopt;
      }
    }
  }
  if (input.empty()) {
    AISP_ASSIGN_OR_RETURN(const bool more, Receive());
    if (!more) return Unavailable(authority + " closed the connection in the middle of an answer");
  }
  std::string piece = Take(left);
  left -= piece.size();
  if (left == 0) {
    AISP_ASSIGN_OR_RETURN(const std::string end, ReadLine());
    if (!end.empty()) return Unavailable("a broken chunk from " + authority);
  }
  return piece;
}

HttpClient::HttpClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpClient::HttpClient(HttpClient&& other) noexcept = default;
HttpClient& HttpClient::operator=(HttpClient&& other) noexcept = default;
HttpClient::~HttpClient() = default;

Result<HttpClient> HttpClient::Connect(const std::string& address, uint16_t port, Duration timeout,
                                       std::shared_ptr<const TlsDialer> tls) {
  auto impl = std::make_unique<Impl>();
  const std::string host(WithoutBrackets(address));
  impl->authority = HostPort(host, port);
  impl->timeout = timeout;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int rc = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (rc != 0) return Unavailable("no address for " + host + ": " + gai_strerror(rc));
  Status status = Unavailable("no address for " + host);
  for (const addrinfo* at = found; at != nullptr && !status; at = at->ai_next) {
    if (impl->fd >= 0) close(impl->fd);
    impl->fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    status = {};
    if (connect(impl->fd, at->ai_addr, at->ai_addrlen) != 0) {
      if (errno == EINPROGRESS) status = impl->Await(POLLOUT);
      int error = errno == EINPROGRESS ? 0 : errno;
      socklen_t size = sizeof(error);
      if (error == 0) getsockopt(impl->fd, SOL_SOCKET, SO_ERROR, &error, &size);
      if (status && error != 0) {
        status = Unavailable("connecting to " + impl->authority + ": " + std::strerror(error));
      }
    }
  }
  freeaddrinfo(found);
  AISP_RETURN_IF_ERROR(status);
  const int yes = 1;
  setsockopt(impl->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  if (tls) {
    impl->ssl = tls->NewConnection(host);
    if (impl->ssl == nullptr) return Internal("OpenSSL gives no connection");
    impl->tls = std::move(tls);
    SSL_set_fd(impl->ssl, impl->fd);
    AISP_RETURN_IF_ERROR(impl->Handshake());
  }
  return HttpClient(std::move(impl));
}

Result<HttpAnswer> HttpClient::Open(std::string_view method, std::string_view target,
                                    std::string_view body, const HttpHeaders& headers) {
  std::string text;
  text.append(method).append(" ").append(target).append(" HTTP/1.1\r\nHost: ");
  text.append(impl_->authority).append("\r\n");
  for (const auto& [name, value] : headers) {
    text.append(name).append(": ").append(value).append("\r\n");
  }
  if (!body.empty() || method == "POST") {
    text.append("Content-Length: ").append(std::to_string(body.size())).append("\r\n");
  }
  text.append("\r\n").append(body);
  AISP_RETURN_IF_ERROR(impl_->SendAll(text));
  return impl_->ReadHead(method == "HEAD");
}

Result<HttpAnswer> HttpClient::Request(std::string_view method, std::string_view target,
                                       std::string_view body, const HttpHeaders& headers) {
  AISP_ASSIGN_OR_RETURN(HttpAnswer answer, Open(method, target, body, headers));
  AISP_ASSIGN_OR_RETURN(answer.body, ReadRest());
  return answer;
}

Result<std::optional<std::string>> HttpClient::ReadSome() {
  Impl& impl = *impl_;
  if (impl.body == Impl::Body::kNone) return std::nullopt;
  if (impl.body == Impl::Body::kChunked) return impl.ReadChunk();
  if (impl.input.empty()) {
    AISP_ASSIGN_OR_RETURN(const bool more, impl.Receive());
    if (!more && impl.body == Impl::Body::kUntilClose) {
      impl.body = Impl::Body::kNone;
      return std::nullopt;
    }
    if (!more) {
      return Unavailable(impl.authority + " closed the connection in the middle of an answer");
    }
  }
  if (impl.body == Impl::Body::kUntilClose) return impl.Take(std::string::npos);
  std::string piece = impl.Take(impl.left);
  impl.left -= piece.size();
  if (impl.left == 0) impl.body = Impl::Body::kNone;
  return piece;
}

Result<std::string> HttpClient::ReadRest() {
  std::string all;
  for (;;) {
    AISP_ASSIGN_OR_RETURN(const auto piece, ReadSome());
    if (!piece) return all;
    if (piece->size() > kMaxBody - all.size()) {
      return ResourceExhausted(impl_->authority + " answers with more than " +
                               std::to_string(kMaxBody) + " bytes");
    }
    all += *piece;
  }
}

Result<std::optional<SseEvent>> HttpClient::NextEvent() {
  for (;;) {
    AISP_ASSIGN_OR_RETURN(auto event, impl_->sse.Next());
    if (event) return event;
    AISP_ASSIGN_OR_RETURN(const auto piece, ReadSome());
    if (!piece) return std::nullopt;
    impl_->sse.Feed(*piece);
  }
}

Status HttpClient::SendRaw(std::string_view bytes) { return impl_->SendAll(bytes); }

Result<std::string> HttpClient::ReceiveRaw() {
  for (;;) {
    const auto more = impl_->Receive();
    if (!more && more.error().code != Code::kDeadlineExceeded && impl_->input.empty()) {
      return tl::unexpected(more.error());
    }
    if (!more || !*more) return std::exchange(impl_->input, {});
  }
}

int HttpClient::fd() const { return impl_->fd; }

void HttpClient::Close() {
  if (impl_->fd >= 0) close(std::exchange(impl_->fd, -1));
}

}  // namespace aisp
