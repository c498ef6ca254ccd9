#include "net/http_connection.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <ctime>

#include "common/check.h"
#include "common/log.h"
#include "common/strings.h"
#include "net/http_exchange.h"
#include "net/http_message.h"

namespace aisp {
namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

// One connection may keep the loop busy with so many bytes before the others get a turn.
constexpr size_t kSendBudget = 256 << 10;
constexpr size_t kReadChunk = 16 << 10;
// How long a closing connection waits for the client to have read the last answer.
constexpr Duration kLingerTime = std::chrono::seconds(1);

auto Into(error_code& ec) { return asio::redirect_error(asio::use_awaitable, ec); }

struct Refusal {
  int status;
  std::string message;
};

Refusal RefusalOf(const error_code& ec, const HttpServerOptions& options) {
  if (ec == http::error::header_limit || ec == http::error::buffer_overflow) {
    return {431, "the request's head is larger than " + std::to_string(options.max_header_bytes) +
                     " bytes"};
  }
  if (ec == http::error::body_limit) {
    return {413, "the request's body is larger than " + std::to_string(options.max_body_bytes) +
                     " bytes"};
  }
  if (ec == http::error::bad_version) return {505, "only HTTP/1.0 and HTTP/1.1 are spoken here"};
  return {400, "not a valid HTTP request: " + ec.message()};
}

std::string ToString(boost::beast::string_view text) { return {text.data(), text.size()}; }

// The parsed request as plain data; false when its target or its Host is not what HTTP/1.1 allows.
template <typename Message>
bool TakeRequest(Message& message, HttpRequest* request) {
  request->method = ToString(message.method_string());
  if (!SplitTarget(ToString(message.target()), &request->path, &request->query)) return false;
  for (const auto& field : message) {
    request->headers.emplace_back(ToString(field.name_string()), ToString(field.value()));
  }
  if (message.version() >= 11 && message.count(http::field::host) != 1) return false;
  request->body = std::move(message.body());
  return true;
}

asio::awaitable<void> KeepAlive(std::shared_ptr<HttpConnection> connection,
                                asio::awaitable<void> run) {
  co_await std::move(run);
  connection.reset();
}

}  // namespace

HttpConnection::HttpConnection(asio::ip::tcp::socket socket, std::string peer,
                               std::shared_ptr<HttpServerState> state, bool refuse)
    : socket_(std::move(socket)),
      peer_(std::move(peer)),
      state_(std::move(state)),
      refuse_(refuse),
      buffer_(state_->options.max_header_bytes + kReadChunk) {
  state_->connections.insert(this);
}

HttpConnection::~HttpConnection() {
  if (exchange_ != nullptr) exchange_->Detach();
  ReserveBody(0);
  state_->connections.erase(this);
  if (state_->on_closed && !state_->stopped) state_->on_closed();
}

void HttpConnection::Start() {
  asio::co_spawn(socket_.get_executor(), KeepAlive(shared_from_this(), Run()), asio::detached);
}

asio::awaitable<void> HttpConnection::Run() {
  if (refuse_) {
    Reject(503, "the server has all the connections that it allows (" +
                    std::to_string(state_->options.max_connections) + "); try again soon");
    co_await AwaitAnswer();
  }
  while (!dead_ && !refuse_) {
    const bool dispatched = co_await ReadRequest();
    if (!dispatched && !complete_) break;
    co_await AwaitAnswer();
    if (closing_) break;
  }
  if (!dead_) co_await Linger();
  error_code ignored;
  socket_.close(ignored);
}

// True when the handler has got a request. False with complete_: it was answered with an error; else: the connection ends.
asio::awaitable<bool> HttpConnection::ReadRequest() {
  const HttpServerOptions& options = state_->options;
  complete_ = sent_ = chunked_ = last_chunk_due_ = head_request_ = closing_ = false;
  request_id_.clear();
  phase_ = Phase::kIdle;
  read_deadline_ = state_->clock.Now() + IdleTimeout();
  while (buffer_.size() == 0) {
    if (peer_ended_ || timed_out_ || dead_) co_return false;
    const bool got = co_await AwaitBytes();
    if (!got) co_return false;
  }
  first_request_ = false;
  phase_ = Phase::kReading;
  read_deadline_ = state_->clock.Now() + options.read_timeout;

  http::request_parser<http::string_body> parser;
  parser.header_limit(static_cast<uint32_t>(options.max_header_bytes));
  parser.body_limit(options.max_body_bytes);
  error_code ec;
  co_await http::async_read_header(socket_, buffer_, parser, Into(ec));
  HttpRequest request;
  request.received = state_->clock.Now();
  if (!ec) {
    NameRequest(ToString(parser.get()["x-request-id"]));
    const auto expect = ToString(parser.get()[http::field::expect]);
    if (!expect.empty() && !EqualsIgnoreCaseAscii(expect, "100-continue")) {
      Reject(417, "the only expectation known here is 100-continue");
      co_return false;
    }
    const size_t most = parser.chunked() ? options.max_body_bytes
                                         : static_cast<size_t>(parser.content_length().value_or(0));
    if (!ReserveBody(most)) {
      Reject(503, "the server holds all the request bodies that it can; try again soon");
      co_return false;
    }
    if (!expect.empty() && !parser.is_done() && buffer_.size() == 0) {
      out_.append("HTTP/1.1 100 Continue\r\n\r\n");
      Flush();
    }
    co_await http::async_read(socket_, buffer_, parser, Into(ec));
  }
  read_deadline_ = kNever;
  if (dead_) co_return false;
  if (timed_out_) {
    Reject(408, "the request was not complete within " +
                    std::to_string(static_cast<int64_t>(ToMs(options.read_timeout))) + " ms");
    co_return false;
  }
  const bool connection_broke = ec && ec.category() == asio::error::get_system_category();
  if (ec == http::error::end_of_stream || connection_broke) co_return false;
  if (ec) {
    if (request_id_.empty()) NameRequest(ToString(parser.get()["x-request-id"]));
    const Refusal refusal = RefusalOf(ec, options);
    Reject(refusal.status, refusal.message);
    co_return false;
  }
  auto message = parser.release();
  http_1_0_ = message.version() < 11;
  keep_alive_ = message.keep_alive();
  head_request_ = message.method() == http::verb::head;
  if (!TakeRequest(message, &request)) {
    Reject(400, "the request needs a target that starts with '/' and one Host field");
    co_return false;
  }
  request.peer = peer_;
  request.id = request_id_;
  phase_ = Phase::kAnswering;
  auto exchange = std::make_shared<ServerExchange>(std::move(request), this, state_->loop);
  exchange_ = exchange.get();
  state_->handler(std::move(exchange));
  co_return true;
}

// One read into buffer_; false when the connection ended, a deadline passed or WakeReader was called.
asio::awaitable<bool> HttpConnection::AwaitBytes() {
  error_code ec;
  reader_waits_ = true;
  const size_t n = co_await socket_.async_read_some(buffer_.prepare(kReadChunk), Into(ec));
  reader_waits_ = false;
  if (!ec) {
    buffer_.commit(n);
    co_return true;
  }
  if (ec != asio::error::operation_aborted) {
    peer_ended_ = true;
    const bool half_closed = ec == asio::error::eof;
    const bool gone = !half_closed || (state_->options.half_close_is_disconnect && !complete_);
    if (gone && phase_ == Phase::kAnswering) Vanish(HttpExchange::Gone::kClosed, false);
  }
  co_return false;
}

// Until the answer is sent or the client is gone. Meanwhile the socket is watched; what the client sends already belongs to its
// next request, and more of it than a head may have stays in the kernel.
asio::awaitable<void> HttpConnection::AwaitAnswer() {
  while (!sent_ && !dead_) {
    if (!peer_ended_ && buffer_.size() < state_->options.max_header_bytes) {
      co_await AwaitBytes();
      continue;
    }
    error_code ec;
    reader_waits_ = true;
    co_await socket_.async_wait(asio::ip::tcp::socket::wait_error, Into(ec));
    reader_waits_ = false;
    if (!ec) Vanish(HttpExchange::Gone::kClosed, false);
  }
}

// Closing while bytes of the client are unread would make the kernel send a reset, which may destroy the answer on its way.
asio::awaitable<void> HttpConnection::Linger() {
  phase_ = Phase::kLingering;
  timed_out_ = false;
  read_deadline_ = state_->clock.Now() + kLingerTime;
  error_code ec;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ec);
  buffer_.clear();
  while (!ec && !timed_out_ && !peer_ended_ && !dead_) {
    co_await socket_.async_read_some(buffer_.prepare(kReadChunk), Into(ec));
  }
}

void HttpConnection::CheckDeadlines(Instant now) {
  if (dead_) return;
  if (now >= write_deadline_) {
    Vanish(HttpExchange::Gone::kSlowReader, true);
  } else if (now >= read_deadline_) {
    timed_out_ = true;
    error_code ignored;
    socket_.cancel(ignored);
  }
}

Duration HttpConnection::IdleTimeout() const {
  const HttpServerOptions& options = state_->options;
  Duration timeout = options.idle_timeout;
  if (first_request_) timeout = std::min(timeout, options.read_timeout);
  if (state_->draining) timeout = std::min(timeout, options.drain_idle);
  return timeout;
}

void HttpConnection::Drain() {
  if (phase_ != Phase::kIdle || buffer_.size() != 0) return;
  read_deadline_ = std::min(read_deadline_, state_->clock.Now() + IdleTimeout());
}

void HttpConnection::WakeReader() {
  if (!reader_waits_) return;
  error_code ignored;
  socket_.cancel(ignored);
}

void HttpConnection::Vanish(HttpExchange::Gone why, bool reset) {
  if (dead_) return;
  dead_ = true;
  write_deadline_ = read_deadline_ = kNever;
  if (exchange_ != nullptr) exchange_->Lose(why);
  exchange_ = nullptr;
  pending_.clear();
  error_code ignored;
  if (reset) socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  socket_.close(ignored);
}

// For the request in progress; 0 gives back what the last one had.
bool HttpConnection::ReserveBody(size_t bytes) {
  state_->body_bytes -= std::exchange(reserved_body_, 0);
  if (bytes > state_->options.max_total_body_bytes - state_->body_bytes) return false;
  reserved_body_ = bytes;
  state_->body_bytes += bytes;
  return true;
}

void HttpConnection::NameRequest(std::string_view given) {
  if (state_->options.request_id) request_id_ = state_->options.request_id(given);
}

void HttpConnection::Reject(int status, std::string_view message) {
  keep_alive_ = false;
  if (request_id_.empty()) NameRequest("");
  LogInfo("http request refused",
          {{"request", request_id_}, {"peer", peer_}, {"status", status}, {"error", message}});
  phase_ = Phase::kAnswering;
  const auto& error_body = state_->options.error_body;
  HttpHeaders headers{{"Content-Type", error_body ? "application/json" : "text/plain"}};
  if (status == 503) headers.emplace_back("Retry-After", "1");
  Respond(status, headers, error_body ? error_body(status, message) : std::string(message) + "\n");
}

void HttpConnection::Respond(int status, const HttpHeaders& headers, std::string body) {
  HttpHead head;
  head.status = status;
  head.headers = &headers;
  head.request_id = request_id_;
  head.content_length = body.size();
  head.close = AnnounceClose();
  head.http_1_0 = http_1_0_;
  head.now_s = std::time(nullptr);
  AppendHead(head, &out_);
  if (!head_request_ && StatusHasBody(status)) out_.append(body);
  CompleteAnswer();
  Flush();
}

void HttpConnection::BeginStream(int status, const HttpHeaders& headers) {
  HttpHead head;
  head.status = status;
  head.headers = &headers;
  head.request_id = request_id_;
  head.framing = http_1_0_ ? BodyFraming::kUntilClose : BodyFraming::kChunked;
  if (http_1_0_) keep_alive_ = false;
  head.close = AnnounceClose();
  head.http_1_0 = http_1_0_;
  head.now_s = std::time(nullptr);
  chunked_ = head.framing == BodyFraming::kChunked && !head_request_ && StatusHasBody(status);
  AppendHead(head, &out_);
  ScheduleFlush();
}

void HttpConnection::Write(std::string_view bytes) {
  if (dead_ || head_request_) return;
  pending_.append(bytes);
  const size_t bound = state_->options.max_unsent_bytes;
  while (unsent_bytes() > bound && !waits_writable_ && !dead_) Flush();
  if (unsent_bytes() > bound && !dead_) Vanish(HttpExchange::Gone::kSlowReader, true);
  if (!pending_.empty()) ScheduleFlush();
}

void HttpConnection::End() {
  last_chunk_due_ = chunked_;
  CompleteAnswer();
  ScheduleFlush();
}

void HttpConnection::CompleteAnswer() {
  complete_ = true;
  if (exchange_ != nullptr) exchange_->Detach();
  exchange_ = nullptr;
}

void HttpConnection::ExchangeDropped(bool streaming) {
  LogWarning("http_exchange_dropped", {{"peer", peer_}, {"streaming", streaming}});
  exchange_ = nullptr;
  if (dead_) return;
  if (streaming) {
    Vanish(HttpExchange::Gone::kClosed, true);
  } else {
    Reject(500, "the request was given up inside the server");
  }
}

void HttpConnection::ScheduleFlush() {
  if (flush_posted_ || waits_writable_ || dead_) return;
  flush_posted_ = true;
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->flush_posted_ = false;
    self->Flush();
  });
}

// Moves what is to be sent to out_; false when there is nothing.
bool HttpConnection::FillOut() {
  if (out_sent_ > out_.size() / 2) {
    out_.erase(0, out_sent_);
    out_sent_ = 0;
    if (out_.empty() && out_.capacity() > kSendBudget) out_.shrink_to_fit();
  }
  if (chunked_) {
    AppendChunk(pending_, &out_);
  } else {
    out_.append(pending_);
  }
  pending_.clear();
  if (last_chunk_due_) out_.append(kLastChunk);
  last_chunk_due_ = false;
  return out_sent_ < out_.size();
}

void HttpConnection::Flush() {
  if (dead_ || waits_writable_) return;
  size_t budget = kSendBudget;
  while (FillOut()) {
    if (budget == 0) return ScheduleFlush();
    error_code ec;
    const size_t size = std::min(out_.size() - out_sent_, budget);
    const size_t n = socket_.write_some(asio::buffer(out_.data() + out_sent_, size), ec);
    if (ec == asio::error::would_block || ec == asio::error::try_again) {
      waits_writable_ = true;
      write_deadline_ = state_->clock.Now() + state_->options.write_timeout;
      socket_.async_wait(asio::ip::tcp::socket::wait_write,
                         [self = shared_from_this()](const error_code& wait_ec) {
                           self->waits_writable_ = false;
                           if (!wait_ec) self->Flush();
                         });
      return;
    }
    if (ec) return Vanish(HttpExchange::Gone::kClosed, false);
    out_sent_ += n;
    budget -= n;
  }
  write_deadline_ = kNever;
  if (complete_ && !sent_) {
    sent_ = true;
    WakeReader();
  }
}

}  // namespace aisp
