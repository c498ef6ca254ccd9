// The contract of proto/link.h, for links over gRPC and inside one process.
#include <optional>

#include "net/grpc_links.h"
#include "net/local_links.h"
#include "tests/net/link_recorder.h"
#include "tests/net/loop_thread.h"

namespace aisp {
namespace {

// Small limits, so that tests reach them.
GrpcLinkOptions SmallBounds() {
  GrpcLinkOptions options;
  options.max_queued_messages = 200;
  options.max_queued_bytes = 1 << 20;
  options.max_message_bytes = 256 << 10;
  return options;
}

// The address at which the two sides connect.
class Network {
 public:
  virtual ~Network() = default;
  // The loop threads of both sides.
  virtual LinkSender<v1::RouterMessage>* Serve(RouterRecorder* handler, Poster post) = 0;
  virtual std::unique_ptr<LinkDialer<v1::WorkerMessage>> MakeDialer(WorkerRecorder* handler,
                                                                    Poster post) = 0;
  virtual void StopServing() = 0;
  virtual std::string address() const = 0;
};

class GrpcNetwork final : public Network {
 public:
  LinkSender<v1::RouterMessage>* Serve(RouterRecorder* handler, Poster post) override {
    server_.emplace();
    auto* sender = server_->ServeRouterControl(handler, std::move(post), SmallBounds());
    const Status started = server_->Start("127.0.0.1:" + std::to_string(port_));
    EXPECT_TRUE(started) << started.error().ToString();
    port_ = server_->port();
    return sender;
  }
  std::unique_ptr<LinkDialer<v1::WorkerMessage>> MakeDialer(WorkerRecorder* handler,
                                                            Poster post) override {
    return MakeRouterDialer(handler, std::move(post), SmallBounds());
  }
  void StopServing() override { server_.reset(); }
  std::string address() const override { return "127.0.0.1:" + std::to_string(port_); }

 private:
  std::optional<GrpcServer> server_;
  uint16_t port_ = 0;
};

class LocalNetwork final : public Network {
 public:
  LinkSender<v1::RouterMessage>* Serve(RouterRecorder* handler, Poster post) override {
    return hub_.ServeRouterControl(address(), handler, std::move(post));
  }
  std::unique_ptr<LinkDialer<v1::WorkerMessage>> MakeDialer(WorkerRecorder* handler,
                                                            Poster post) override {
    return hub_.MakeRouterDialer(handler, std::move(post));
  }
  void StopServing() override { hub_.StopServing(LinkKind::kRouterControl, address()); }
  std::string address() const override { return "router"; }

 private:
  LocalHub hub_{SmallBounds().max_queued_messages};
};

struct Kind {
  std::string name;
  std::function<std::unique_ptr<Network>()> make;
};

class Links : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    network_ = GetParam().make();
    Serve();
    OnWorker([&] { dialer_ = network_->MakeDialer(&worker_, PosterOf(&worker_loop_)); });
  }
  void TearDown() override {
    worker_.Block(false);
    router_.Block(false);
    OnWorker([&] { dialer_.reset(); });
    OnRouter([&] { network_->StopServing(); });
    worker_loop_.Stop();
    router_loop_.Stop();
    EXPECT_EQ(worker_.log().violations, 0);
    EXPECT_EQ(router_.log().violations, 0);
  }

  static Poster PosterOf(LoopThread* loop) {
    return [loop](std::function<void()> fn) { loop->loop().Post(std::move(fn)); };
  }
  void Serve() {
    OnRouter([&] { sender_ = network_->Serve(&router_, PosterOf(&router_loop_)); });
  }
  void OnWorker(const std::function<void()>& fn) {
    worker_loop_.On([&] {
      ++worker_.inside_call;
      fn();
      --worker_.inside_call;
    });
  }
  void OnRouter(const std::function<void()>& fn) {
    router_loop_.On([&] {
      ++router_.inside_call;
      fn();
      --router_.inside_call;
    });
  }
  LinkId Dial(const std::string& address) {
    LinkId link;
    OnWorker([&] { link = dialer_->Dial(address); });
    return link;
  }
  // Dials and waits for both sides; sets the ids of both.
  void Connect() {
    const size_t router_ups = router_.log().ups.size();
    const size_t worker_ups = worker_.log().ups.size();
    up_link_ = Dial(network_->address());
    ASSERT_TRUE(worker_.AwaitUp(worker_ups + 1));
    ASSERT_TRUE(router_.AwaitUp(router_ups + 1));
    down_link_ = router_.log().ups.back().first;
  }

  LoopThread worker_loop_;
  LoopThread router_loop_;
  WorkerRecorder worker_{&worker_loop_.loop()};
  RouterRecorder router_{&router_loop_.loop()};
  std::unique_ptr<Network> network_;
  LinkSender<v1::RouterMessage>* sender_ = nullptr;
  std::unique_ptr<LinkDialer<v1::WorkerMessage>> dialer_;
  LinkId up_link_;    // the worker's id of the link
  LinkId down_link_;  // the router's
};

TEST_P(Links, BothSidesHearThatALinkIsUp) {
  Connect();
  EXPECT_EQ(worker_.log().ups.front().first, up_link_);
  EXPECT_EQ(worker_.log().ups.front().second, network_->address());
  EXPECT_NE(router_.log().ups.front().second, "");
  EXPECT_TRUE(worker_.log().downs.empty());
}

TEST_P(Links, MessagesArriveInOrderAndOnceInBothDirections) {
  Connect();
  constexpr int kCount = 5000;
  // Each answer requests the next few: there are never more in flight than the limit.
  std::atomic<int> sent{0};
  router_.on_message = [&](LinkId link, const v1::WorkerMessage& m) {
    sender_->Send(link, RouterText("answer " + TextOf(m)));
  };
  worker_.on_message = [&](LinkId link, const v1::RouterMessage&) {
    const int next = sent.load();
    if (next < kCount) dialer_->Send(link, WorkerText(std::to_string(sent.fetch_add(1))));
  };
  OnWorker([&] {
    while (sent < 50) dialer_->Send(up_link_, WorkerText(std::to_string(sent.fetch_add(1))));
  });
  ASSERT_TRUE(worker_.AwaitMessages(kCount));
  const auto heard = router_.log().messages;
  const auto answers = worker_.log().messages;
  ASSERT_EQ(heard.size(), static_cast<size_t>(kCount));
  for (int i = 0; i < kCount; ++i) {
    ASSERT_EQ(heard[i].second, std::to_string(i));
    ASSERT_EQ(answers[i].second, "answer " + std::to_string(i));
  }
}

TEST_P(Links, ADialWithNobodyThereGoesDownOnce) {
  const LinkId link = Dial(GetParam().name == "grpc" ? "127.0.0.1:1" : "nobody");
  ASSERT_TRUE(worker_.AwaitDown());
  OnWorker([&] { dialer_->Send(link, WorkerText("into the void")); });
  const auto log = worker_.log();
  ASSERT_EQ(log.downs.size(), 1u);
  EXPECT_EQ(log.downs[0].first, link);
  EXPECT_EQ(log.downs[0].second.code, Code::kUnavailable) << log.downs[0].second.ToString();
  EXPECT_TRUE(log.ups.empty());
}

TEST_P(Links, TheLastMessagesBeforeACloseStillArrive) {
  Connect();
  OnRouter([&] {
    for (int i = 0; i < 100; ++i) sender_->Send(down_link_, RouterText(std::to_string(i)));
    sender_->Close(down_link_);
    sender_->Send(down_link_, RouterText("too late"));
  });
  ASSERT_TRUE(worker_.AwaitDown());
  const auto log = worker_.log();
  ASSERT_EQ(log.messages.size(), 100u);
  EXPECT_EQ(log.messages.back().second, "99");
  EXPECT_EQ(log.downs.size(), 1u);
  EXPECT_EQ(log.downs[0].second.code, Code::kUnavailable);
  EXPECT_TRUE(router_.log().downs.empty());
}

TEST_P(Links, TheRouterHearsOnceThatAWorkerClosed) {
  Connect();
  OnWorker([&] {
    for (int i = 0; i < 100; ++i) dialer_->Send(up_link_, WorkerText(std::to_string(i)));
    dialer_->Close(up_link_);
    dialer_->Close(up_link_);
  });
  ASSERT_TRUE(router_.AwaitDown());
  EXPECT_EQ(router_.log().messages.size(), 100u);
  EXPECT_EQ(router_.log().downs.size(), 1u);
  OnRouter([&] { sender_->Close(down_link_); });
  EXPECT_TRUE(worker_.log().downs.empty());
}

TEST_P(Links, ACloseRightAfterTheDialIsQuiet) {
  for (int i = 0; i < 20; ++i) {
    OnWorker([&] {
      const LinkId link = dialer_->Dial(network_->address());
      dialer_->Send(link, WorkerText("hello"));
      dialer_->Close(link);
    });
  }
  Connect();
  EXPECT_TRUE(worker_.log().downs.empty());
  EXPECT_EQ(worker_.log().ups.size(), 1u);
}

TEST_P(Links, MessagesMayBeSentBeforeTheLinkIsUp) {
  OnWorker([&] {
    const LinkId link = dialer_->Dial(network_->address());
    for (int i = 0; i < 10; ++i) dialer_->Send(link, WorkerText(std::to_string(i)));
  });
  ASSERT_TRUE(router_.AwaitMessages(10));
  EXPECT_EQ(router_.log().messages[9].second, "9");
}

TEST_P(Links, SendingToLinksThatDoNotExistIsIgnored) {
  OnWorker([&] {
    dialer_->Send(LinkId(99), WorkerText("x"));
    dialer_->Close(LinkId(99));
  });
  OnRouter([&] {
    sender_->Send(LinkId(99), RouterText("x"));
    sender_->Close(LinkId(99));
  });
  Connect();
}

TEST_P(Links, AFullQueueTakesTheLinkDownInsteadOfWaiting) {
  Connect();
  router_.Block(true);
  bool down = false;
  const std::string text(8000, 'x');
  for (int i = 0; i < 20000 && !down; ++i) {
    OnWorker([&] { dialer_->Send(up_link_, WorkerText(text)); });
    down = !worker_.log().downs.empty();
  }
  ASSERT_TRUE(worker_.AwaitDown());
  EXPECT_EQ(worker_.log().downs.size(), 1u);
  EXPECT_EQ(worker_.log().downs[0].second.code, Code::kResourceExhausted)
      << worker_.log().downs[0].second.ToString();
  router_.Block(false);
  ASSERT_TRUE(router_.AwaitDown());
  EXPECT_EQ(router_.log().downs.size(), 1u);
}

TEST_P(Links, WhatIsOfferedIsRefusedWhereItDoesNotFitAndTheLinkStays) {
  Connect();
  worker_.Block(true);
  const std::string text(8000, 'x');
  Status offered;
  size_t taken = 0;
  for (int i = 0; i < 20000 && offered; ++i) {
    OnRouter([&] { offered = sender_->Offer(down_link_, RouterText(text)); });
    taken += offered ? 1 : 0;
  }
  ASSERT_FALSE(offered);
  EXPECT_EQ(offered.error().code, Code::kResourceExhausted) << offered.error().ToString();
  // Messages that end a request still have room.
  OnRouter([&] { sender_->Send(down_link_, RouterText("cancel")); });
  worker_.Block(false);
  ASSERT_TRUE(worker_.AwaitMessages(taken + 1));
  EXPECT_EQ(worker_.log().messages.back().second, "cancel");
  EXPECT_TRUE(router_.log().downs.empty());
  EXPECT_TRUE(worker_.log().downs.empty());
}

TEST_P(Links, AnOfferedMessageLargerThanALinkTakesIsRefusedForGood) {
  Connect();
  Status offered;
  OnRouter([&] { offered = sender_->Offer(down_link_, RouterText(std::string(300 << 10, 'x'))); });
  if (GetParam().name == "Grpc") {
    ASSERT_FALSE(offered);
    EXPECT_EQ(offered.error().code, Code::kOutOfRange) << offered.error().ToString();
  }
  OnRouter([&] { sender_->Send(down_link_, RouterText("still there")); });
  ASSERT_TRUE(worker_.AwaitMessages(offered ? 2 : 1));
  EXPECT_EQ(worker_.log().messages.back().second, "still there");
  EXPECT_TRUE(router_.log().downs.empty());
}

TEST_P(Links, ASlowWorkerTakesOnlyItsOwnLinkDown) {
  Connect();
  LoopThread other_loop;
  WorkerRecorder other(&other_loop.loop());
  std::unique_ptr<LinkDialer<v1::WorkerMessage>> other_dialer;
  other_loop.On([&] {
    other_dialer = network_->MakeDialer(&other, PosterOf(&other_loop));
    other_dialer->Dial(network_->address());
  });
  ASSERT_TRUE(router_.AwaitUp(2));
  const LinkId other_link = router_.log().ups.back().first;
  worker_.Block(true);
  const std::string text(8000, 'x');
  for (int i = 0; i < 20000 && router_.log().downs.empty(); ++i) {
    OnRouter([&] { sender_->Send(down_link_, RouterText(text)); });
  }
  ASSERT_TRUE(router_.AwaitDown());
  OnRouter([&] { sender_->Send(other_link, RouterText("fine")); });
  EXPECT_TRUE(other.AwaitMessages(1));
  EXPECT_EQ(router_.log().downs.size(), 1u);
  worker_.Block(false);
  EXPECT_TRUE(worker_.AwaitDown());
  other_loop.On([&] { other_dialer.reset(); });
}

TEST_P(Links, ALinkThatWentDownCanBeDialledAgain) {
  Connect();
  OnRouter([&] { sender_->Close(down_link_); });
  ASSERT_TRUE(worker_.AwaitDown());
  const LinkId again = Dial(network_->address());
  EXPECT_NE(again, up_link_);
  ASSERT_TRUE(worker_.AwaitUp(2));
  OnWorker([&] { dialer_->Send(again, WorkerText("back")); });
  ASSERT_TRUE(router_.AwaitMessages(1));
}

TEST_P(Links, AServerThatStopsAndComesBackIsFoundAgain) {
  Connect();
  OnRouter([&] { network_->StopServing(); });
  ASSERT_TRUE(worker_.AwaitDown());
  EXPECT_EQ(worker_.log().downs.size(), 1u);
  Dial(network_->address());
  ASSERT_TRUE(worker_.AwaitDown(2));
  Serve();
  Dial(network_->address());
  ASSERT_TRUE(worker_.AwaitUp(2));
  ASSERT_TRUE(router_.AwaitUp(2));
  EXPECT_TRUE(router_.log().downs.empty());
}

TEST_P(Links, ADestroyedDialerTakesItsLinksDown) {
  Connect();
  OnWorker([&] { dialer_.reset(); });
  ASSERT_TRUE(router_.AwaitDown());
  EXPECT_EQ(router_.log().downs.size(), 1u);
  EXPECT_TRUE(worker_.log().downs.empty());
}

TEST_P(Links, DestructionInTheMiddleOfTrafficIsSafe) {
  for (int round = 0; round < 10; ++round) {
    Connect();
    OnRouter([&] {
      for (int i = 0; i < 100; ++i) sender_->Send(down_link_, RouterText("r"));
    });
    OnWorker([&] {
      for (int i = 0; i < 100; ++i) dialer_->Send(up_link_, WorkerText("w"));
      dialer_.reset();
      dialer_ = network_->MakeDialer(&worker_, PosterOf(&worker_loop_));
    });
    ASSERT_TRUE(router_.AwaitDown(static_cast<size_t>(round) + 1));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Over, Links,
    ::testing::Values(Kind{"grpc", [] { return std::make_unique<GrpcNetwork>(); }},
                      Kind{"local", [] { return std::make_unique<LocalNetwork>(); }}),
    [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace aisp
