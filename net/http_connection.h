// One connection of the HttpServer: reads requests one after the other, hands each to the handler as an HttpExchange, and
// sends what is answered. Inside net/ only (it brings Asio).
//
// Ownership: the coroutine Run() and the pending operations own the connection; it ends when they do. Connection and exchange
// know each other by plain pointers that each clears in its destructor, so a handler may keep an exchange as long as it likes.
// Loop thread only.
//
// A connection is in one phase: idle -> reading -> answering -> idle ... -> lingering. `read_deadline_` bounds idle, reading and
// lingering, `write_deadline_` the time without progress of sending; the server sweeps over both.
#pragma once

#include "net/io_loop_impl.h"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <memory>
#include <string>
#include <unordered_set>

#include "common/clock.h"
#include "net/http_server.h"

namespace aisp {

class HttpConnection;
class ServerExchange;

// What the connections of one server share.
struct HttpServerState {
  IoLoop* loop = nullptr;
  HttpServerOptions options;
  HttpServer::Handler handler;
  SteadyClock clock;
  std::unordered_set<HttpConnection*> connections;
  size_t body_bytes = 0;  // what the connections have reserved
  bool draining = false;
  bool stopped = false;  // the server is destroyed
  // The set of connections has shrunk.
  std::function<void()> on_closed;
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  // `refuse`: the server is full; the connection is told so and ends.
  HttpConnection(boost::asio::ip::tcp::socket socket, std::string peer,
                 std::shared_ptr<HttpServerState> state, bool refuse);
  ~HttpConnection();

  void Start();
  void CheckDeadlines(Instant now);
  // Closes when it stays idle, else after the next answer that begins.
  void Drain();
  // The client is gone, or shall be: the exchange hears why, the socket closes. `reset`: what the kernel still holds for the
  // client is thrown away.
  void Vanish(HttpExchange::Gone why, bool reset);

  // For the exchange.
  void Respond(int status, const HttpHeaders& headers, std::string body);
  void BeginStream(int status, const HttpHeaders& headers);
  void Write(std::string_view bytes);
  void End();
  void ExchangeDropped(bool streaming);
  size_t unsent_bytes() const { return pending_.size() + out_.size() - out_sent_; }

 private:
  enum class Phase { kIdle, kReading, kAnswering, kLingering };

  boost::asio::awaitable<void> Run();
  boost::asio::awaitable<bool> ReadRequest();
  boost::asio::awaitable<void> AwaitAnswer();
  boost::asio::awaitable<void> Linger();
  boost::asio::awaitable<bool> AwaitBytes();
  bool ReserveBody(size_t bytes);
  void NameRequest(std::string_view given);
  void Reject(int status, std::string_view message);
  void WakeReader();
  void CompleteAnswer();
  void ScheduleFlush();
  void Flush();
  bool FillOut();
  // Decides, as the head of an answer is written, whether the connection ends with it.
  bool AnnounceClose() { return closing_ = !keep_alive_ || state_->draining; }
  Duration IdleTimeout() const;

  boost::asio::ip::tcp::socket socket_;
  const std::string peer_;
  const std::shared_ptr<HttpServerState> state_;
  const bool refuse_;
  Phase phase_ = Phase::kIdle;
  bool dead_ = false;
  bool timed_out_ = false;
  bool peer_ended_ = false;    // its FIN was read
  bool reader_waits_ = false;  // the coroutine sleeps in a read that WakeReader may cancel
  bool first_request_ = true;
  Instant read_deadline_ = kNever;
  Instant write_deadline_ = kNever;
  boost::beast::flat_buffer buffer_;  // what was read and not parsed yet

  size_t reserved_body_ = 0;

  // The answer in progress.
  std::string request_id_;
  ServerExchange* exchange_ = nullptr;
  bool keep_alive_ = true;
  bool closing_ = false;  // the client was told that this answer is the last
  bool http_1_0_ = false;
  bool head_request_ = false;  // HEAD: the body is left out
  bool chunked_ = false;
  bool complete_ = false;  // the handler has said everything
  bool sent_ = false;      // and the kernel has taken it
  bool last_chunk_due_ = false;
  std::string pending_;  // body bytes of a stream, not framed yet
  std::string out_;      // bytes for the socket
  size_t out_sent_ = 0;
  bool flush_posted_ = false;
  bool waits_writable_ = false;
};

}  // namespace aisp
