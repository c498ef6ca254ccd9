// Calls that come to nothing, at the gRPC port for clients: who asks again, and who resets.
#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

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
  using Call = std::pair<const char*, const char*>;
  for (const auto& [path, key] :
       {Call{kTokenize, "Bearer k"}, Call{kTokenize, ""}, Call{"/grpc.health.v1.Health/Check", ""},
        Call{"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", ""},
        Call{"/no", ""}}) {
    HalfCall hostile(server_->port(), key, "", path);
    EXPECT_LT(hostile.OpenAndReset(kCalls), kCalls) << path << " " << key;
  }
}

}  // namespace
}  // namespace aisp
