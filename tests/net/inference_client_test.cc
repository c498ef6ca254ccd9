// The gRPC client of aisp-loadgen with a hostile server.
#include "net/inference_client.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <string>

#include "inference.grpc.pb.h"
#include "tests/net/half_server.h"
#include "tests/net/loop_thread.h"

namespace aisp {
namespace {

constexpr std::chrono::seconds kLong{20};

class Listener final : public InferenceListener {
 public:
  void OnMetadata(std::string_view, std::string_view) override {}
  void OnEvent(const v1::InferenceEvent& event) override {
    ++events;
    if (on_event) on_event(event);
  }
  void OnEnd(const Error& status, std::optional<Duration>) override { end.set_value(status); }

  std::function<void(const v1::InferenceEvent&)> on_event;
  std::atomic<int> events{0};
  std::promise<Error> end;
};

class InferenceClientTest : public testing::Test {
 protected:
  void Call(const std::string& address) {
    loop_.On([&] {
      client_ = std::make_unique<InferenceClient>(&loop_.loop(), address);
      call_ = client_->Generate({}, {}, &listener_);
    });
  }
  void TearDown() override {
    loop_.On([&] {
      call_.reset();
      client_.reset();
    });
    loop_.Stop();
  }

  LoopThread loop_;
  Listener listener_;
  std::unique_ptr<InferenceClient> client_;
  std::unique_ptr<InferenceCall> call_;
};

TEST_F(InferenceClientTest, AHeadWithoutAnEndIsCut) {
  constexpr int kFrames = 100'000;
  HalfServer server;
  Call(server.address());
  server.AwaitCall();
  EXPECT_LT(server.SendEndlessHead(kFrames, /*begun=*/false), kFrames) << "1.6 GB were taken";
  auto end = listener_.end.get_future();
  ASSERT_EQ(end.wait_for(kLong), std::future_status::ready);
  EXPECT_NE(end.get().code, Code::kOk);
}

TEST_F(InferenceClientTest, AHeadThatIsCutEndsItsCallsAlone) {
  HalfServer server;
  Call(server.address());
  server.AwaitCall();
  server.CloseInAHead();
  auto end = listener_.end.get_future();
  ASSERT_EQ(end.wait_for(kLong), std::future_status::ready);
  EXPECT_NE(end.get().code, Code::kOk);
}

// Sends events without an end, packed if requested.
class Flood final : public v1::Inference::Service {
 public:
  explicit Flood(bool packs) : packs_(packs) {}
  grpc::Status Generate(grpc::ServerContext* context, const v1::InferenceRequest*,
                        grpc::ServerWriter<v1::InferenceEvent>* out) override {
    if (packs_) context->set_compression_algorithm(GRPC_COMPRESS_GZIP);
    v1::InferenceEvent event;
    event.mutable_choice()->set_text(std::string(64 << 10, 'x'));
    while (out->Write(event)) {
      const std::lock_guard lock(mutex_);
      ++sent_;
      wrote_.notify_all();
    }
    return grpc::Status::OK;
  }
  // How many it has sent: `enough`, or the number at which half a second adds nothing.
  int SentWhenStill(int enough) {
    std::unique_lock lock(mutex_);
    for (int before = -1; before != sent_ && sent_ < enough;) {
      before = sent_;
      wrote_.wait_for(lock, std::chrono::milliseconds(500), [&] { return sent_ > before; });
    }
    return sent_;
  }

 private:
  const bool packs_;
  std::mutex mutex_;
  std::condition_variable wrote_;
  int sent_ = 0;
};

class Serving {
 public:
  explicit Serving(bool packs) : service(packs) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service);
    server_ = builder.BuildAndStart();
  }
  ~Serving() {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  Flood service;

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// While the client takes none, events stay with the server.
TEST_F(InferenceClientTest, EventsThatNobodyTakesAreNotRead) {
  Serving server(/*packs=*/false);
  std::promise<void> first, go_on;
  std::promise<void> many;
  listener_.on_event = [&](const v1::InferenceEvent&) {
    if (listener_.events == 1) {
      first.set_value();
      go_on.get_future().wait();
    }
    if (listener_.events == 2000) many.set_value();
  };
  Call(server.address());
  ASSERT_EQ(first.get_future().wait_for(kLong), std::future_status::ready);
  EXPECT_LT(server.service.SentWhenStill(4000), 4000)
      << "256 MiB are held for a listener that sleeps";
  go_on.set_value();
  EXPECT_EQ(many.get_future().wait_for(kLong), std::future_status::ready);
}

TEST_F(InferenceClientTest, PackedMessagesAreRefused) {
  const Serving server(/*packs=*/true);
  Call(server.address());
  auto end = listener_.end.get_future();
  ASSERT_EQ(end.wait_for(kLong), std::future_status::ready);
  EXPECT_NE(end.get().code, Code::kOk);
  EXPECT_EQ(listener_.events, 0);
}

}  // namespace
}  // namespace aisp
