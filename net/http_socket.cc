#include "net/http_socket.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <climits>

namespace aisp {
namespace asio = boost::asio;

HttpSocket::HttpSocket(Tcp::socket socket, const TlsContext* tls) : socket_(std::move(socket)) {
  if (tls == nullptr) return;
  error_code ec;  // an error shows again at the first read
  ec = socket_.native_non_blocking(true, ec);
  ssl_ = tls->Accept(socket_.native_handle());
}

HttpSocket::Wants HttpSocket::After(int rc, error_code& ec) const {
  switch (SSL_get_error(ssl_.get(), rc)) {
    case SSL_ERROR_WANT_READ:
      return Wants::kRead;
    case SSL_ERROR_WANT_WRITE:
      return Wants::kWrite;
    case SSL_ERROR_ZERO_RETURN:
      ec = asio::error::eof;
      return Wants::kNothing;
    case SSL_ERROR_SYSCALL:
      if (errno != 0) {
        ec = error_code(errno, boost::system::system_category());
      } else {
        ec = asio::error::eof;
      }
      return Wants::kNothing;
    default:
      ec = asio::error::connection_reset;
      return Wants::kNothing;
  }
}

size_t HttpSocket::TlsRead(asio::mutable_buffer buffer, error_code& ec, Wants& wants) {
  ERR_clear_error();
  errno = 0;
  const int size = static_cast<int>(std::min<size_t>(buffer.size(), INT_MAX));
  const int rc = SSL_read(ssl_.get(), buffer.data(), size);
  if (rc > 0) return static_cast<size_t>(rc);
  wants = After(rc, ec);
  return 0;
}

size_t HttpSocket::write_some(asio::const_buffer bytes, error_code& ec) {
  if (!tls()) return socket_.write_some(asio::const_buffers_1(bytes), ec);
  ERR_clear_error();
  errno = 0;
  const int size = static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX));
  const int rc = SSL_write(ssl_.get(), bytes.data(), size);
  if (rc > 0) return static_cast<size_t>(rc);
  if (After(rc, ec) != Wants::kNothing) ec = asio::error::would_block;
  return 0;
}

size_t HttpSocket::Unacknowledged() {
  int bytes = 0;
  return ioctl(socket_.native_handle(), SIOCOUTQ, &bytes) == 0 && bytes > 0
             ? static_cast<size_t>(bytes)
             : 0;
}

void HttpSocket::ShutdownSend(error_code& ec) {
  if (tls() && SSL_is_init_finished(ssl_.get()) != 0) {
    ERR_clear_error();
    SSL_shutdown(ssl_.get());  // sends close_notify; the peer's is not awaited
  }
  ec = socket_.shutdown(Tcp::socket::shutdown_send, ec);
}

asio::awaitable<bool> HttpSocket::Handshake(std::shared_ptr<LoopTurns> turns, std::string address,
                                            std::string* why) {
  if (!tls()) co_return true;
  for (;;) {
    int rc = 0;
    error_code ec;
    Wants wants = Wants::kNothing;
    {
      const auto turn = co_await turns->Take(get_executor(), address);
      // Closed during the wait: the descriptor may already be another connection's.
      if (!socket_.is_open()) {
        *why = "the connection ended";
        co_return false;
      }
      ERR_clear_error();
      errno = 0;
      rc = SSL_accept(ssl_.get());
      if (rc != 1) wants = After(rc, ec);
    }
    if (rc == 1) co_return true;
    if (wants == Wants::kNothing) {
      *why = TlsErrorText();
      co_return false;
    }
    const auto what = wants == Wants::kRead ? Tcp::socket::wait_read : Tcp::socket::wait_write;
    co_await socket_.async_wait(what, asio::redirect_error(asio::use_awaitable, ec));
    if (ec) {
      *why = "it took too long, or the connection ended";
      co_return false;
    }
  }
}

}  // namespace aisp
