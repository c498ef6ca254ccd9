// What unauthenticated peers can do at the ports that routers and workers use among each other.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "net/grpc_links.h"
#include "tests/net/half_call.h"
#include "tests/net/link_recorder.h"
#include "tests/net/loop_thread.h"
#include "worker.grpc.pb.h"

namespace aisp {
namespace {

constexpr size_t kMaxMessage = 2 << 20;

// A router with one worker.
class LinkIntake : public testing::Test {
 protected:
  void SetUp() override {
    GrpcLinkOptions options;
    options.max_message_bytes = kMaxMessage;
    const Poster post = [this](std::function<void()> fn) { loop_.loop().Post(std::move(fn)); };
    server_.ServeRouterControl(&router_, post, options);
    const Status started = server_.Start("127.0.0.1:0");
    ASSERT_TRUE(started) << started.error().ToString();
    loop_.On([&] {
      dialer_ = MakeRouterDialer(&worker_, post, options);
      link_ = dialer_->Dial("127.0.0.1:" + std::to_string(server_.port()));
    });
    ASSERT_TRUE(worker_.AwaitUp());
  }
  void TearDown() override {
    loop_.On([&] { dialer_.reset(); });
    server_.Shutdown(std::chrono::milliseconds(100));
    loop_.Stop();
  }

  LoopThread loop_;
  RouterRecorder router_{&loop_.loop()};
  WorkerRecorder worker_{&loop_.loop()};
  GrpcServer server_;
  std::unique_ptr<LinkDialer<v1::WorkerMessage>> dialer_;
  LinkId link_;
};

TEST_F(LinkIntake, AHeadWithoutAnEndIsCut) {
  constexpr int kFrames = 100'000;
  HalfCall stranger(server_.port(), "");
  EXPECT_LT(stranger.SendEndlessHead(kFrames), kFrames) << "1.6 GB of a head were taken";
  // Also from an address that has a link.
  HalfCall peer(server_.port(), "", "", "/aisp.v1.RouterControl/Attach");
  ASSERT_TRUE(router_.AwaitUp(2));
  EXPECT_LT(peer.SendEndlessHead(kFrames), kFrames) << "1.6 GB of a head were taken";
  ASSERT_TRUE(router_.AwaitDown());
  EXPECT_EQ(router_.log().downs.size(), 1u);
}

TEST_F(LinkIntake, LinksThatAreOpenedAndResetAreCut) {
  constexpr int kCalls = 100'000;
  for (const char* path : {"/aisp.v1.RouterControl/Attach", "/no"}) {
    HalfCall stranger(server_.port(), "", "", path);
    EXPECT_LT(stranger.OpenAndReset(kCalls), kCalls) << path;
  }
}

TEST_F(LinkIntake, WhatIsLargeAndGetsSomewhereIsTaken) {
  constexpr size_t kMessages = 20;  // below the limit of messages that may wait to be sent
  for (size_t sent = kMessages; sent <= 2 * kMessages; sent += kMessages) {
    loop_.On([&] {
      for (size_t i = 0; i < kMessages; ++i)
        dialer_->Send(link_, WorkerText(std::string(kMaxMessage - 100, 'x')));
    });
    ASSERT_TRUE(router_.AwaitMessages(sent));
  }
  EXPECT_TRUE(router_.log().downs.empty());
}

TEST_F(LinkIntake, PackedMessagesAreRefused) {
  const auto channel = grpc::CreateChannel("127.0.0.1:" + std::to_string(server_.port()),
                                           grpc::InsecureChannelCredentials());
  const auto stub = v1::RouterControl::NewStub(channel);
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  const auto stream = stub->Attach(&context);
  static_cast<void>(stream->Write(WorkerText(std::string(kMaxMessage / 2, 'x'))));
  v1::RouterMessage message;
  while (stream->Read(&message)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(router_.log().messages.empty());
}

}  // namespace
}  // namespace aisp
