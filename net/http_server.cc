#include "net/http_server.h"

#include "net/host_port.h"
#include "net/http_connection.h"
#include "net/listen_socket.h"

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <tuple>

#include "common/check.h"
#include "common/log.h"

namespace aisp {
namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

// Connections above the limit get an answer, at most this many at once; others are just closed.
constexpr size_t kMaxRefusing = 64;
// kAcceptedAtOnce: accepted per turn of the loop. kMaxLeaving: connections that are closing to make
// room and are not closed yet.
constexpr int kAcceptedAtOnce = 64;
constexpr size_t kMaxLeaving = 64;
constexpr Duration kAcceptRetry = std::chrono::milliseconds(100);

std::string EndpointName(const tcp::endpoint& endpoint) {
  const std::string host = endpoint.address().to_string();
  const std::string port = std::to_string(endpoint.port());
  return endpoint.address().is_v6() ? "[" + host + "]:" + port : host + ":" + port;
}

std::string PartyOf(const tcp::endpoint& endpoint) {
  const auto address = endpoint.address();
  const auto v6 = address.is_v6() ? address.to_v6()
                                  : asio::ip::make_address_v6(asio::ip::v4_mapped, address.to_v4());
  return AddressParty(v6.to_bytes().data());
}

// Why a connection from `party` is refused; "" when it is served.
std::string RefusalOf(HttpServerState& state, const std::string& party) {
  const HttpServerOptions& options = state.options;
  if (state.connections.size() - state.leaving >= options.max_connections &&
      !state.MakeRoomFor(party)) {
    return "the server has all the connections that it allows (" +
           std::to_string(options.max_connections) + "); try again soon";
  }
  const auto waiting = state.waiting.find(party);
  if (waiting != state.waiting.end() && waiting->second >= options.max_waiting_per_address) {
    return "your address has " + std::to_string(waiting->second) +
           " connections here without a running request, as many as one address may; use them or "
           "close some";
  }
  return "";
}

// Connections are checked at an eighth of the shortest timeout.
Duration SweepInterval(const HttpServerOptions& options) {
  const Duration shortest = std::min(
      {options.read_timeout, options.idle_timeout, options.write_timeout, options.drain_idle});
  return std::clamp<Duration>(shortest / 8, std::chrono::milliseconds(5), std::chrono::seconds(1));
}

}  // namespace

bool HttpServerState::MakeRoomFor(const std::string& party) {
  // These close within a second.
  if (leaving >= kMaxLeaving) return false;
  const auto own = resting.find(party);
  const std::list<HttpConnection*>* most = own == resting.end() ? nullptr : &own->second;
  for (const auto& [name, theirs] : resting) {
    if (most == nullptr || theirs.size() > most->size()) most = &theirs;
  }
  if (most == nullptr || (own != resting.end() && most == &own->second)) return false;
  most->front()->Leave();
  return true;
}

struct HttpServer::Impl : std::enable_shared_from_this<HttpServer::Impl> {
  Impl(IoLoop* loop, HttpServerOptions options)
      : acceptor(loop->impl().context),
        accept_retry(loop->impl().context),
        sweep_timer(loop->impl().context),
        state(std::make_shared<HttpServerState>(std::move(options))) {}

  Error ListenError(Code code, const error_code& ec) const;
  Status Listen();
  void Accept();
  void AcceptQueued();
  void AcceptMore();
  void OnAccepted(tcp::socket socket);
  void Sweep();
  void CheckDrained();

  tcp::acceptor acceptor;
  asio::steady_timer accept_retry;
  asio::steady_timer sweep_timer;
  bool sweeping = false;
  uint16_t port = 0;
  std::shared_ptr<HttpServerState> state;
  std::function<void()> drained;
};

Error HttpServer::Impl::ListenError(Code code, const error_code& ec) const {
  const HttpServerOptions& options = state->options;
  const std::string port_text = std::to_string(options.port);
  std::string message =
      "cannot listen for HTTP on " + options.address + ":" + port_text + ": " + ec.message();
  if (ec == asio::error::address_in_use) {
    message +=
        "; another program has port " + port_text +
        " (`ss -ltnp` shows which), so stop it or choose another port: " + options.port_flag +
        ", or 0 for a free one";
  } else if (ec == asio::error::access_denied) {
    message += "; ports below 1024 need a privilege: choose another with " + options.port_flag;
  }
  return Error{code, std::move(message)};
}

Status HttpServer::Impl::Listen() {
  const HttpServerOptions& options = state->options;
  if (options.tls.on()) {
    AISP_ASSIGN_OR_RETURN(state->tls, TlsContext::Create(options.tls));
  }
  error_code ec;
  if (options.listen_fd >= 0) {
    sockaddr_storage bound{};
    socklen_t size = sizeof(bound);
    getsockname(options.listen_fd, reinterpret_cast<sockaddr*>(&bound), &size);
    std::ignore =
        acceptor.assign(bound.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), options.listen_fd, ec);
    if (ec) return tl::unexpected(ListenError(Code::kInvalidArgument, ec));
    port = PortOf(options.listen_fd);
    return {};
  }
  tcp::resolver resolver(acceptor.get_executor());
  const auto found =
      resolver.resolve(WithoutBrackets(options.address), std::to_string(options.port),
                       tcp::resolver::passive | tcp::resolver::numeric_service, ec);
  if (ec) return tl::unexpected(ListenError(Code::kInvalidArgument, ec));
  const tcp::endpoint endpoint = *found.begin();
  std::ignore = acceptor.open(endpoint.protocol(), ec);
  if (!ec) std::ignore = acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) std::ignore = acceptor.bind(endpoint, ec);
  if (!ec) std::ignore = acceptor.listen(asio::socket_base::max_listen_connections, ec);
  if (!ec) port = acceptor.local_endpoint(ec).port();
  if (!ec) return {};
  const bool taken = ec == asio::error::address_in_use;
  return tl::unexpected(ListenError(taken ? Code::kAlreadyExists : Code::kInvalidArgument, ec));
}

void HttpServer::Impl::Accept() {
  acceptor.async_accept([weak = weak_from_this()](const error_code& ec, tcp::socket socket) {
    const auto self = weak.lock();
    if (!self) return;
    // A connection accepted just before draining is served like any other.
    if (!ec) {
      self->OnAccepted(std::move(socket));
      self->AcceptMore();
    }
    if (!self->acceptor.is_open()) return;
    if (!ec) return self->Accept();
    if (ec == asio::error::connection_aborted) return self->Accept();
    // Usually no descriptor is left; connections in the backlog are served when one is free again.
    LogWarning("http_accept_failed", {{"error", ec.message()}});
    self->accept_retry.expires_after(kAcceptRetry);
    self->accept_retry.async_wait([weak](const error_code& wait_ec) {
      const auto retrying = weak.lock();
      if (retrying && !wait_ec && retrying->acceptor.is_open()) retrying->Accept();
    });
  });
}

// Accepts several at once, so that clients behind a crowd in the queue do not wait one turn of the
// loop for each of them, with its handshake.
void HttpServer::Impl::AcceptMore() {
  error_code ec;
  if (!acceptor.is_open()) return;
  std::ignore = acceptor.non_blocking(true, ec);
  for (int i = 0; i < kAcceptedAtOnce && !ec && acceptor.is_open(); ++i) {
    tcp::socket socket(acceptor.get_executor());
    std::ignore = acceptor.accept(socket, ec);
    if (!ec) OnAccepted(std::move(socket));
  }
}

// Closing a listening socket resets the connections in its queue, so they are accepted first. If
// another process holds the socket too, it will serve them.
void HttpServer::Impl::AcceptQueued() {
  if (state->options.listen_fd >= 0 || !acceptor.is_open()) return;
  error_code ec;
  std::ignore = acceptor.non_blocking(true, ec);
  while (!ec) {
    tcp::socket socket(acceptor.get_executor());
    std::ignore = acceptor.accept(socket, ec);
    if (!ec) OnAccepted(std::move(socket));
  }
}

void HttpServer::Impl::OnAccepted(tcp::socket socket) {
  const HttpServerOptions& options = state->options;
  error_code ec;
  const tcp::endpoint peer = socket.remote_endpoint(ec);
  if (!ec) std::ignore = socket.non_blocking(true, ec);
  if (!ec) std::ignore = socket.set_option(tcp::no_delay(true), ec);
  if (!ec && options.send_buffer_bytes > 0) {
    std::ignore =
        socket.set_option(asio::socket_base::send_buffer_size(options.send_buffer_bytes), ec);
  }
  if (ec) return;
  const std::string party = PartyOf(peer);
  std::string refusal = RefusalOf(*state, party);
  // Refusing politely keeps a connection for a second, so that is bounded too.
  if (!refusal.empty() && state->refusing >= kMaxRefusing) return;
  std::make_shared<HttpConnection>(
      std::move(socket), HttpConnection::Peer{EndpointName(peer), party}, state, std::move(refusal))
      ->Start();
  if (!sweeping) Sweep();
}

// Checks deadlines periodically while there are connections.
void HttpServer::Impl::Sweep() {
  const Instant now = state->clock.Now();
  for (HttpConnection* connection : state->connections) connection->CheckDeadlines(now);
  sweeping = !state->connections.empty();
  if (!sweeping) return;
  sweep_timer.expires_after(SweepInterval(state->options));
  sweep_timer.async_wait([weak = weak_from_this()](const error_code& ec) {
    const auto self = weak.lock();
    if (self && !ec) self->Sweep();
  });
}

void HttpServer::Impl::CheckDrained() {
  if (!state->draining || !drained || !state->connections.empty()) return;
  state->loop->Post(std::exchange(drained, nullptr));
}

HttpServer::HttpServer(IoLoop* loop, HttpServerOptions options, Handler handler)
    : impl_(std::make_shared<Impl>(loop, std::move(options))) {
  AISP_CHECK(handler != nullptr);
  HttpServerState& state = *impl_->state;
  state.loop = loop;
  state.handler = std::move(handler);
  state.on_closed = [impl = impl_.get()] { impl->CheckDrained(); };
}

HttpServer::~HttpServer() {
  HttpServerState& state = *impl_->state;
  state.stopped = true;
  state.on_closed = nullptr;
  error_code ignored;
  std::ignore = impl_->acceptor.close(ignored);
  for (HttpConnection* connection : state.connections) {
    connection->Vanish(HttpExchange::Gone::kShutdown, false);
  }
}

Status HttpServer::Listen() { return impl_->Listen(); }
void HttpServer::Accept() { impl_->Accept(); }

Status HttpServer::Start() {
  AISP_RETURN_IF_ERROR(Listen());
  Accept();
  return {};
}

uint16_t HttpServer::port() const { return impl_->port; }

void HttpServer::Drain(std::function<void()> done) {
  impl_->state->draining = true;
  impl_->drained = std::move(done);
  impl_->AcceptQueued();
  error_code ignored;
  std::ignore = impl_->acceptor.close(ignored);
  for (HttpConnection* connection : impl_->state->connections) connection->Drain();
  impl_->CheckDrained();
}

size_t HttpServer::connections() const { return impl_->state->connections.size(); }

}  // namespace aisp
