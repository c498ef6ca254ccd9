// The gRPC server for clients, without a router: limits, slow readers, lost clients and shutdown.
#include "net/inference_server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "health.grpc.pb.h"
#include "inference.grpc.pb.h"
#include "net/listen_socket.h"
#include "tests/net/half_call.h"
#include "tests/net/inference_server_fixture.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;

TEST_F(InferenceServerTest, WhatIsWrittenArrivesInOrderBeforeTheStatus) {
  handler_.on_generate = [](const auto& call) {
    call->AddHeader("x-aisp-route", "here");
    for (int i = 0; i < 500; ++i) call->Write(Event(std::to_string(i)));
    call->Finish({Code::kDataLoss, "enough"}, {{"error-code", "e"}});
    call->Write(Event("late"));
  };
  Serve();
  grpc::ClientContext context;
  context.AddMetadata("x-request-id", "mine");
  const auto reader = Open(&context);
  v1::InferenceEvent event;
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(reader->Read(&event));
    EXPECT_EQ(event.choice().text(), std::to_string(i));
  }
  EXPECT_FALSE(reader->Read(&event));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(status.error_message(), "enough");
  EXPECT_EQ(context.GetServerInitialMetadata().count("x-aisp-route"), 1u);
  EXPECT_EQ(context.GetServerInitialMetadata().find("x-request-id")->second, "mine");
  EXPECT_EQ(context.GetServerTrailingMetadata().count("error-code"), 1u);
}

TEST_F(InferenceServerTest, UnaryCallsAnswerFailAndAreNeverForgotten) {
  Serve();
  grpc::ClientContext one, two, three;
  v1::TokenizeResponse tokens;
  EXPECT_TRUE(stub_->Tokenize(&one, {}, &tokens).ok());
  EXPECT_EQ(tokens.count(), 7u);
  v1::ListModelsResponse models;
  EXPECT_EQ(stub_->ListModels(&two, {}, &models).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(two.GetServerTrailingMetadata().find("retry-after-ms")->second, "250");
  v1::DetokenizeResponse text;
  EXPECT_EQ(stub_->Detokenize(&three, {}, &text).error_code(), grpc::StatusCode::INTERNAL);
}

TEST_F(InferenceServerTest, AClientThatCancelsIsReported) {
  Serve();
  grpc::ClientContext context;
  const auto reader = Open(&context);
  context.TryCancel();
  auto gone = handler_.gone.get_future();
  ASSERT_EQ(gone.wait_for(kLong), std::future_status::ready);
  EXPECT_EQ(gone.get(), RpcCall::Gone::kClosed);
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(InferenceServerTest, TheClientsDeadlineIsKnown) {
  Serve();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
  const auto reader = Open(&context);
  loop_.On([&] {
    const RpcInfo& info = handler_.calls.front()->info();
    EXPECT_NEAR(ToSeconds(info.deadline - info.received), 120, 5);
    EXPECT_EQ(info.method, "/aisp.v1.Inference/Generate");
    EXPECT_EQ(info.request_id.size(), 32u);
    handler_.calls.front()->Finish({Code::kOk, ""}, {});
  });
  v1::InferenceEvent event;
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(InferenceServerTest, ASlowReaderIsCutAtTheBound) {
  options_.max_unsent_bytes = 256 << 10;
  Serve();
  grpc::ClientContext context;
  const auto reader = Open(&context);
  // The client reads nothing: what gRPC does not accept queues up to the limit.
  const std::string piece(16 << 10, 'x');
  auto gone = handler_.gone.get_future();
  for (int i = 0; i < 4096 && gone.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
       ++i)
    loop_.On([&] { handler_.calls.front()->Write(Event(piece)); });
  ASSERT_EQ(gone.wait_for(kLong), std::future_status::ready);
  EXPECT_EQ(gone.get(), RpcCall::Gone::kSlowReader);
  v1::InferenceEvent event;
  while (reader->Read(&event)) continue;
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(InferenceServerTest, AReaderThatTakesNothingForLongIsCut) {
  options_.write_timeout = std::chrono::milliseconds(200);
  options_.max_unsent_bytes = 64 << 20;
  Serve();
  grpc::ClientContext context;
  const auto reader = Open(&context);
  const std::string piece(1 << 20, 'x');
  for (int i = 0; i < 16; ++i) loop_.On([&] { handler_.calls.front()->Write(Event(piece)); });
  auto gone = handler_.gone.get_future();
  ASSERT_EQ(gone.wait_for(kLong), std::future_status::ready);
  EXPECT_EQ(gone.get(), RpcCall::Gone::kSlowReader);
  v1::InferenceEvent event;
  while (reader->Read(&event)) continue;
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(InferenceServerTest, MoreCallsThanAllowedAreRefusedWithAHint) {
  options_.max_calls = 1;
  Serve();
  grpc::ClientContext first, second;
  const auto reader = Open(&first);
  v1::TokenizeResponse tokens;
  const grpc::Status refused = stub_->Tokenize(&second, {}, &tokens);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("(1)"));
  EXPECT_EQ(second.GetServerTrailingMetadata().count("retry-after-ms"), 1u);
  first.TryCancel();
  reader->Finish();
}

TEST_F(InferenceServerTest, ADrainingServerSendsNewCallsElsewhereAndWaitsForTheRunning) {
  const auto socket = ListenOn("127.0.0.1", 0, "");
  ASSERT_TRUE(socket) << socket.error().message;
  options_.listen_fd = dup(*socket);
  options_.connection_age = std::chrono::milliseconds(500);
  Serve();
  grpc::ClientContext running;
  const auto reader = Open(&running);
  // The successor has the same socket; the number in the answer shows which of the two answered.
  Handler other;
  other.count = 8;
  options_.listen_fd = *socket;
  InferenceServer successor(&loop_.loop(), options_, &other);
  std::promise<void> drained;
  auto done = drained.get_future();
  loop_.On([&] { server_->Drain([&] { drained.set_value(); }); });
  const Status started = successor.Start();
  ASSERT_TRUE(started) << started.error().message;
  successor.Accept();
  // No call fails, and soon all calls go to the successor, over the same channel.
  uint32_t count = 0;
  for (int calls = 0; calls < 1'000'000 && count != 8; ++calls) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kLong);
    v1::TokenizeResponse tokens;
    const grpc::Status status = stub_->Tokenize(&context, {}, &tokens);
    ASSERT_TRUE(status.ok()) << status.error_message();
    count = tokens.count();
  }
  EXPECT_EQ(count, 8u);
  EXPECT_NE(done.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  loop_.On([&] { handler_.calls.front()->Finish({Code::kOk, ""}, {}); });
  EXPECT_EQ(done.wait_for(kLong), std::future_status::ready);
  EXPECT_TRUE(reader->Finish().ok());
  successor.Shutdown(std::chrono::milliseconds(500));
}

TEST_F(InferenceServerTest, ADrainingServerRefusesNobodyWhoseConnectionIsOpen) {
  const auto socket = ListenOn("127.0.0.1", 0, "");
  ASSERT_TRUE(socket) << socket.error().message;
  options_.listen_fd = *socket;
  // No connection is told to close: from here a client that reacts slowly looks the same.
  options_.connection_age = std::chrono::seconds(60);
  Serve();
  auto health = grpc::health::v1::Health::NewStub(grpc::CreateChannel(
      "127.0.0.1:" + std::to_string(server_->port()), grpc::InsecureChannelCredentials()));
  // Client contexts keep their connection open too.
  auto watching = std::make_unique<grpc::ClientContext>();
  auto watch = health->Watch(watching.get(), {});
  grpc::health::v1::HealthCheckResponse state;
  ASSERT_TRUE(watch->Read(&state));
  const auto ask = [&] {
    grpc::ClientContext context;
    v1::TokenizeResponse tokens;
    return stub_->Tokenize(&context, {}, &tokens);
  };
  ASSERT_TRUE(ask().ok());
  std::promise<void> drained;
  auto done = drained.get_future();
  loop_.On([&] { server_->Drain([&] { drained.set_value(); }); });
  // A client that only watches is disconnected, so that the connection can end.
  while (watch->Read(&state)) continue;
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  watch.reset();
  watching.reset();
  const grpc::Status served = ask();
  EXPECT_TRUE(served.ok()) << served.error_message();
  EXPECT_NE(done.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  stub_.reset();
  health.reset();
  EXPECT_EQ(done.wait_for(kLong), std::future_status::ready);
}

TEST_F(InferenceServerTest, DrainingWithoutASuccessorRefusesNewCallsAndWaitsForTheRunning) {
  Serve();
  grpc::ClientContext running, late;
  const auto reader = Open(&running);
  std::promise<void> drained;
  auto done = drained.get_future();
  loop_.On([&] { server_->Drain([&] { drained.set_value(); }); });
  v1::TokenizeResponse tokens;
  EXPECT_EQ(stub_->Tokenize(&late, {}, &tokens).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_NE(done.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  loop_.On([&] { handler_.calls.front()->Finish({Code::kOk, ""}, {}); });
  EXPECT_EQ(done.wait_for(kLong), std::future_status::ready);
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(InferenceServerTest, ShutdownEndsWhatIsLeftAlsoWhenTheLoopHasStopped) {
  Serve();
  grpc::ClientContext context;
  const auto reader = Open(&context);
  loop_.Stop();
  server_->Shutdown(std::chrono::milliseconds(500));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(InferenceServerTest, WithoutAKeyNoByteOfTheMessageIsAwaited) {
  options_.party = [](std::string_view authorization) -> std::optional<std::string> {
    if (authorization == "Bearer good") return "tenant";
    return std::nullopt;
  };
  // Like a service that requires keys.
  handler_.on_generate = [](const auto& call) {
    call->Finish({Code::kUnauthenticated, "a key, please"}, {});
  };
  Serve();
  HalfCall call(server_->port(), "Bearer bad");
  EXPECT_THAT(call.AwaitEnd(kLong), HasSubstr("16"));
  EXPECT_EQ(handler_.arrived.get_future().wait_for(kLong), std::future_status::ready);
}

TEST_F(InferenceServerTest, AMessageThatDoesNotArriveEndsItsCall) {
  options_.read_timeout = std::chrono::milliseconds(200);
  Serve();
  HalfCall call(server_->port(), "");
  call.Announce(1 << 20, 100);
  EXPECT_THAT(call.AwaitEnd(kLong), HasSubstr("http.read_timeout"));
}

TEST_F(InferenceServerTest, IdleHalvesOfMessagesKeepNobodyOut) {
  options_.max_message_bytes = 1 << 20;
  options_.max_total_bytes = 4 << 20;
  options_.max_client_bytes = 4 << 20;
  Serve();
  const auto until = std::chrono::steady_clock::now() + kLong;
  std::vector<std::unique_ptr<HalfCall>> idle;
  while (idle.size() < 4) {
    idle.push_back(std::make_unique<HalfCall>(server_->port(), ""));
    idle.back()->Announce(1 << 20, 1000);
    // One after the other, so that the first is also the oldest for the server.
    while (server_->reading() < idle.size() && std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
    ASSERT_EQ(server_->reading(), idle.size());
  }
  // Served once they have waited; refused before that (see rpc_intake_test.cc). A refused client
  // repeats at once, as often as needed, and is not disconnected.
  grpc::Status status(grpc::StatusCode::UNKNOWN, "not asked");
  while (!status.ok() && std::chrono::steady_clock::now() < until) {
    grpc::ClientContext context;
    v1::TokenizeResponse tokens;
    status = stub_->Tokenize(&context, {}, &tokens);
    ASSERT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  EXPECT_TRUE(status.ok());
  EXPECT_THAT(idle[0]->AwaitEnd(kLong), HasSubstr("8"));
}

TEST_F(InferenceServerTest, WholeMessagesCountUntilTheirCallsEnd) {
  options_.max_message_bytes = 1 << 20;
  options_.max_total_bytes = 1 << 20;
  Serve();
  v1::InferenceRequest large;
  large.set_prompt(std::string(700 << 10, 'x'));
  grpc::ClientContext first, second;
  auto reader = stub_->Generate(&first, large);
  ASSERT_EQ(handler_.arrived.get_future().wait_for(kLong), std::future_status::ready);
  v1::TokenizeRequest other;
  other.set_prompt(std::string(700 << 10, 'y'));
  v1::TokenizeResponse tokens;
  const grpc::Status refused = stub_->Tokenize(&second, other, &tokens);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("max_total_body"));
  loop_.On([&] { handler_.calls.front()->Finish({Code::kOk, ""}, {}); });
  EXPECT_TRUE(reader->Finish().ok());
  loop_.On([&] { handler_.calls.clear(); });
  // The client learns of the end before the server has removed the call.
  grpc::Status served = refused;
  const auto until = std::chrono::steady_clock::now() + kLong;
  while (!served.ok() && std::chrono::steady_clock::now() < until) {
    grpc::ClientContext again;
    served = stub_->Tokenize(&again, other, &tokens);
  }
  EXPECT_TRUE(served.ok()) << served.error_message();
}

TEST_F(InferenceServerTest, ConnectionsOfOneAddressAreBoundedAndComeBack) {
  options_.max_connections_per_address = 2;
  Serve();
  auto first = std::make_unique<HalfCall>(server_->port(), "");
  HalfCall second(server_->port(), "");
  // Answered only with a status.
  HalfCall third(server_->port(), "");
  EXPECT_EQ(third.AwaitEnd(kLong), "closed");
  first.reset();
  grpc::Status status(grpc::StatusCode::UNKNOWN, "");
  const auto until = std::chrono::steady_clock::now() + kLong;
  while (!status.ok() && std::chrono::steady_clock::now() < until) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + kLong);
    v1::TokenizeResponse tokens;
    status = stub_->Tokenize(&context, {}, &tokens);
  }
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(InferenceServerTest, PackedMessagesAreRefusedBeforeTheyAreUnpacked) {
  options_.max_message_bytes = 1 << 20;
  Serve();
  v1::TokenizeRequest bomb;
  bomb.set_prompt(std::string(8 << 20, 'x'));
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  v1::TokenizeResponse tokens;
  const grpc::Status status = stub_->Tokenize(&context, bomb, &tokens);
  // RESOURCE_EXHAUSTED would mean that it was decompressed to find its size.
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("gzip"));
}

TEST_F(InferenceServerTest, AHeadWithoutAnEndIsCut) {
  options_.max_message_bytes = 2 << 20;
  Serve();
  HalfCall call(server_->port(), "");
  constexpr int kFrames = 1'000'000;
  EXPECT_LT(call.SendEndlessHead(kFrames), kFrames) << "16 GB of a head were taken";
  // Large calls that succeed are served, however many come on one connection.
  v1::TokenizeRequest large;
  large.set_prompt(std::string((2 << 20) - 100, 'x'));
  for (int i = 0; i < 8; ++i) {
    grpc::ClientContext context;
    v1::TokenizeResponse tokens;
    const grpc::Status status = stub_->Tokenize(&context, large, &tokens);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
}

TEST_F(InferenceServerTest, WatchersOfHealthKeepNobodyOut) {
  Serve();
  server_->SetServing(true);
  const auto channel = grpc::CreateChannel("127.0.0.1:" + std::to_string(server_->port()),
                                           grpc::InsecureChannelCredentials());
  const auto health = grpc::health::v1::Health::NewStub(channel);
  constexpr size_t kMany = 300;  // more than the limit
  std::vector<grpc::ClientContext> contexts(kMany);
  std::vector<std::unique_ptr<grpc::ClientReader<grpc::health::v1::HealthCheckResponse>>> all;
  for (grpc::ClientContext& context : contexts) {
    all.push_back(health->Watch(&context, {}));
    grpc::health::v1::HealthCheckResponse status;
    ASSERT_TRUE(all.back()->Read(&status)) << all.size();
    EXPECT_EQ(status.status(), grpc::health::v1::HealthCheckResponse::SERVING);
  }
  grpc::health::v1::HealthCheckResponse more;
  EXPECT_FALSE(all.front()->Read(&more)) << "the first one has left";
  for (grpc::ClientContext& context : contexts) context.TryCancel();
}

TEST_F(InferenceServerTest, ADeadlineBeyondAllClocksIsNone) {
  Serve();
  HalfCall call(server_->port(), "", "99999999H");
  call.Announce(0, 0);
  ASSERT_EQ(handler_.arrived.get_future().wait_for(kLong), std::future_status::ready);
  loop_.On([&] {
    EXPECT_EQ(handler_.calls.front()->info().deadline, kNever);
    handler_.calls.front()->Finish({Code::kOk, ""}, {});
  });
}

}  // namespace
}  // namespace aisp
