// One connection of the HttpServer: reads requests one after the other, hands each to the handler
// as an HttpExchange, and sends what is answered. Inside net/ only (it brings Asio).
//
// Ownership: the coroutine Run() and the pending operations own the connection; it ends when they
// do. Connection and exchange know each other by plain pointers that each clears in its destructor,
// so a handler may keep an exchange as long as it likes. Loop thread only.
//
// A connection is in one phase: idle -> reading -> answering -> idle ... -> lingering.
// `read_deadline_` bounds idle, reading and lingering, `write_deadline_` the time in which a client
// for whom bytes wait must take some; the server sweeps over both.
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

// What the connections of one server share.
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
  IntakeBudget answers;  // whole ones, while they are sent
  // By address: connections that wait for a request of somebody unknown.
  std::unordered_map<std::string, size_t> waiting;
  // By tenant, or address of somebody unknown: connections without a running request, the one that
  // has been so for longest first.
  std::unordered_map<std::string, std::list<HttpConnection*>> resting;
  size_t refusing = 0;  // connections that are only told why they are refused
  size_t leaving = 0;   // connections that make room for others
  // Ends the oldest resting connection of the party that has most of them, and more than `party`,
  // for which there is no room. False: there is none.
  bool MakeRoomFor(const std::string& party);
  bool draining = false;
  bool stopped = false;  // the server is destroyed
  // The set of connections has shrunk.
  std::function<void()> on_closed;
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  struct Peer {
    std::string name;     // host:port
    std::string address;  // its party while it is unknown
  };
  // `refusal`: when not empty the connection is told so (503) and ends.
  HttpConnection(boost::asio::ip::tcp::socket socket, Peer peer,
                 std::shared_ptr<HttpServerState> state, std::string refusal);
  ~HttpConnection();

  void Start();
  void CheckDeadlines(Instant now);
  // Closes when it stays idle, else after the next answer that begins.
  void Drain();
  // The client is gone, or shall be: the exchange hears why, the socket closes. `reset`: what the
  // kernel still holds for the client is thrown away.
  void Vanish(HttpExchange::Gone why, bool reset);

  // For one that rests: it ends as if its time were over.
  void Leave();

  // For the exchange.
  void Respond(int status, const HttpHeaders& headers, std::string body);
  void BeginStream(int status, const HttpHeaders& headers);
  void Write(std::string_view bytes);
  void End();
  void ExchangeDropped(bool streaming);
  size_t unsent_bytes() const { return pending_.size() + out_.size() - out_sent_; }

 private:
  enum class Phase { kIdle, kReading, kAnswering, kLingering };
  struct Intake;  // of the request that is being read (http_intake.cc)

  boost::asio::awaitable<void> Run();
  // http_intake.cc. True when the handler has got a request. False with complete_: it was answered
  // with an error; else: the connection ends.
  boost::asio::awaitable<bool> ReadRequest();
  // Of one whose requests are refused for want of room, one after the other: as long as it was told
  // to wait before it tries again.
  boost::asio::awaitable<void> Pause();
  boost::asio::awaitable<bool> ReadHead(Intake* intake);
  bool AcceptHead(Intake* intake);
  boost::asio::awaitable<bool> ReadBody(Intake* intake);
  bool GrowBody(size_t bytes);
  std::string RefuseChunk(uint64_t size, std::string_view extension) const;
  void RejectIntake(const boost::system::error_code& ec, const std::string& why = "");
  void Dispatch(HttpRequest request);
  // Whether the connection counts among those of its address that wait.
  void CountWaiting();
  // Whether it is among those of `party` that rest; "": it is not.
  void RestFor(const std::string& party);
  void SetPhase(Phase phase);
  boost::asio::awaitable<void> AwaitAnswer();
  boost::asio::awaitable<void> Linger();
  boost::asio::awaitable<bool> AwaitBytes();
  void NameRequest(std::string_view given);
  void Reject(int status, std::string_view message);
  // The client took little since the last look, though bytes waited for it all the time.
  bool Trickles();
  void WakeReader();
  void CompleteAnswer();
  void ScheduleFlush();
  void Flush();
  bool FillOut();
  // Decides, as the head of an answer is written, whether the connection ends with it.
  bool AnnounceClose() { return closing_ = !keep_alive_ || state_->draining; }
  Duration IdleTimeout() const;

  HttpSocket socket_;
  const Peer peer_;
  const std::shared_ptr<HttpServerState> state_;
  const std::string refusal_;
  Phase phase_ = Phase::kIdle;
  bool dead_ = false;
  bool timed_out_ = false;
  bool peer_ended_ = false;    // its FIN was read
  bool reader_waits_ = false;  // the coroutine sleeps in a read that WakeReader may cancel
  bool first_request_ = true;
  Instant read_deadline_ = kNever;
  Instant write_deadline_ = kNever;
  boost::beast::flat_buffer buffer_;  // what was read and not parsed yet

  IntakeBudget::Share body_;  // of the request in progress
  bool known_ = false;        // a request for a tenant came this way
  bool waits_ = false;        // counted in state_->waiting
  std::string party_;         // of the last request; at first its address
  std::string rests_for_;     // in state_->resting, at:
  std::list<HttpConnection*>::iterator rests_at_;
  bool leaving_ = false;
  int refused_in_row_ = 0;                        // answers of 429
  boost::asio::steady_timer* pausing_ = nullptr;  // while it is not read

  // The answer in progress.
  std::string request_id_;
  std::string path_;  // of the request that is being read, once its head is
  ServerExchange* exchange_ = nullptr;
  bool keep_alive_ = true;
  bool closing_ = false;  // the client was told that this answer is the last
  bool http_1_0_ = false;
  bool head_request_ = false;  // HEAD: the body is left out
  bool chunked_ = false;
  bool complete_ = false;  // the handler has said everything
  bool sent_ = false;      // and the kernel has taken it
  bool last_chunk_due_ = false;
  std::string pending_;  // body bytes that are not in out_ yet; of a stream: not framed yet
  std::string out_;      // bytes for the socket
  size_t out_sent_ = 0;
  IntakeBudget::Share answer_;  // of out_, when the answer is a whole one
  // Since write_deadline_ was set: what the kernel was given, and what of all it held then.
  size_t taken_ = 0;
  size_t held_before_ = 0;
  bool flush_posted_ = false;
  bool waits_writable_ = false;
};

}  // namespace aisp
