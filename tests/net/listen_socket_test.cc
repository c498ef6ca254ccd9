// Listening sockets that are inherited, and what draining does to new connections on them.
#include "net/listen_socket.h"

#include <unistd.h>

#include <future>
#include <optional>

#include "net/grpc_links.h"
#include "tests/net/http_fixture.h"
#include "tests/net/link_recorder.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;

TEST(ListenSocket, ATakenPortIsNamedWithTheWayOut) {
  const auto first = ListenOn("127.0.0.1", 0, "--port N");
  ASSERT_TRUE(first);
  const uint16_t port = PortOf(*first);
  EXPECT_NE(port, 0);
  EXPECT_TRUE(AdoptListenSocket(*first));
  const auto second = ListenOn("127.0.0.1:" + std::to_string(port), "--port N");
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kAlreadyExists);
  EXPECT_THAT(second.error().message, HasSubstr("--port N"));
  EXPECT_THAT(second.error().message, HasSubstr(std::to_string(port)));
  close(*first);
  EXPECT_FALSE(ListenOn("no-port", "--port N"));
  EXPECT_FALSE(ListenOn("999.1.1.1:0", "--port N"));
}

TEST(ListenSocket, WhatDoesNotListenIsNotAdopted) {
  const Status adopted = AdoptListenSocket(0);
  ASSERT_FALSE(adopted);
  EXPECT_THAT(adopted.error().message, HasSubstr("descriptor 0"));
}

class DrainTest : public HttpServerTest {
 protected:
  std::future<void> Drain() {
    loop_.On([&] { server_->Drain([&] { drained_.set_value(); }); });
    return drained_.get_future();
  }
  std::promise<void> drained_;
};

TEST_F(DrainTest, AKeptAliveConnectionIsAnsweredOnceMoreAndToldToClose) {
  StartServer();
  HttpClient client = Client();
  ASSERT_TRUE(client.Request("GET", "/before"));
  const auto done = Drain();
  const auto answer = client.Request("GET", "/after");
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->body, "GET /after?|");
  EXPECT_EQ(answer->Header("connection"), "close");
  EXPECT_FALSE(client.Request("GET", "/again"));
  EXPECT_EQ(done.wait_for(kWait), std::future_status::ready);
}

TEST_F(DrainTest, AnAnswerThatPromisedToKeepTheConnectionKeepsItsPromise) {
  Exchange held;
  std::promise<void> arrived;
  StartServer([&](const Exchange& exchange) {
    if (exchange->request().path != "/stream") return Echo(exchange);
    exchange->BeginStream(200, {});
    held = exchange;
    arrived.set_value();
  });
  HttpClient client = Client();
  const auto head = client.Open("GET", "/stream");
  ASSERT_TRUE(head);
  EXPECT_NE(head->Header("connection"), "close");
  arrived.get_future().wait();
  const auto done = Drain();
  loop_.On([&] { std::exchange(held, nullptr)->End(); });
  EXPECT_EQ(client.ReadRest().value(), "");
  const auto next = client.Request("GET", "/next");
  ASSERT_TRUE(next) << next.error().message;
  EXPECT_EQ(next->Header("connection"), "close");
  EXPECT_EQ(done.wait_for(kWait), std::future_status::ready);
}

TEST_F(DrainTest, WhatWaitsInTheQueueOfAnOwnSocketIsServed) {
  StartServer();
  // Connected while the loop is busy: the server has not accepted them when it drains.
  std::vector<HttpClient> waiting;
  loop_.On([&] {
    for (int i = 0; i < 20; ++i) waiting.push_back(Client());
    server_->Drain([&] { drained_.set_value(); });
  });
  for (HttpClient& client : waiting) {
    const auto answer = client.Request("GET", "/queued");
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(answer->Header("connection"), "close");
  }
  EXPECT_EQ(drained_.get_future().wait_for(kWait), std::future_status::ready);
  EXPECT_FALSE(HttpClient::Connect("127.0.0.1", port_, kWait));
}

TEST_F(DrainTest, WhatWaitsInTheQueueOfASharedSocketIsServedByTheSuccessor) {
  const int shared = *ListenOn("127.0.0.1", 0, "");
  options_.listen_fd = dup(shared);
  StartServer();
  const uint16_t port = port_;
  EXPECT_EQ(port, PortOf(shared));
  const auto done = Drain();
  EXPECT_EQ(done.wait_for(kWait), std::future_status::ready);
  HttpClient client = Client();  // nobody accepts
  loop_.On([&] { server_.reset(); });
  options_.listen_fd = shared;
  StartServer();
  EXPECT_EQ(client.Request("GET", "/")->body, "GET /?|");
}

TEST(SharedGrpcSocket, ALinkGoesOnWhenItsServerStopsAcceptingAndTheNextOneIsTheSuccessors) {
  const int shared = *ListenOn("127.0.0.1", 0, "");
  const std::string address = "127.0.0.1:" + std::to_string(PortOf(shared));
  LoopThread loop;
  const Poster post = [&loop](std::function<void()> fn) { loop.loop().Post(std::move(fn)); };
  RouterRecorder old_router(&loop.loop()), new_router(&loop.loop());
  WorkerRecorder worker(&loop.loop());
  std::optional<GrpcServer> old_server(std::in_place), new_server(std::in_place);
  auto* old_sender = old_server->ServeRouterControl(&old_router, post);
  new_server->ServeRouterControl(&new_router, post);
  ASSERT_TRUE(old_server->StartOn(dup(shared)));
  EXPECT_EQ(old_server->port(), PortOf(shared));
  auto dialer = MakeRouterDialer(&worker, post);
  LinkId first, second;
  loop.On([&] { first = dialer->Dial(address); });
  ASSERT_TRUE(worker.AwaitUp(1));

  old_server->StopAccepting();
  loop.On([&] { second = dialer->Dial(address); });
  ASSERT_TRUE(new_server->StartOn(shared));
  ASSERT_TRUE(worker.AwaitUp(2));
  loop.On([&] {
    dialer->Send(first, WorkerText("to the old one"));
    dialer->Send(second, WorkerText("to the new one"));
    old_sender->Send(old_router.log().ups.at(0).first, RouterText("still here"));
  });
  ASSERT_TRUE(old_router.AwaitMessages(1));
  ASSERT_TRUE(new_router.AwaitMessages(1));
  ASSERT_TRUE(worker.AwaitMessages(1));
  EXPECT_EQ(old_router.log().messages[0].second, "to the old one");
  EXPECT_EQ(new_router.log().messages[0].second, "to the new one");
  old_server.reset();
  ASSERT_TRUE(worker.AwaitDown(1));
  EXPECT_EQ(worker.log().downs[0].first, first);
  loop.On([&] { dialer.reset(); });
  new_server.reset();
  loop.Stop();
}

}  // namespace
}  // namespace aisp
