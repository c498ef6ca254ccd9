// The gRPC server for clients, without a router.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "inference.grpc.pb.h"
#include "net/inference_server.h"
#include "tests/net/loop_thread.h"

namespace aisp {

inline constexpr std::chrono::seconds kLong{20};

// Keeps calls for the test to answer.
class Handler final : public InferenceHandler {
 public:
  void Generate(std::shared_ptr<GenerateCall> call) override {
    call->OnGone([this](RpcCall::Gone why) { gone.set_value(why); });
    if (on_generate) on_generate(call);
    calls.push_back(std::move(call));
    arrived.set_value();
  }
  void Tokenize(std::shared_ptr<TokenizeCall> call) override {
    call->response()->set_count(count);
    call->Finish({Code::kOk, ""}, {});
  }
  void Embed(std::shared_ptr<EmbedCall>) override {}
  void Score(std::shared_ptr<ScoreCall>) override {}
  void Rerank(std::shared_ptr<RerankCall>) override {}
  void Detokenize(std::shared_ptr<DetokenizeCall>) override {}  // dropped
  void ListModels(std::shared_ptr<ListModelsCall> call) override {
    call->Finish({Code::kUnavailable, "no"}, {{"retry-after-ms", "250"}});
  }

  uint32_t count = 7;
  std::function<void(const std::shared_ptr<GenerateCall>&)> on_generate;
  std::vector<std::shared_ptr<GenerateCall>> calls;
  std::promise<void> arrived;
  std::promise<RpcCall::Gone> gone;
};

inline v1::InferenceEvent Event(const std::string& text) {
  v1::InferenceEvent event;
  event.mutable_choice()->set_text(text);
  return event;
}

class InferenceServerTest : public ::testing::Test {
 protected:
  void Serve() {
    server_ = std::make_unique<InferenceServer>(&loop_.loop(), options_, &handler_);
    const Status started = server_->Start();
    ASSERT_TRUE(started) << started.error().message;
    server_->Accept();
    stub_ = v1::Inference::NewStub(grpc::CreateChannel(
        "127.0.0.1:" + std::to_string(server_->port()), grpc::InsecureChannelCredentials()));
  }
  void TearDown() override {
    if (server_) server_->Shutdown(std::chrono::milliseconds(500));
    loop_.Stop();
    handler_.calls.clear();
    server_.reset();
  }
  // Opens a call and waits until the handler has received it.
  std::unique_ptr<grpc::ClientReader<v1::InferenceEvent>> Open(grpc::ClientContext* context) {
    auto reader = stub_->Generate(context, {});
    EXPECT_EQ(handler_.arrived.get_future().wait_for(kLong), std::future_status::ready);
    return reader;
  }

  InferenceServerOptions options_;
  LoopThread loop_;
  Handler handler_;
  std::unique_ptr<InferenceServer> server_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

}  // namespace aisp
