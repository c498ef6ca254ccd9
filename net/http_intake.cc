// The reading half of HttpConnection: a request's head, the decision whether to read its body, and
// the body.
#include <utility>  // Boost 1.74's Asio lacks this include

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <functional>

#include "common/strings.h"
#include "net/http_connection.h"
#include "net/http_exchange.h"
#include "net/http_head.h"
#include "net/http_message.h"

namespace aisp {
namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

// The least growth of a body's buffer.
constexpr size_t kBodyChunk = 16 << 10;
// Slack below this size, or below this fraction of the body, is kept: moving a large body to shrink
// its buffer would block the loop.
constexpr size_t kLeastSlack = 1024;
constexpr size_t kSlackPart = 8;

// New capacity for a body with `had` bytes received and `announced` in total (0: unknown). It grows
// with what has arrived, since announcing costs a client nothing.
size_t NextCapacity(size_t had, size_t announced) {
  constexpr size_t kFactor = 4;
  const size_t least = had + kBodyChunk;
  if (announced == 0) return std::max(least, 2 * had);
  return std::max(least, std::min(announced + kBodyChunk, kFactor * had));
}

// Pause from the second consecutive refusal on, doubled each time.
constexpr Duration kShortestPause = std::chrono::milliseconds(10);
constexpr Duration kLongestPause = std::chrono::seconds(1);

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

// Converts the head; false when its target or Host is not valid HTTP/1.1.
template <typename Message>
bool TakeHead(const Message& message, HttpRequest* request) {
  request->method = ToString(message.method_string());
  auto target = SplitTarget(request->method, ToString(message.target()));
  if (!target) return false;
  request->path = std::move(target->path);
  request->query = std::move(target->query);
  for (const auto& field : message) {
    if (field.name() == http::field::host && !target->host.empty()) continue;
    request->headers.emplace_back(ToString(field.name_string()), ToString(field.value()));
  }
  if (!target->host.empty()) request->headers.emplace_back("Host", std::move(target->host));
  return message.version() < 11 || message.count(http::field::host) == 1;
}

}  // namespace

struct HttpConnection::Intake {
  http::request_parser<http::buffer_body> parser;
  HttpRequest request;
  // A member because the parser keeps a reference to it.
  std::function<void(uint64_t, boost::beast::string_view, error_code&)> on_chunk;
  std::string chunk_error;  // why a chunk's header was refused
};

asio::awaitable<bool> HttpConnection::ReadRequest() {
  complete_ = sent_ = chunked_ = last_chunk_due_ = head_request_ = closing_ = false;
  request_id_.clear();
  path_.clear();
  body_ = {};
  SetPhase(Phase::kIdle);
  read_deadline_ = state_->clock.Now() + IdleTimeout();
  if (refused_in_row_ > 1) co_await Pause();
  if (timed_out_ || dead_) co_return false;
  while (buffer_.size() == 0) {
    if (peer_ended_ || timed_out_ || dead_) co_return false;
    const bool got = co_await AwaitBytes();
    if (!got) co_return false;
  }
  first_request_ = false;
  SetPhase(Phase::kReading);
  read_deadline_ = state_->clock.Now() + state_->options.read_timeout;

  Intake intake;
  const bool has_head = co_await ReadHead(&intake);
  if (!has_head || !AcceptHead(&intake)) co_return false;
  HttpIntake wanted;
  if (state_->options.intake) wanted = state_->options.intake(intake.request);
  if (!wanted.party.empty()) known_ = true;
  party_ = wanted.party.empty() ? peer_.address : "tenant:" + wanted.party;
  SetPhase(Phase::kReading);
  body_ = IntakeBudget::Share(&state_->bodies, party_);
  if (wanted.read_body) {
    const bool has_body = co_await ReadBody(&intake);
    if (!has_body) co_return false;
  } else if (!intake.parser.is_done()) {
    keep_alive_ = false;
  }
  Dispatch(std::move(intake.request));
  co_return true;
}

asio::awaitable<void> HttpConnection::Pause() {
  constexpr int kDoublings = 7;
  const Duration wait =
      std::min(kLongestPause, kShortestPause * (1 << std::min(refused_in_row_ - 2, kDoublings)));
  asio::steady_timer timer(socket_.get_executor());
  timer.expires_after(wait);
  pausing_ = &timer;
  error_code ec;
  co_await timer.async_wait(Into(ec));
  pausing_ = nullptr;
}

asio::awaitable<bool> HttpConnection::ReadHead(Intake* intake) {
  const HttpServerOptions& options = state_->options;
  HttpHeadScanner scanner;
  const auto arrived = [this] {
    const auto bytes = buffer_.data();
    return std::string_view(static_cast<const char*>(bytes.data()), bytes.size());
  };
  size_t size = scanner.Scan(arrived());
  while (size == 0) {
    if (!scanner.error().empty() || buffer_.size() > options.max_header_bytes) {
      Reject(scanner.error().empty() ? 431 : scanner.status(),
             scanner.error().empty() ? RefusalOf(http::error::header_limit, options).message
                                     : scanner.error());
      co_return false;
    }
    const bool got = co_await AwaitBytes();
    if (!got) {
      RejectIntake(http::error::partial_message);
      co_return false;
    }
    size = scanner.Scan(arrived());
  }
  auto& parser = intake->parser;
  parser.header_limit(static_cast<uint32_t>(options.max_header_bytes));
  parser.body_limit(options.max_body_bytes);
  // Empty lines before the request were accepted by the scanner.
  while (arrived().starts_with("\r\n")) {
    buffer_.consume(2);
    size -= 2;
  }
  error_code ec;
  const size_t taken = parser.put(asio::const_buffer(buffer_.data().data(), size), ec);
  buffer_.consume(taken);
  if (ec && ec != http::error::need_buffer) {
    // The fields were read before the error, so the answer can carry the request id.
    NameRequest(ToString(parser.get()["x-request-id"]));
    const std::string method = ToString(parser.get().method_string());
    const auto target = SplitTarget(method, ToString(parser.get().target()));
    path_ = target ? target->path : "";
    RejectIntake(ec);
    co_return false;
  }
  co_return true;
}

// Names the request and applies its head; false when it was refused.
bool HttpConnection::AcceptHead(Intake* intake) {
  const auto& message = intake->parser.get();
  HttpRequest& request = intake->request;
  request.received = state_->clock.Now();
  NameRequest(ToString(message["x-request-id"]));
  const auto expect = ToString(message[http::field::expect]);
  if (!expect.empty() && !EqualsIgnoreCaseAscii(expect, "100-continue")) {
    Reject(417, "the only expectation known here is 100-continue");
    return false;
  }
  // Otherwise a compressed body would be reported as invalid JSON.
  const auto encoding = ToString(message[http::field::content_encoding]);
  if (!encoding.empty() && !EqualsIgnoreCaseAscii(encoding, "identity")) {
    Reject(415, "bodies are read as they are; send this one without Content-Encoding, not as " +
                    Excerpt(encoding));
    return false;
  }
  http_1_0_ = message.version() < 11;
  keep_alive_ = message.keep_alive();
  head_request_ = message.method() == http::verb::head;
  // What follows CONNECT is not HTTP.
  if (message.method() == http::verb::connect) {
    Reject(501, "CONNECT is for proxies, and this server is none");
    return false;
  }
  if (!TakeHead(message, &request)) {
    head_request_ = false;
    Reject(400,
           "the request needs a target that starts with '/', an http URL whose host is a name, or, "
           "of OPTIONS, '*'; and one Host field");
    return false;
  }
  request.peer = peer_.name;
  request.id = request_id_;
  path_ = request.path;
  return true;
}

asio::awaitable<bool> HttpConnection::ReadBody(Intake* intake) {
  auto& parser = intake->parser;
  std::string& body = intake->request.body;
  // An HTTP/1.0 client would take 100 for the answer.
  if (!http_1_0_ && !parser.is_done() && buffer_.size() == 0 &&
      EqualsIgnoreCaseAscii(intake->request.Header("expect"), "100-continue")) {
    out_.append("HTTP/1.1 100 Continue\r\n\r\n");
    Flush();
  }
  intake->on_chunk = [this, intake](uint64_t size, boost::beast::string_view extension,
                                    error_code& ec) {
    intake->chunk_error = RefuseChunk(size, {extension.data(), extension.size()});
    if (!intake->chunk_error.empty()) ec = http::error::bad_chunk;
  };
  parser.on_chunk_header(intake->on_chunk);
  // Parse all buffered chunks at once: one turn of the loop per tiny chunk would be slow.
  parser.eager(true);
  const size_t announced = parser.content_length() ? *parser.content_length() : 0;
  while (!parser.is_done()) {
    const size_t had = body.size();
    if (body.capacity() - had < kBodyChunk) body.reserve(NextCapacity(had, announced));
    body.resize(had + kBodyChunk);
    parser.get().body().data = body.data() + had;
    parser.get().body().size = kBodyChunk;
    parser.get().body().more = true;
    error_code ec;
    co_await http::async_read_some(socket_, buffer_, parser, Into(ec));
    body.resize(had + kBodyChunk - parser.get().body().size);
    if (ec == http::error::need_buffer) ec = {};
    if (ec || dead_ || timed_out_) {
      RejectIntake(ec, intake->chunk_error);
      co_return false;
    }
    if (!GrowBody(body.size())) co_return false;
  }
  // The body is kept until the answer has been sent, so large slack is returned.
  if (body.capacity() - body.size() > std::max(kLeastSlack, body.size() / kSlackPart))
    body.shrink_to_fit();
  body_.Whole();
  co_return true;
}

// Checks a chunk's extension, and for the last chunk also the trailers.
std::string HttpConnection::RefuseChunk(uint64_t size, std::string_view extension) const {
  std::string error = HttpHeadScanner::RefuseExtension(extension);
  if (size > 0 || !error.empty()) return error;
  // For the last chunk the parser calls this once all trailer lines are in the buffer, which
  // `extension` points into.
  const auto bytes = buffer_.data();
  const std::string_view arrived(static_cast<const char*>(bytes.data()), bytes.size());
  const auto at = static_cast<size_t>(extension.data() - arrived.data());
  const size_t line_end = arrived.find("\r\n", at);
  if (line_end == std::string_view::npos) return "the last chunk's end is not where it was read";
  return HttpHeadScanner::RefuseTrailers(arrived.substr(line_end + 2));
}

// Tells the client why its request was not read, unless it is gone. `why`: details beyond the code.
void HttpConnection::RejectIntake(const error_code& ec, const std::string& why) {
  read_deadline_ = kNever;
  if (dead_) return;
  const HttpServerOptions& options = state_->options;
  if (leaving_) return Reject(503, "the server needs this connection for others; try again");
  if (timed_out_) {
    Reject(408, "the request was not complete within " +
                    std::to_string(static_cast<int64_t>(ToMs(options.read_timeout))) + " ms");
    return;
  }
  const bool connection_broke = ec.category() == asio::error::get_system_category();
  if (connection_broke || ec == http::error::end_of_stream) return;
  const Refusal refusal = RefusalOf(ec, options);
  Reject(refusal.status, why.empty() ? refusal.message : "not a valid HTTP request: " + why);
}

// False, and answered, when a limit refuses the body's next bytes.
bool HttpConnection::GrowBody(size_t bytes) {
  switch (body_.GrowTo(bytes)) {
    case IntakeBudget::Share::Grown::kYes:
      return true;
    case IntakeBudget::Share::Grown::kTotalFull:
      Reject(503, "the server holds all the request bodies that it can (" +
                      std::to_string(state_->options.max_total_body_bytes) +
                      " bytes); try again soon");
      return false;
    case IntakeBudget::Share::Grown::kPartyFull:
      Reject(503, "you are sending more request bodies at once than one client may (" +
                      std::to_string(state_->options.max_party_body_bytes) +
                      " bytes); send them one after the other");
      return false;
  }
  return false;
}

void HttpConnection::Dispatch(HttpRequest request) {
  read_deadline_ = kNever;
  SetPhase(Phase::kAnswering);
  auto exchange = std::make_shared<ServerExchange>(std::move(request), this, state_->loop);
  exchange_ = exchange.get();
  state_->handler(std::move(exchange));
}

}  // namespace aisp
