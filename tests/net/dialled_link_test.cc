// What a hostile process can do to a peer that dials it.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>

#include "common/threads.h"
#include "net/grpc_links.h"
#include "tests/net/half_server.h"
#include "tests/net/link_recorder.h"
#include "tests/net/loop_thread.h"
#include "worker.grpc.pb.h"

namespace aisp {
namespace {

constexpr size_t kMaxMessage = 2 << 20;

class DialledLink : public testing::Test {
 protected:
  void Dial(const std::string& address) {
    GrpcLinkOptions options;
    options.max_message_bytes = kMaxMessage;
    loop_.On([&] {
      const Poster post = [this](std::function<void()> fn) { loop_.loop().Post(std::move(fn)); };
      dialer_ = MakeRouterDialer(&worker_, post, options);
      dialer_->Dial(address);
    });
  }
  void TearDown() override {
    loop_.On([&] { dialer_.reset(); });
    loop_.Stop();
  }

  LoopThread loop_;
  WorkerRecorder worker_{&loop_.loop()};
  std::unique_ptr<LinkDialer<v1::WorkerMessage>> dialer_;
};

TEST_F(DialledLink, AHeadWithoutAnEndIsCut) {
  constexpr int kFrames = 100'000;
  for (const bool begun : {false, true}) {
    HalfServer router;
    Dial(router.address());
    router.AwaitCall();
    if (begun) {
      ASSERT_TRUE(router.SendHead());
      ASSERT_TRUE(worker_.AwaitUp());
    }
    EXPECT_LT(router.SendEndlessHead(kFrames, begun), kFrames) << "1.6 GB of a head were taken";
    EXPECT_TRUE(worker_.AwaitDown(begun ? 2 : 1));
  }
}

// The listening side may end the connection; gRPC's own parser aborts the process on such a head.
TEST_F(DialledLink, AHeadThatIsCutEndsTheLinkAlone) {
  HalfServer router;
  Dial(router.address());
  router.AwaitCall();
  router.CloseInAHead();
  ASSERT_TRUE(worker_.AwaitDown());
  EXPECT_TRUE(worker_.log().ups.empty());
}

// Answers a link with messages, packed if requested, as older versions did: its head says nothing
// of packing.
class Router final : public v1::RouterControl::CallbackService {
 public:
  Router(bool packs, int messages) : packs_(packs), messages_(messages) {}
  grpc::ServerBidiReactor<v1::WorkerMessage, v1::RouterMessage>* Attach(
      grpc::CallbackServerContext* context) override {
    if (packs_) context->set_compression_algorithm(GRPC_COMPRESS_GZIP);
    return new Answer(messages_);
  }

 private:
  class Answer final : public grpc::ServerBidiReactor<v1::WorkerMessage, v1::RouterMessage> {
   public:
    explicit Answer(int left) : left_(left), message_(RouterText(std::string(kSize, 'x'))) {
      if (left_ == 0) {
        StartSendInitialMetadata();
      } else {
        StartWrite(&message_);
      }
    }
    void OnCancel() override { FinishOnce(grpc::Status::CANCELLED); }
    void OnWriteDone(bool ok) override {
      if (ok && --left_ > 0) return StartWrite(&message_);
      if (ok) FinishOnce(grpc::Status::OK);
    }
    void OnDone() override { delete this; }

   private:
    void FinishOnce(const grpc::Status& status) {
      if (!finished_.exchange(true)) Finish(status);
    }
    static constexpr size_t kSize = kMaxMessage - 100;
    int left_;
    const v1::RouterMessage message_;
    std::atomic<bool> finished_{false};
  };
  const bool packs_;
  const int messages_;
};

class Serving {
 public:
  Serving(bool packs, int messages) : service_(packs, messages) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
  }
  ~Serving() {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  Router service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(DialledLink, WhatIsLargeAndGetsSomewhereIsTaken) {
  const Serving router(/*packs=*/false, /*messages=*/40);
  Dial(router.address());
  EXPECT_TRUE(worker_.AwaitMessages(40));
  ASSERT_TRUE(worker_.AwaitDown());
}

TEST_F(DialledLink, AnOlderRouterThatSaysNothingIsUp) {
  const Serving router(/*packs=*/false, /*messages=*/0);
  Dial(router.address());
  EXPECT_TRUE(worker_.AwaitUp());
  EXPECT_TRUE(worker_.log().downs.empty());
  loop_.On([&] { dialer_.reset(); });
}

TEST_F(DialledLink, PackedMessagesAreRefused) {
  const Serving router(/*packs=*/true, /*messages=*/1);
  Dial(router.address());
  ASSERT_TRUE(worker_.AwaitDown());
  EXPECT_TRUE(worker_.log().messages.empty());
}

}  // namespace
}  // namespace aisp
