// Calls that come to nothing, at the gRPC port for clients: who asks again, and who resets.
#include <gmock/gmock.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "net/open_streams.h"
#include "tests/net/half_call.h"
#include "tests/net/inference_server_fixture.h"

namespace aisp {
namespace {

// However fast it asks again: it has its answer, and resets nothing.
TEST_F(InferenceServerTest, WhoIsRefusedForWantOfRoomKeepsTheConnection) {
  options_.max_calls = 1;
  Serve();
  grpc::ClientContext first;
  const auto reader = Open(&first);
  std::atomic<int> refused{0};
  const auto ask = [&] {
    for (int i = 0; i < 2000; ++i) {
      grpc::ClientContext context;
      v1::TokenizeResponse tokens;
      const grpc::Status status = stub_->Tokenize(&context, {}, &tokens);
      refused += status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED ? 1 : 0;
    }
  };
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) clients.emplace_back(ask);
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(refused, 8 * 2000);
  loop_.On([&] { handler_.calls.front()->Finish({Code::kOk, ""}, {}); });
  EXPECT_TRUE(reader->Finish().ok());
  loop_.On([&] { handler_.calls.clear(); });
}

TEST_F(InferenceServerTest, CallsThatAreRefusedAndResetAreCut) {
  options_.max_calls = 1;
  Serve();
  grpc::ClientContext first;
  const auto reader = Open(&first);
  HalfCall hostile(server_->port(), "");
  EXPECT_LT(hostile.OpenAndReset(1'000'000), 1'000'000);
  first.TryCancel();
  reader->Finish();
}

// Whatever they ask for, with a key and without.
TEST_F(InferenceServerTest, CallsThatAreOpenedAndResetAreCut) {
  options_.party = [](std::string_view key) -> std::optional<std::string> {
    return key.empty() ? std::nullopt : std::optional<std::string>("tenant");
  };
  Serve();
  constexpr int kCalls = 1'000'000;
  constexpr const char* kTokenize = "/aisp.v1.Inference/Tokenize";
  uint32_t from = 1;
  using Call = std::pair<const char*, const char*>;
  for (const auto& [path, key] :
       {Call{kTokenize, "Bearer k"}, Call{kTokenize, ""}, Call{"/grpc.health.v1.Health/Check", ""},
        Call{"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", ""},
        Call{"/no", ""}}) {
    // An address that was cut may not dial as often as it likes.
    HalfCall hostile(server_->port(), key, "", path, ++from);
    EXPECT_LT(hostile.OpenAndReset(kCalls), kCalls) << path << " " << key;
    HalfCall shorter(server_->port(), key, "", path, ++from);
    EXPECT_LT(shorter.OpenAndResetShort(kCalls), kCalls) << path << " " << key;
  }
}

TEST_F(InferenceServerTest, WhoIsCutDialsAgainAFewTimesASecond) {
  Serve();
  constexpr uint32_t kHostile = 99;
  constexpr const char* kTokenize = "/aisp.v1.Inference/Tokenize";
  int cut = 0;
  std::string answer = "grpc-status";
  // It is cut, dials again, and in the end is not let in.
  for (; cut < 1000 && answer.find("grpc-status") != std::string::npos; ++cut) {
    HalfCall hostile(server_->port(), "", "", kTokenize, kHostile);
    EXPECT_LT(hostile.OpenAndResetShort(10'000'000), 10'000'000);
    HalfCall again(server_->port(), "", "", kTokenize, kHostile);
    again.Announce(0, 0);
    answer = again.AwaitEnd(kLong);
  }
  EXPECT_THAT(answer, ::testing::HasSubstr("closed"));
  HalfCall other(server_->port(), "", "", kTokenize, kHostile + 1);
  other.Announce(0, 0);
  EXPECT_THAT(other.AwaitEnd(kLong), ::testing::HasSubstr("grpc-status"));
}

TEST_F(InferenceServerTest, IdleStreamsOfReflectionTakeFewThreads) {
  Serve();
  std::vector<std::unique_ptr<HalfCall>> idle;
  for (int i = 0; i < 100; ++i) {
    idle.push_back(std::make_unique<HalfCall>(
        server_->port(), "", "", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"));
  }
  EXPECT_THAT(idle.back()->AwaitEnd(kLong), ::testing::HasSubstr("grpc-status"));
}

TEST(OpenStreams, AreThoseThatBeganAndDidNotEnd) {
  EXPECT_EQ(OpenStreams::InSocket(R"({"data":{"streamsFailed":"3","streamsStarted":"12",)"
                                  R"("streamsSucceeded":"4"}})"),
            5u);
  EXPECT_EQ(OpenStreams::InSocket(R"({"data":{"streamsStarted":"12"}})"), 12u);
  EXPECT_EQ(OpenStreams::InSocket("{}"), 0u);
  EXPECT_EQ(OpenStreams().Of("no connection"), 0u);
}

}  // namespace
}  // namespace aisp
