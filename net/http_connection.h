// One connection of the HttpServer: reads requests in turn, passes each to the handler as an
// HttpExchange, and sends the answers. For net/ only (it includes Asio).
//
// Ownership: the coroutine Run() and the pending operations own the connection. Connection and
// exchange refer to each other by plain pointers that each clears in its destructor, so a handler
// may keep an exchange as long as it likes. Loop thread only.
//
// A connection is in one phase: idle -> reading -> answering -> idle ... -> lingering.
// `read_deadline_` bounds idle, reading and lingering. `write_deadline_` bounds the time in which a
// client with pending bytes must take some. The server checks both periodically.
#pragma once

#include "net/io_loop_impl.h"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "common/clock.h"
#include "net/http_server.h"
#include "net/http_socket.h"
#include "net/intake_budget.h"

namespace aisp {

class HttpConnection;
class ServerExchange;

// Shared by the connections of one server.
struct HttpServerState {
  explicit HttpServerState(HttpServerOptions o)
      : options(std::move(o)),
        bodies({options.max_total_body_bytes, options.max_party_body_bytes}),
        answers({options.max_total_body_bytes, options.max_total_body_bytes}) {}

  IoLoop* loop = nullptr;
  std::shared_ptr<const TlsContext> tls;  // null: plain HTTP
  const std::shared_ptr<LoopTurns> handshakes = std::make_shared<LoopTurns>();
  HttpServerOptions options;
  HttpServer::Handler handler;
  SteadyClock clock;
  std::unordered_set<HttpConnection*> connections;
  IntakeBudget bodies;
  IntakeBudget answers;  // memory of whole answers while they are sent
  // By address: connections without a running request that never had an authenticated one.
  std::unordered_map<std::string, size_t> waiting;
  // By party (tenant, or address if unknown): connections without a running request, longest first.
  std::unordered_map<std::string, std::list<HttpConnection*>> resting;
  size_t refusing = 0;  // connections that only receive a refusal
  size_t leaving = 0;   // connections that are closing to make room
  // Closes the longest-resting connection of the party with the most, if that is more than `party`
  // has, for which there is no room. False when there is none.
  bool MakeRoomFor(const std::string& party);
  bool draining = false;
  bool stopped = false;  // the server was destroyed
  // Called when a connection was removed.
  std::function<void()> on_closed;
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  struct Peer {
    std::string name;     // host:port
    std::string address;  // its party until it authenticates
  };
  // `refusal`: if not empty, answers 503 with it and closes.
  HttpConnection(boost::asio::ip::tcp::socket socket, Peer peer,
                 std::shared_ptr<HttpServerState> state, std::string refusal);
  ~HttpConnection();

  void Start();
  void CheckDeadlines(Instant now);
  // Closes when idle for drain_idle, else after the next answer.
  void Drain();
  // The client is gone or is to be cut: tells the exchange why and closes. `reset`: discards what
  // the kernel still holds for the client.
  void Vanish(HttpExchange::Gone why, bool reset);

  // Closes a resting connection as if it had timed out.
  void Leave();

  // Called by the exchange.
  void Respond(int status, const HttpHeaders& headers, std::string body);
  void BeginStream(int status, const HttpHeaders& headers);
  void Write(std::string_view bytes);
  void End();
  void ExchangeDropped(bool streaming);
  size_t unsent_bytes() const { return pending_.size() + out_.size() - out_sent_; }

 private:
  enum class Phase { kIdle, kReading, kAnswering, kLingering };
  struct Intake;  // the request being read (http_intake.cc)

  boost::asio::awaitable<void> Run();
  // In http_intake.cc. True: the handler has got a request. False with complete_ set: an error was
  // answered. Otherwise the connection ends.
  boost::asio::awaitable<bool> ReadRequest();
  // Delays the next read after repeated refusals for lack of room.
  boost::asio::awaitable<void> Pause();
  boost::asio::awaitable<bool> ReadHead(Intake* intake);
  bool AcceptHead(Intake* intake);
  boost::asio::awaitable<bool> ReadBody(Intake* intake);
  bool GrowBody(size_t bytes);
  std::string RefuseChunk(uint64_t size, std::string_view extension) const;
  void RejectIntake(const boost::system::error_code& ec, const std::string& why = "");
  void Dispatch(HttpRequest request);
  // Updates whether this connection counts in state_->waiting.
  void CountWaiting();
  // Moves it to the resting list of `party`; "": to none.
  void RestFor(const std::string& party);
  void SetPhase(Phase phase);
  boost::asio::awaitable<void> AwaitAnswer();
  boost::asio::awaitable<void> Linger();
  boost::asio::awaitable<bool> AwaitBytes();
  void NameRequest(std::string_view given);
  void Reject(int status, std::string_view message);
  // Whether the client took less than min_taken_bytes since the last check, with bytes pending.
  bool Trickles();
  void WakeReader();
  void CompleteAnswer();
  void ScheduleFlush();
  void Flush();
  bool FillOut();
  // Decides when an answer's head is written whether the connection then closes.
  bool AnnounceClose() { return closing_ = !keep_alive_ || state_->draining; }
  Duration IdleTimeout() const;

  HttpSocket socket_;
  const Peer peer_;
  const std::shared_ptr<HttpServerState> state_;
  const std::string refusal_;
  Phase phase_ = Phase::kIdle;
  bool dead_ = false;
  bool timed_out_ = false;
  bool peer_ended_ = false;    // the client's FIN was read
  bool reader_waits_ = false;  // the coroutine is in a read that WakeReader may cancel
  bool first_request_ = true;
  Instant read_deadline_ = kNever;
  Instant write_deadline_ = kNever;
  boost::beast::flat_buffer buffer_;  // bytes read and not yet parsed

  IntakeBudget::Share body_;  // of the current request
  bool known_ = false;        // an authenticated request has arrived here
  bool waits_ = false;        // counted in state_->waiting
  std::string party_;         // of the last request; initially the address
  std::string rests_for_;     // the list in state_->resting that holds this, and the position:
  std::list<HttpConnection*>::iterator rests_at_;
  bool leaving_ = false;
  int refused_in_row_ = 0;                        // consecutive answers of 429
  boost::asio::steady_timer* pausing_ = nullptr;  // set while reading is paused

  // State of the current answer.
  std::string request_id_;
  std::string path_;  // of the request being read, once its head was read
  ServerExchange* exchange_ = nullptr;
  bool keep_alive_ = true;
  bool closing_ = false;  // the client was told that the connection closes after this answer
  bool http_1_0_ = false;
  bool head_request_ = false;  // HEAD: no body is sent
  bool chunked_ = false;
  bool complete_ = false;  // the handler has finished the answer
  bool sent_ = false;      // and the kernel accepted all of it
  bool last_chunk_due_ = false;
  std::string pending_;  // body bytes not yet in out_; of a stream: not yet chunked
  std::string out_;      // bytes for the socket
  size_t out_sent_ = 0;
  IntakeBudget::Share answer_;  // memory of out_, for a whole answer
  // Bytes given to the kernel since write_deadline_ was set, and those it held at that time.
  size_t taken_ = 0;
  size_t held_before_ = 0;
  bool flush_posted_ = false;
  bool waits_writable_ = false;
};

}  // namespace aisp
