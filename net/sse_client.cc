#include "net/sse_client.h"

#include "net/io_loop_impl.h"

#include <openssl/ssl.h>
#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <optional>
#include <tuple>
#include <vector>

#include "common/strings.h"
#include "net/http_reader.h"

namespace aisp {

using boost::asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr size_t kMaxIdle = 16384;

class Connection;

}  // namespace

struct SseClient::Impl {
  IoLoop* loop = nullptr;
  std::string host;
  std::string authority;
  std::optional<boost::asio::ssl::context> tls;  // for https
  std::vector<tcp::endpoint> endpoints;
  std::vector<std::shared_ptr<Connection>> idle;
  uint64_t opened = 0;
};

struct SseCall::Impl {
  SseRequest request;
  SseListener* listener = nullptr;
  std::shared_ptr<SseClient::Impl> client;
  std::shared_ptr<Connection> connection;
  bool resent = false;

  void Send();
};

namespace {

// Always has a read pending, so the end of an idle connection is noticed. Owned by its operations.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(std::shared_ptr<SseClient::Impl> client)
      : client_(std::move(client)), socket_(client_->loop->impl().context) {
    if (!client_->tls) return;
    tls_.emplace(socket_, *client_->tls);
    SetTlsHost(tls_->native_handle(), client_->host);
  }

  // Sends the request of `call`; connects first if needed.
  void Begin(SseCall::Impl* call);
  // The call was abandoned.
  void Drop() {
    call_ = nullptr;
    Close();
  }
  void Close() {
    closed_ = true;
    error_code ignored;
    std::ignore = socket_.close(ignored);
  }
  bool usable() const { return !closed_; }

 private:
  void Connected(const error_code& ec);
  void Ready();
  void Write();
  void Read();
  void OnRead(const error_code& ec, size_t bytes);
  // Passes everything that has arrived to the listener.
  void Deliver();
  bool DeliverItem(const HttpReader::Item& item);
  bool DeliverEvents();
  void Eof(const error_code& ec);
  void Finish(const Status& status);

  std::shared_ptr<SseClient::Impl> client_;
  tcp::socket socket_;
  std::optional<boost::asio::ssl::stream<tcp::socket&>> tls_;  // on top of socket_
  SseCall::Impl* call_ = nullptr;
  std::string out_;
  std::array<char, 16 << 10> in_;
  HttpReader http_;
  SseReader sse_;
  bool is_sse_ = false;
  bool connected_ = false;
  bool writing_ = false;  // writing, or failed to write
  bool reused_ = false;
  bool answered_ = false;  // part of the answer has arrived
  bool closed_ = false;
};

std::string Serialize(const SseRequest& request, const std::string& authority) {
  std::string out;
  out.reserve(request.body.size() + 512);
  out.append("POST ").append(request.target).append(" HTTP/1.1\r\nHost: ").append(authority);
  for (const auto& [name, value] : request.headers) {
    out.append("\r\n").append(name).append(": ").append(value);
  }
  out.append("\r\nContent-Length: ").append(std::to_string(request.body.size()));
  out.append("\r\n\r\n").append(request.body);
  return out;
}

void Connection::Begin(SseCall::Impl* call) {
  call_ = call;
  answered_ = false;
  is_sse_ = false;
  sse_ = SseReader();
  http_.Begin();
  out_ = Serialize(call->request, client_->authority);
  if (connected_) {
    reused_ = true;
    return Write();
  }
  ++client_->opened;
  boost::asio::async_connect(
      socket_, client_->endpoints,
      [self = shared_from_this()](const error_code& ec, const tcp::endpoint&) {
        self->Connected(ec);
      });
}

void Connection::Connected(const error_code& ec) {
  if (call_ == nullptr) return Close();
  if (ec) {
    return Finish(Unavailable("connecting to " + client_->authority + " failed: " + ec.message()));
  }
  error_code ignored;
  std::ignore = socket_.set_option(tcp::no_delay(true), ignored);
  if (!tls_) return Ready();
  tls_->async_handshake(
      boost::asio::ssl::stream_base::client, [self = shared_from_this()](const error_code& failed) {
        if (self->call_ == nullptr) return self->Close();
        if (!failed) return self->Ready();
        self->Finish(Unavailable("TLS to " + self->client_->authority + " failed: " +
                                 TlsFailure(self->tls_->native_handle(), failed.message())));
      });
}

void Connection::Ready() {
  connected_ = true;
  Read();
  Write();
}

void Connection::Write() {
  // A failed write is ignored: the pending read fails too, and may deliver an answer before.
  writing_ = true;
  auto done = [self = shared_from_this()](const error_code& ec, size_t) {
    self->writing_ = bool(ec);
  };
  if (tls_) {
    boost::asio::async_write(*tls_, boost::asio::buffer(out_), std::move(done));
  } else {
    boost::asio::async_write(socket_, boost::asio::buffer(out_), std::move(done));
  }
}

void Connection::Read() {
  auto done = [self = shared_from_this()](const error_code& ec, size_t bytes) {
    self->OnRead(ec, bytes);
  };
  if (tls_) {
    tls_->async_read_some(boost::asio::buffer(in_), std::move(done));
  } else {
    socket_.async_read_some(boost::asio::buffer(in_), std::move(done));
  }
}

void Connection::OnRead(const error_code& ec, size_t bytes) {
  if (closed_) return;
  if (call_ == nullptr) return Close();  // idle: the server closed it or sent unsolicited data
  if (ec) return Eof(ec);
  answered_ = true;
  http_.Feed({in_.data(), bytes});
  Deliver();
  if (!closed_) Read();
}

void Connection::Eof(const error_code& ec) {
  if (reused_ && !answered_ && !call_->resent) {
    SseCall::Impl* call = std::exchange(call_, nullptr);
    Close();
    call->resent = true;
    call->connection = std::make_shared<Connection>(client_);
    call->connection->Begin(call);
    return call->listener->OnResent();
  }
  if (ec != boost::asio::error::eof) {
    return Finish(Unavailable("the connection broke: " + ec.message()));
  }
  const auto end = http_.AtEof();
  Finish(end ? Status() : tl::unexpected(end.error()));
}

void Connection::Deliver() {
  for (;;) {
    const auto item = http_.Next();
    if (!item) return Finish(tl::unexpected(item.error()));
    if (!DeliverItem(*item)) return;
  }
}

// False when nothing more can be delivered now.
bool Connection::DeliverItem(const HttpReader::Item& item) {
  SseListener* listener = call_->listener;
  switch (item.kind) {
    case HttpReader::Kind::kMore:
      return false;
    case HttpReader::Kind::kHead:
      is_sse_ = http_.Header("Content-Type").starts_with("text/event-stream");
      listener->OnHead(http_.status(), http_.headers());
      return call_ != nullptr;
    case HttpReader::Kind::kBody:
      if (is_sse_) {
        sse_.Feed(item.body);
        return DeliverEvents();
      }
      listener->OnBody(item.body);
      return call_ != nullptr;
    case HttpReader::Kind::kEnd:
      Finish({});
      return false;
  }
  return false;
}

bool Connection::DeliverEvents() {
  for (;;) {
    const auto event = sse_.Next();
    if (!event) {
      Finish(tl::unexpected(event.error()));
      return false;
    }
    if (!*event) return true;
    call_->listener->OnEvent(**event);
    if (call_ == nullptr) return false;
  }
}

void Connection::Finish(const Status& status) {
  SseCall::Impl* call = std::exchange(call_, nullptr);
  const std::shared_ptr<Connection> self = std::move(call->connection);
  if (status && http_.keep_alive() && !writing_ && client_->idle.size() < kMaxIdle) {
    client_->idle.push_back(self);
  } else {
    Close();
  }
  call->listener->OnEnd(status, connected_);
}

}  // namespace

void SseCall::Impl::Send() {
  while (!client->idle.empty() && !connection) {
    if (client->idle.back()->usable()) connection = client->idle.back();
    client->idle.pop_back();
  }
  if (!connection) connection = std::make_shared<Connection>(client);
  connection->Begin(this);
}

SseCall::~SseCall() {
  if (impl_ && impl_->connection) impl_->connection->Drop();
}

SseClient::SseClient(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

SseClient::~SseClient() {
  for (const auto& connection : impl_->idle) connection->Close();
  impl_->idle.clear();
}

Result<std::unique_ptr<SseClient>> SseClient::Create(IoLoop* loop, const std::string& host,
                                                     uint16_t port,
                                                     std::shared_ptr<const TlsDialer> tls) {
  auto impl = std::make_shared<Impl>();
  impl->loop = loop;
  impl->host = host;
  if (tls) {
    SSL_CTX_up_ref(tls->native());  // Asio's context releases one reference
    impl->tls.emplace(tls->native());
  }
  const bool is_ipv6 = host.find(':') != std::string::npos;
  impl->authority = (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
  tcp::resolver resolver(loop->impl().context);
  error_code ec;
  for (const auto& found : resolver.resolve(host, std::to_string(port), ec)) {
    impl->endpoints.push_back(found.endpoint());
  }
  if (ec || impl->endpoints.empty()) {
    return Unavailable("no address for the host '" + Excerpt(host) + "': " + ec.message());
  }
  return std::unique_ptr<SseClient>(new SseClient(std::move(impl)));
}

std::unique_ptr<SseCall> SseClient::Post(SseRequest request, SseListener* listener) {
  std::unique_ptr<SseCall> call(new SseCall());
  call->impl_ = std::make_unique<SseCall::Impl>();
  call->impl_->request = std::move(request);
  call->impl_->listener = listener;
  call->impl_->client = impl_;
  call->impl_->Send();
  return call;
}

uint64_t SseClient::connections_opened() const { return impl_->opened; }

}  // namespace aisp
