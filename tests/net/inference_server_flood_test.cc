// Floods of useless calls at the clients' gRPC port: clients that repeat refused calls, and clients
// that reset calls.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.pb.h>

#include <atomic>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "health.grpc.pb.h"
#include "net/open_streams.h"
#include "reflection.grpc.pb.h"
#include "tests/net/half_call.h"
#include "tests/net/inference_server_fixture.h"

namespace aisp {
namespace {

// However fast it repeats: it reads its answer and resets nothing, so it is not disconnected.
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

// For all methods, with a key and without.
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
    // A disconnected address may dial only at a limited rate.
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
  // It is disconnected, dials again, and in the end is refused.
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

constexpr const char* kReflect = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
constexpr const char* kReflectV1 = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
constexpr const char* kWatch = "/grpc.health.v1.Health/Watch";

int ThreadsHere() {
  const auto tasks = std::filesystem::directory_iterator("/proc/self/task");
  return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

namespace reflection = grpc::reflection::v1;

class Reflecting : public InferenceServerTest {
 protected:
  void Reflect() {
    Serve();
    stub_ = reflection::ServerReflection::NewStub(grpc::CreateChannel(
        "127.0.0.1:" + std::to_string(server_->port()), grpc::InsecureChannelCredentials()));
    context_.set_deadline(std::chrono::system_clock::now() + kLong);
    stream_ = stub_->ServerReflectionInfo(&context_);
  }
  void TearDown() override {
    context_.TryCancel();
    stream_.reset();
    InferenceServerTest::TearDown();
  }
  reflection::ServerReflectionResponse Ask(const reflection::ServerReflectionRequest& request) {
    reflection::ServerReflectionResponse response;
    EXPECT_TRUE(stream_->Write(request));
    EXPECT_TRUE(stream_->Read(&response));
    return response;
  }
  reflection::ServerReflectionResponse AskForServices() {
    reflection::ServerReflectionRequest request;
    request.set_list_services("");
    return Ask(request);
  }

  std::unique_ptr<reflection::ServerReflection::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<reflection::ServerReflectionRequest,
                                           reflection::ServerReflectionResponse>>
      stream_;
};

TEST_F(Reflecting, TellsOfWhatThePortServesAndOfNothingElse) {
  Reflect();
  const auto services = AskForServices().list_services_response();
  std::vector<std::string> names;
  for (const auto& each : services.service()) names.push_back(each.name());
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("aisp.v1.Inference", "grpc.health.v1.Health",
                                                     "grpc.reflection.v1.ServerReflection"));
  reflection::ServerReflectionRequest request;
  request.set_host("h");
  request.set_file_containing_symbol("aisp.v1.Inference");
  const auto found = Ask(request);
  EXPECT_EQ(found.valid_host(), "h");
  EXPECT_EQ(found.original_request().file_containing_symbol(), "aisp.v1.Inference");
  ASSERT_GT(found.file_descriptor_response().file_descriptor_proto_size(), 0);
  google::protobuf::FileDescriptorProto file;
  ASSERT_TRUE(file.ParseFromString(found.file_descriptor_response().file_descriptor_proto(0)));
  EXPECT_EQ(file.name(), "inference.proto");
  request.set_file_by_filename("inference.proto");
  EXPECT_EQ(Ask(request).file_descriptor_response().SerializeAsString(),
            found.file_descriptor_response().SerializeAsString());
  request.set_all_extension_numbers_of_type("aisp.v1.InferenceRequest");
  EXPECT_EQ(Ask(request).all_extension_numbers_response().base_type_name(),
            "aisp.v1.InferenceRequest");
  for (const char* const inner : {"aisp.v1.Router", "worker.proto", "no.such"}) {
    request.set_file_containing_symbol(inner);
    EXPECT_EQ(Ask(request).error_response().error_code(), grpc::StatusCode::NOT_FOUND) << inner;
    request.set_file_by_filename(inner);
    EXPECT_EQ(Ask(request).error_response().error_code(), grpc::StatusCode::NOT_FOUND) << inner;
  }
  request.set_file_containing_symbol(std::string(100'000, 'x'));
  ASSERT_TRUE(stream_->Write(request));
  reflection::ServerReflectionResponse none;
  EXPECT_FALSE(stream_->Read(&none));
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(Reflecting, AMessageThatCannotBeReadIsAnError) {
  Serve();
  const auto channel = grpc::CreateChannel("127.0.0.1:" + std::to_string(server_->port()),
                                           grpc::InsecureChannelCredentials());
  context_.set_deadline(std::chrono::system_clock::now() + kLong);
  const std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream(
      grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
          channel.get(),
          grpc::internal::RpcMethod(kReflectV1, grpc::internal::RpcMethod::BIDI_STREAMING),
          &context_));
  const grpc::Slice cut("\x22\x7f longer");
  ASSERT_TRUE(stream->Write(grpc::ByteBuffer(&cut, 1)));
  grpc::ByteBuffer none;
  EXPECT_FALSE(stream->Read(&none));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(Reflecting, IdleStreamsTakeNoThreadsAndKeepNobodyOut) {
  Reflect();
  EXPECT_EQ(AskForServices().list_services_response().service_size(), 3);
  const int threads = ThreadsHere();
  constexpr int kMany = 600;  // more than the limit
  std::vector<std::unique_ptr<HalfCall>> idle;
  for (int i = 0; i < kMany; ++i) {
    idle.push_back(std::make_unique<HalfCall>(server_->port(), "", "",
                                              i % 2 == 0 ? kReflect : kReflectV1, /*from=*/2));
  }
  EXPECT_THAT(idle.front()->AwaitEnd(kLong), ::testing::HasSubstr("grpc-status"));
  // From another address, even one that asked before.
  EXPECT_EQ(AskForServices().list_services_response().service_size(), 3);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kLong);
  const auto newcomer = stub_->ServerReflectionInfo(&context);
  reflection::ServerReflectionRequest request;
  request.set_list_services("");
  ASSERT_TRUE(newcomer->Write(request));
  reflection::ServerReflectionResponse response;
  EXPECT_TRUE(newcomer->Read(&response));
  EXPECT_LE(ThreadsHere(), threads + 16);
  context.TryCancel();
}

TEST_F(Reflecting, AStreamThatAsksNothingEnds) {
  options_.idle_timeout = std::chrono::milliseconds(50);
  options_.write_timeout = std::chrono::milliseconds(80);  // how often slow readers are looked for
  Reflect();
  reflection::ServerReflectionResponse none;
  EXPECT_FALSE(stream_->Read(&none));
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

// The end of a call would wait behind the message that the client does not read.
TEST_F(InferenceServerTest, WatchersThatTakeNothingKeepNobodyOut) {
  Serve();
  server_->SetServing(true);
  constexpr int kMany = 1030;  // more than twice the limit of calls that need no key
  std::vector<std::unique_ptr<HalfCall>> stuck;
  for (int i = 0; i < kMany; ++i) {
    stuck.push_back(std::make_unique<HalfCall>(server_->port(), "", "", kWatch,
                                               /*from=*/2 + (i % 2), /*takes=*/false));
    stuck.back()->Announce(0, 0);
  }
  EXPECT_TRUE(stuck.front()->AwaitReset(kLong));
  const auto health = grpc::health::v1::Health::NewStub(grpc::CreateChannel(
      "127.0.0.1:" + std::to_string(server_->port()), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kLong);
  const auto watch = health->Watch(&context, {});
  grpc::health::v1::HealthCheckResponse state;
  EXPECT_TRUE(watch->Read(&state));
  context.TryCancel();
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
