// What `aisp up --demo` asks for.
#include "commands/demo.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "tests/net/loopback_listener.h"

namespace aisp {
namespace {

// The body of the one request that `listener` gets, which is answered with an empty stream.
std::string BodyOfOneRequest(const LoopbackListener& listener) {
  const UniqueDescriptor client = listener.Accept();
  std::string asked;
  char buffer[4096];
  while (!nlohmann::json::accept(asked.substr(std::min(asked.size(), asked.find("\r\n\r\n"))))) {
    const ssize_t n = recv(client.get(), buffer, sizeof(buffer), 0);
    if (n <= 0) return "";
    asked.append(buffer, static_cast<size_t>(n));
  }
  const std::string answer =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
      "data: [DONE]\n\n";
  send(client.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
  return asked.substr(asked.find("\r\n\r\n"));
}

// The built-in model ends a few of a hundred answers after one token.
TEST(Demo, AsksForAStoryOfSomeLength) {
  const LoopbackListener listener;
  std::string body;
  std::thread server([&] { body = BodyOfOneRequest(listener); });
  const Status told = StreamStory(listener.address());
  server.join();
  ASSERT_TRUE(told) << told.error().message;
  const nlohmann::json asked = nlohmann::json::parse(body);
  EXPECT_GE(asked.value("min_tokens", 0), 50) << body;
  EXPECT_EQ(asked["stream"], true);
}

}  // namespace
}  // namespace aisp
