// Limits that are configured in gRPC itself: each test fails if its limit is not set.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "health.grpc.pb.h"
#include "reflection.grpc.pb.h"
#include "tests/net/half_call.h"
#include "tests/net/inference_server_fixture.h"

namespace aisp {
namespace {

// A connection that sends `bytes` and nothing more.
class Silent {
 public:
  Silent(uint16_t port, const std::string& bytes) {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    EXPECT_EQ(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  Silent(const Silent&) = delete;
  Silent& operator=(const Silent&) = delete;
  ~Silent() { close(fd_); }
  // Well before an unanswered ping would close it.
  bool AwaitClose() const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    for (char buffer[4096];;) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          until - std::chrono::steady_clock::now());
      pollfd state{fd_, POLLIN, 0};
      if (left.count() <= 0 || poll(&state, 1, static_cast<int>(left.count())) <= 0) return false;
      if (recv(fd_, buffer, sizeof(buffer), 0) <= 0) return true;
    }
  }

 private:
  int fd_ = -1;
};

const std::string kHello = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + half::Frame(4, 0, 0, "");

TEST_F(InferenceServerTest, AMessageIsReadUpToItsBound) {
  options_.max_message_bytes = 8 << 20;
  Serve();
  const auto tokenize = [&](size_t bytes) {
    grpc::ClientContext context;
    v1::TokenizeRequest request;
    request.set_prompt(std::string(bytes, 'x'));
    v1::TokenizeResponse response;
    return stub_->Tokenize(&context, request, &response).error_code();
  };
  EXPECT_EQ(tokenize(6 << 20), grpc::StatusCode::OK);
  EXPECT_EQ(tokenize(9 << 20), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

void AddFields(int fields, grpc::ClientContext* context) {
  for (int i = 0; i < fields; ++i)
    context->AddMetadata("x-" + std::to_string(i), std::string(4000, 'x'));
}

// gRPC itself applies this limit per frame only.
TEST_F(InferenceServerTest, AHeadIsTakenUpToItsBound) {
  Serve();
  const auto tokenize = [&](int fields) {
    grpc::ClientContext context;
    AddFields(fields, &context);
    v1::TokenizeResponse response;
    return stub_->Tokenize(&context, {}, &response).error_code();
  };
  EXPECT_EQ(tokenize(1), grpc::StatusCode::OK);
  EXPECT_EQ(tokenize(15), grpc::StatusCode::OK);
  EXPECT_EQ(tokenize(20), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(InferenceServerTest, AHeadIsBoundedWithoutAKeyToo) {
  Serve();
  server_->SetServing(true);
  const auto channel = grpc::CreateChannel("127.0.0.1:" + std::to_string(server_->port()),
                                           grpc::InsecureChannelCredentials());
  const auto health = grpc::health::v1::Health::NewStub(channel);
  const auto files = grpc::reflection::v1::ServerReflection::NewStub(channel);
  for (const int fields : {15, 20}) {
    grpc::ClientContext watching, asking;
    AddFields(fields, &watching);
    AddFields(fields, &asking);
    const auto watch = health->Watch(&watching, {});
    grpc::health::v1::HealthCheckResponse status;
    EXPECT_EQ(watch->Read(&status), fields == 15);
    const auto reflecting = files->ServerReflectionInfo(&asking);
    grpc::reflection::v1::ServerReflectionRequest request;
    request.set_list_services("");
    reflecting->Write(request);
    grpc::reflection::v1::ServerReflectionResponse response;
    EXPECT_EQ(reflecting->Read(&response), fields == 15);
    if (fields == 15) {
      watching.TryCancel();
      asking.TryCancel();
      continue;
    }
    EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(reflecting->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
}

TEST_F(InferenceServerTest, AConnectionThatDoesNotShakeHandsIsClosed) {
  options_.read_timeout = std::chrono::milliseconds(100);
  Serve();
  EXPECT_TRUE(Silent(static_cast<uint16_t>(server_->port()), kHello.substr(0, 10)).AwaitClose());
}

TEST_F(InferenceServerTest, AConnectionWithoutACallIsClosed) {
  options_.idle_timeout = std::chrono::milliseconds(100);
  options_.connection_age = std::chrono::hours(1);
  Serve();
  EXPECT_TRUE(Silent(static_cast<uint16_t>(server_->port()), kHello).AwaitClose());
}

TEST_F(InferenceServerTest, AnAnswerThatNobodyTakesEndsItsCall) {
  options_.write_timeout = std::chrono::milliseconds(100);
  Serve();
  HalfCall call(static_cast<uint16_t>(server_->port()), "", "", "/aisp.v1.Inference/Tokenize",
                /*from=*/1, /*takes=*/false);
  call.Announce(0, 0);
  EXPECT_TRUE(call.AwaitReset(kLong));
}

// The client always reads something, but too slowly.
TEST_F(InferenceServerTest, AReaderThatTricklesIsCut) {
  options_.write_timeout = std::chrono::milliseconds(200);
  options_.min_taken_bytes = 1 << 20;
  options_.max_unsent_bytes = 64 << 20;
  Serve();
  HalfCall call(static_cast<uint16_t>(server_->port()), "", "", "/aisp.v1.Inference/Generate",
                /*from=*/1, /*takes=*/false);
  call.Announce(0, 0);
  ASSERT_EQ(handler_.arrived.get_future().wait_for(kLong), std::future_status::ready);
  auto gone = handler_.gone.get_future();
  loop_.On([&] {
    for (int i = 0; i < 8000; ++i) handler_.calls.front()->Write(Event(std::string(4096, 'x')));
  });
  auto state = std::future_status::timeout;
  for (int i = 0; i < 500 && state != std::future_status::ready; ++i) {
    call.GiveRoom(8192);
    state = gone.wait_for(std::chrono::milliseconds(5));
  }
  ASSERT_EQ(state, std::future_status::ready);
  EXPECT_EQ(gone.get(), RpcCall::Gone::kSlowReader);
}

}  // namespace
}  // namespace aisp
