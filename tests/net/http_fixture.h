// A running HttpServer whose handler the test provides, and clients for it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "net/http_client.h"
#include "net/http_server.h"
#include "tests/net/loop_thread.h"

namespace aisp {

inline constexpr std::chrono::seconds kWait{20};

class HttpServerTest : public ::testing::Test {
 protected:
  using Exchange = std::shared_ptr<HttpExchange>;

  // Without a handler: the server echoes method, path, query and body.
  void StartServer(HttpServer::Handler handler = {}) {
    if (!handler) handler = [](const Exchange& exchange) { Echo(exchange); };
    options_.error_body = [](const HttpServerOptions::Refused& refused, int status,
                             std::string_view message) {
      return "{\"status\":" + std::to_string(status) + ",\"message\":\"" + std::string(message) +
             "\",\"path\":\"" + std::string(refused.path) + "\"}";
    };
    loop_.On([&] {
      server_ = std::make_unique<HttpServer>(&loop_.loop(), options_, std::move(handler));
      const Status started = server_->Start();
      ASSERT_TRUE(started) << started.error().ToString();
      port_ = server_->port();
    });
    ASSERT_NE(port_, 0);
  }
  void TearDown() override {
    loop_.On([&] { server_.reset(); });
    loop_.Stop();
  }

  static void Echo(const Exchange& exchange) {
    const HttpRequest& request = exchange->request();
    exchange->Respond(
        200, {{"Content-Type", "text/plain"}},
        request.method + " " + request.path + "?" + request.query + "|" + request.body);
  }

  HttpClient Client(Duration timeout = kWait) {
    auto client = HttpClient::Connect("127.0.0.1", port_, timeout);
    if (!client) {
      ADD_FAILURE() << client.error().ToString();
      std::abort();
    }
    return std::move(*client);
  }
  // Sends bytes and returns everything until the server closes.
  std::string Raw(std::string_view bytes) {
    HttpClient client = Client();
    EXPECT_TRUE(client.SendRaw(bytes));
    return client.ReceiveRaw().value_or("(connection lost)");
  }
  size_t Connections() {
    size_t count = 0;
    loop_.On([&] { count = server_->connections(); });
    return count;
  }

  HttpServerOptions options_;
  LoopThread loop_;
  std::unique_ptr<HttpServer> server_;
  uint16_t port_ = 0;
};

}  // namespace aisp
