// HttpSocket: the socket of one HTTP connection, plain or TLS, with only the operations that the
// connection needs. For net/ only. Loop thread only.
//
// TLS runs directly on the non-blocking descriptor: OpenSSL is called first, and the socket is
// awaited when it wants to wait. So a cancelled wait never loses decrypted data.
#pragma once

#include "net/io_loop_impl.h"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/compose.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <memory>
#include <utility>

#include "net/loop_turns.h"
#include "net/tls_context.h"

namespace aisp {

class HttpSocket {
 public:
  using Tcp = boost::asio::ip::tcp;
  using error_code = boost::system::error_code;
  using executor_type = Tcp::socket::executor_type;

  // `tls` null: plain.
  HttpSocket(Tcp::socket socket, const TlsContext* tls);

  executor_type get_executor() { return socket_.get_executor(); }
  bool tls() const { return ssl_ != nullptr; }

  // The TLS handshake, each step in its turn. False when it failed, with the reason for the log.
  boost::asio::awaitable<bool> Handshake(std::shared_ptr<LoopTurns> turns, std::string address,
                                         std::string* why);

  template <typename Buffers, typename Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_compose<Token, void(error_code, size_t)>(
        ReadOperation{this, First(buffers)}, token, socket_);
  }
  template <typename Token>
  auto async_wait(Tcp::socket::wait_type what, Token&& token) {
    return socket_.async_wait(what, std::forward<Token>(token));
  }
  // As the plain socket's: would_block when nothing can be written now.
  size_t write_some(boost::asio::const_buffer bytes, error_code& ec);

  void ShutdownSend(error_code& ec);
  // Bytes in the kernel that the client has not acknowledged.
  size_t Unacknowledged();
  void cancel(error_code& ec) { ec = socket_.cancel(ec); }
  void close(error_code& ec) { ec = socket_.close(ec); }
  template <typename Option>
  void set_option(const Option& option, error_code& ec) {
    socket_.set_option(option, ec);
  }

 private:
  enum class Wants { kNothing, kRead, kWrite };

  template <typename Buffers>
  static boost::asio::mutable_buffer First(const Buffers& buffers) {
    const auto end = boost::asio::buffer_sequence_end(buffers);
    for (auto it = boost::asio::buffer_sequence_begin(buffers); it != end; ++it) {
      if (boost::asio::mutable_buffer(*it).size() > 0) return *it;
    }
    return {};
  }

  // One read. At most one wait at a time; never completes inside the initiating call.
  struct ReadOperation {
    HttpSocket* socket;
    boost::asio::mutable_buffer buffer;
    bool started = false;
    bool posted = false;
    error_code posted_ec = {};
    size_t posted_bytes = 0;

    template <typename Self>
    void operator()(Self& self, error_code ec = {}, size_t n = 0) {
      const bool first = !std::exchange(started, true);
      if (!socket->tls()) {
        if (first) return socket->socket_.async_read_some(buffer, std::move(self));
        return self.complete(ec, n);
      }
      if (posted) return self.complete(posted_ec, posted_bytes);
      if (ec) return self.complete(ec, 0);
      Wants wants = Wants::kNothing;
      n = socket->TlsRead(buffer, ec, wants);
      if (wants != Wants::kNothing) {
        const auto what = wants == Wants::kRead ? Tcp::socket::wait_read : Tcp::socket::wait_write;
        return socket->socket_.async_wait(what, std::move(self));
      }
      if (!first) return self.complete(ec, n);
      posted = true;
      posted_ec = ec;
      posted_bytes = n;
      boost::asio::post(socket->get_executor(), std::move(self));
    }
  };

  size_t TlsRead(boost::asio::mutable_buffer buffer, error_code& ec, Wants& wants);
  // What to do after an OpenSSL call returned `rc`.
  Wants After(int rc, error_code& ec) const;

  Tcp::socket socket_;
  SslPtr ssl_;
};

}  // namespace aisp
