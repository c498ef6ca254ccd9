// The HttpExchange that a connection passes to the handler. For net/ only. Loop thread only.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "net/http_server.h"
#include "net/io_loop.h"

namespace aisp {

class HttpConnection;

// Invariant: connection_ is set exactly while the answer is incomplete and the client is there.
class ServerExchange final : public HttpExchange,
                             public std::enable_shared_from_this<ServerExchange> {
 public:
  ServerExchange(HttpRequest request, HttpConnection* connection, IoLoop* loop);
  ~ServerExchange() override;

  const HttpRequest& request() const override { return request_; }
  void Respond(int status, HttpHeaders headers, std::string body) override;
  void BeginStream(int status, HttpHeaders headers) override;
  void Write(std::string_view bytes) override;
  void End() override;
  size_t unsent_bytes() const override;
  bool alive() const override { return connection_ != nullptr; }
  void OnDisconnect(std::function<void(Gone)> handler) override;

  // Called by the connection when the answer is complete or the connection is destroyed.
  void Detach() { connection_ = nullptr; }
  // The client is gone; the handler is told in a later turn of the loop.
  void Lose(Gone why);

 private:
  void PostGone();

  const HttpRequest request_;
  HttpConnection* connection_;
  IoLoop* const loop_;
  bool streaming_ = false;
  bool answered_ = false;
  bool gone_ = false;
  Gone why_ = Gone::kClosed;
  std::function<void(Gone)> on_disconnect_;
};

}  // namespace aisp
