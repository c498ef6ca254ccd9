#include "net/http_connection.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <ctime>

#include "common/check.h"
#include "common/log.h"
#include "net/http_exchange.h"
#include "net/http_message.h"

namespace aisp {
namespace asio = boost::asio;
using boost::system::error_code;

namespace {

// Bytes that one connection may send before the loop serves others.
constexpr size_t kSendBudget = 256 << 10;
constexpr size_t kReadChunk = 16 << 10;
// Buffer while only the client's end is expected, as for thousands of streams.
constexpr size_t kWatchChunk = 512;
// Smaller answers do not count towards the limit of whole answers.
constexpr size_t kSmallAnswer = 16 << 10;
// How long a closing connection waits for the client to read the last answer.
constexpr Duration kLingerTime = std::chrono::seconds(1);

auto Into(error_code& ec) { return asio::redirect_error(asio::use_awaitable, ec); }

asio::awaitable<void> KeepAlive(std::shared_ptr<HttpConnection> connection,
                                asio::awaitable<void> run) {
  co_await std::move(run);
  connection.reset();
}

}  // namespace

HttpConnection::HttpConnection(asio::ip::tcp::socket socket, Peer peer,
                               std::shared_ptr<HttpServerState> state, std::string refusal)
    : socket_(std::move(socket), state->tls.get()),
      peer_(std::move(peer)),
      state_(std::move(state)),
      refusal_(std::move(refusal)),
      buffer_(state_->options.max_header_bytes + kReadChunk),
      party_(peer_.address) {
  state_->connections.insert(this);
  if (!refusal_.empty()) ++state_->refusing;
  SetPhase(Phase::kIdle);
}

HttpConnection::~HttpConnection() {
  if (exchange_ != nullptr) exchange_->Detach();
  known_ = true;
  CountWaiting();
  RestFor("");
  if (leaving_) --state_->leaving;
  if (!refusal_.empty()) --state_->refusing;
  state_->connections.erase(this);
  if (state_->on_closed && !state_->stopped) state_->on_closed();
}

void HttpConnection::Start() {
  asio::co_spawn(socket_.get_executor(), KeepAlive(shared_from_this(), Run()), asio::detached);
}

asio::awaitable<void> HttpConnection::Run() {
  if (socket_.tls()) {
    phase_ = Phase::kReading;
    read_deadline_ = state_->clock.Now() + state_->options.read_timeout;
    std::string why;
    const bool greeted = co_await socket_.Handshake(state_->handshakes, peer_.address, &why);
    read_deadline_ = kNever;
    if (!greeted) {
      LogInfo("TLS handshake failed", {{"peer", peer_.name}, {"why", why}});
      error_code ignored;
      socket_.close(ignored);
      co_return;
    }
  }
  if (!refusal_.empty()) {
    Reject(503, refusal_);
    co_await AwaitAnswer();
  }
  while (!dead_ && refusal_.empty()) {
    const bool dispatched = co_await ReadRequest();
    if (!dispatched && !complete_) break;
    co_await AwaitAnswer();
    if (closing_) break;
    // Pipelined requests must not keep the loop from other connections.
    if (buffer_.size() > 0) co_await asio::post(socket_.get_executor(), asio::use_awaitable);
  }
  if (!dead_) co_await Linger();
  error_code ignored;
  socket_.close(ignored);
}

// One read into buffer_; false when the connection ended, timed out or WakeReader was called.
asio::awaitable<bool> HttpConnection::AwaitBytes() {
  error_code ec;
  reader_waits_ = true;
  const size_t room = phase_ == Phase::kAnswering ? kWatchChunk : kReadChunk;
  const size_t n = co_await socket_.async_read_some(buffer_.prepare(room), Into(ec));
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

// Waits until the answer is sent or the client is gone, watching the socket. Bytes that arrive
// belong to the next request; beyond the size of a head they stay in the kernel.
asio::awaitable<void> HttpConnection::AwaitAnswer() {
  if (buffer_.size() == 0) {
    buffer_.clear();
    buffer_.shrink_to_fit();
  }
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

// Closing with unread input makes the kernel send a reset, which may destroy the answer in transit.
asio::awaitable<void> HttpConnection::Linger() {
  SetPhase(Phase::kLingering);
  timed_out_ = false;
  read_deadline_ = state_->clock.Now() + kLingerTime;
  error_code ec;
  socket_.ShutdownSend(ec);
  buffer_.clear();
  while (!ec && !timed_out_ && !peer_ended_ && !dead_) {
    co_await socket_.async_read_some(buffer_.prepare(kReadChunk), Into(ec));
  }
}

void HttpConnection::CheckDeadlines(Instant now) {
  if (dead_) return;
  if (now >= write_deadline_ && Trickles()) return Vanish(HttpExchange::Gone::kSlowReader, true);
  if (now < read_deadline_) return;
  timed_out_ = true;
  if (pausing_ != nullptr) pausing_->cancel();
  error_code ignored;
  socket_.cancel(ignored);
}

// The kernel accepts megabytes at once, so progress is measured by what the client acknowledged.
bool HttpConnection::Trickles() {
  const size_t holds = socket_.Unacknowledged();
  const size_t acknowledged = held_before_ + taken_ - std::min(holds, held_before_ + taken_);
  if (acknowledged < state_->options.min_taken_bytes) return true;
  write_deadline_ = state_->clock.Now() + state_->options.write_timeout;
  held_before_ = holds;
  taken_ = 0;
  return false;
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
  if (pausing_ != nullptr) pausing_->cancel();
  error_code ignored;
  if (reset) socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  socket_.close(ignored);
}

void HttpConnection::SetPhase(Phase phase) {
  phase_ = phase;
  CountWaiting();
  const bool rests = refusal_.empty() && (phase == Phase::kIdle || phase == Phase::kReading);
  RestFor(rests && !leaving_ ? party_ : "");
}

// A connection that stays with its party keeps its position.
void HttpConnection::RestFor(const std::string& party) {
  if (party == rests_for_) return;
  if (!rests_for_.empty()) {
    const auto from = state_->resting.find(rests_for_);
    from->second.erase(rests_at_);
    if (from->second.empty()) state_->resting.erase(from);
  }
  rests_for_ = party;
  if (party.empty()) return;
  auto& to = state_->resting[party];
  rests_at_ = to.insert(to.end(), this);
}

void HttpConnection::Leave() {
  leaving_ = true;
  ++state_->leaving;
  RestFor("");
  read_deadline_ = state_->clock.Now();
  CheckDeadlines(read_deadline_);
}

void HttpConnection::CountWaiting() {
  const bool waits = !known_ && refusal_.empty() && phase_ != Phase::kAnswering;
  if (waits == std::exchange(waits_, waits)) return;
  if (waits) {
    ++state_->waiting[peer_.address];
    return;
  }
  const auto it = state_->waiting.find(peer_.address);
  if (--it->second == 0) state_->waiting.erase(it);
}

void HttpConnection::NameRequest(std::string_view given) {
  if (state_->options.request_id) request_id_ = state_->options.request_id(given);
}

void HttpConnection::Reject(int status, std::string_view message) {
  keep_alive_ = false;
  if (request_id_.empty()) NameRequest("");
  LogInfo("http request refused",
          {{"request", request_id_}, {"peer", peer_.name}, {"status", status}, {"error", message}});
  SetPhase(Phase::kAnswering);
  const auto& error_body = state_->options.error_body;
  HttpHeaders headers{{"Content-Type", error_body ? "application/json" : "text/plain"}};
  if (status == 503) headers.emplace_back("Retry-After", "1");
  Respond(
      status, headers,
      error_body ? error_body({path_, request_id_}, status, message) : std::string(message) + "\n");
}

void HttpConnection::Respond(int status, const HttpHeaders& headers, std::string body) {
  answer_ = IntakeBudget::Share(&state_->answers, "");
  refused_in_row_ = status == 429 ? refused_in_row_ + 1 : 0;
  // Reject's own answer is small, so this does not recurse further.
  if (body.size() > kSmallAnswer && answer_.GrowTo(body.size()) != IntakeBudget::Share::Grown::kYes)
    return Reject(503, "the answers that wait for slow clients fill http.max_total_body");
  HttpHead head;
  head.status = status;
  head.headers = &headers;
  head.request_id = request_id_;
  head.content_length = body.size();
  head.close = AnnounceClose();
  head.http_1_0 = http_1_0_;
  head.now_s = std::time(nullptr);
  AppendHead(head, &out_);
  if (!head_request_ && StatusHasBody(status)) pending_ = std::move(body);
  CompleteAnswer();
  Flush();
}

void HttpConnection::BeginStream(int status, const HttpHeaders& headers) {
  refused_in_row_ = 0;
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
  LogWarning("http_exchange_dropped",
             {{"request", request_id_}, {"peer", peer_.name}, {"streaming", streaming}});
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

// Moves pending output to out_; false when there is none.
bool HttpConnection::FillOut() {
  const bool empty = out_sent_ == out_.size();
  if (empty || (!pending_.empty() && out_sent_ > out_.size() / 2)) {
    out_.erase(0, out_sent_);
    out_sent_ = 0;
    if (out_.empty() && out_.capacity() > kSendBudget) out_.shrink_to_fit();
  }
  if (chunked_) {
    AppendChunk(pending_, &out_);
  } else if (pending_.size() <= kSmallAnswer) {
    out_.append(pending_);
  } else {
    // Swap only: copying tens of megabytes would block the loop.
    if (!empty) return true;
    out_.swap(pending_);
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
      if (write_deadline_ == kNever) {
        write_deadline_ = state_->clock.Now() + state_->options.write_timeout;
        held_before_ = socket_.Unacknowledged();
        taken_ = 0;
      }
      socket_.async_wait(asio::ip::tcp::socket::wait_write,
                         [self = shared_from_this()](const error_code& wait_ec) {
                           self->waits_writable_ = false;
                           if (!wait_ec) self->Flush();
                         });
      return;
    }
    if (ec) return Vanish(HttpExchange::Gone::kClosed, false);
    out_sent_ += n;
    taken_ += n;
    budget -= n;
  }
  write_deadline_ = kNever;
  if (complete_ && !sent_) {
    sent_ = true;
    answer_ = {};
    WakeReader();
  }
}

}  // namespace aisp
