// Clients of gRPC's server reflection, which needs no key: streams that send any bytes as messages,
// or messages from a grammar, close and cancel, to the service behind a port. Each valid request is
// answered, in order, with files of this port's services only; an invalid one ends its stream with
// an error; every stream ends, and nothing of it is left.
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/util/message_differencer.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/strings.h"
#include "health.pb.h"
#include "inference.pb.h"
#include "net/reflection_service.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/fuzz_target.h"

namespace aisp {
namespace {

using grpc::ByteBuffer;
using grpc::reflection::v1::ServerReflectionRequest;
using grpc::reflection::v1::ServerReflectionResponse;

constexpr std::chrono::seconds kLong{20};
constexpr Duration kIdle = std::chrono::hours(1);
constexpr size_t kPlaces = 3, kMaxStreams = 4, kMaxAhead = 3, kMaxRequestBytes = 16 << 10;
constexpr const char* kServices[] = {"aisp.v1.Inference", "grpc.health.v1.Health",
                                     "grpc.reflection.v1.ServerReflection"};

struct Server {
  std::shared_ptr<LiveRpcs> live = std::make_shared<LiveRpcs>();
  std::unique_ptr<ReflectionService> service;
  std::unique_ptr<grpc::Server> server;
  std::shared_ptr<grpc::Channel> channel;

  Server() {
    int port = 0;
    // Linked only if something refers to them.
    AISP_CHECK(v1::InferenceRequest::descriptor() != nullptr);
    AISP_CHECK(grpc::health::v1::HealthCheckRequest::descriptor() != nullptr);
    service = std::make_unique<ReflectionService>(
        live, ReflectionService::Limits{.streams = kPlaces, .all_calls = 64, .idle = kIdle},
        std::vector<std::string>{std::begin(kServices), std::end(kServices)});
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service.get());
    server = builder.BuildAndStart();
    AISP_CHECK(server != nullptr && port > 0);
    channel = grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                  grpc::InsecureChannelCredentials());
  }
  // gRPC's last callback for a stream comes after its client has seen the end.
  void AwaitNobody() const {
    const auto until = std::chrono::steady_clock::now() + kLong;
    while (!live->All().empty()) {
      AISP_CHECK_MSG(std::chrono::steady_clock::now() < until, "a stream is left");
      std::this_thread::yield();
    }
  }
};

// Events that may end a stream early.
struct Disturbed {
  bool crowded = false;  // more streams than places
  bool swept = false;    // idle for too long
};

void CheckFiles(const ServerReflectionResponse& answer) {
  static const std::set<std::string> kKnown = {"inference.proto", "google/protobuf/struct.proto",
                                               "health.proto", "reflection.proto"};
  const auto& files = answer.file_descriptor_response().file_descriptor_proto();
  AISP_CHECK(!files.empty());
  std::set<std::string> names, needed;
  for (const std::string& bytes : files) {
    google::protobuf::FileDescriptorProto file;
    AISP_CHECK(file.ParseFromString(bytes));
    AISP_CHECK_MSG(kKnown.contains(file.name()), file.name());
    AISP_CHECK_MSG(names.insert(file.name()).second, file.name());
    needed.insert(file.dependency().begin(), file.dependency().end());
  }
  for (const std::string& name : needed) AISP_CHECK_MSG(names.contains(name), name);
}

void CheckAnswer(const ServerReflectionRequest& request, const ServerReflectionResponse& answer) {
  AISP_CHECK(
      google::protobuf::util::MessageDifferencer::Equals(answer.original_request(), request));
  AISP_CHECK(answer.valid_host() == request.host());
  if (answer.has_error_response()) {
    AISP_CHECK(answer.error_response().error_code() == grpc::StatusCode::NOT_FOUND ||
               request.message_request_case() == request.MESSAGE_REQUEST_NOT_SET);
    AISP_CHECK(!answer.error_response().error_message().empty());
    return;
  }
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kFileByFilename:
    case ServerReflectionRequest::kFileContainingSymbol:
      return CheckFiles(answer);
    case ServerReflectionRequest::kAllExtensionNumbersOfType:
      AISP_CHECK(answer.all_extension_numbers_response().base_type_name() ==
                 request.all_extension_numbers_of_type());
      AISP_CHECK(answer.all_extension_numbers_response().extension_number().empty());
      return;
    case ServerReflectionRequest::kListServices: {
      const auto& services = answer.list_services_response().service();
      AISP_CHECK(services.size() == static_cast<int>(std::size(kServices)));
      for (int i = 0; i < services.size(); ++i) AISP_CHECK(services[i].name() == kServices[i]);
      return;
    }
    default:
      AISP_CHECK_MSG(false, "an answer to a question that nobody knows");
  }
}

class Stream {
 public:
  Stream(const Server& server, bool alpha) {
    context_.set_deadline(std::chrono::system_clock::now() + kLong);
    static constexpr const char* kNames[] = {
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"};
    stream_.reset(grpc::internal::ClientReaderWriterFactory<ByteBuffer, ByteBuffer>::Create(
        server.channel.get(),
        grpc::internal::RpcMethod(kNames[alpha ? 1 : 0], grpc::internal::RpcMethod::BIDI_STREAMING),
        &context_));
  }

  void Send(const std::string& bytes) {
    if (closed_ || over_) return;
    if (awaited_.size() >= kMaxAhead) Read();
    if (over_) return;
    const grpc::Slice slice(bytes);
    // Not accepted if the server has ended the stream.
    if (!stream_->Write(ByteBuffer(&slice, 1))) return;
    ServerReflectionRequest request;
    if (bad_ || bytes.size() > kMaxRequestBytes || !request.ParseFromString(bytes)) {
      bad_ = true;
      return;
    }
    awaited_.push_back(std::move(request));
  }
  void Read() {
    if (over_ || awaited_.empty()) return;
    ByteBuffer bytes;
    if (!stream_->Read(&bytes)) {
      over_ = true;
      return;
    }
    Take(&bytes);
  }
  void Close() {
    if (!std::exchange(closed_, true)) stream_->WritesDone();
  }
  void Cancel() {
    cancelled_ = closed_ = true;
    context_.TryCancel();
  }
  void End(const Disturbed& disturbed) {
    Close();
    for (ByteBuffer bytes; !over_ && stream_->Read(&bytes);) Take(&bytes);
    const grpc::Status status = stream_->Finish();
    const grpc::StatusCode code = status.error_code();
    if (code == grpc::StatusCode::OK) {
      AISP_CHECK(!bad_ && awaited_.empty());
    } else if (code == grpc::StatusCode::INVALID_ARGUMENT) {
      AISP_CHECK(bad_ && awaited_.empty());
    } else if (code == grpc::StatusCode::CANCELLED) {
      AISP_CHECK_MSG(cancelled_ || disturbed.crowded || disturbed.swept, status.error_message());
    } else if (code == grpc::StatusCode::RESOURCE_EXHAUSTED) {
      AISP_CHECK_MSG(disturbed.crowded, status.error_message());
    } else if (code == grpc::StatusCode::DEADLINE_EXCEEDED) {
      AISP_CHECK_MSG(
          disturbed.swept && status.error_message().find("idle_timeout") != std::string::npos,
          status.error_message());
    } else {
      AISP_CHECK_MSG(false, status.error_message());
    }
    AISP_CHECK(IsValidUtf8(status.error_message()));
  }

 private:
  void Take(ByteBuffer* bytes) {
    AISP_CHECK_MSG(!awaited_.empty(), "an answer that nobody asked for");
    ServerReflectionResponse answer;
    AISP_CHECK(
        grpc::SerializationTraits<ServerReflectionResponse>::Deserialize(bytes, &answer).ok());
    CheckAnswer(awaited_.front(), answer);
    awaited_.pop_front();
  }

  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<ByteBuffer, ByteBuffer>> stream_;
  std::deque<ServerReflectionRequest> awaited_;
  bool bad_ = false;  // has sent an invalid request after those whose answers are awaited
  bool closed_ = false, cancelled_ = false, over_ = false;
};

std::string Made(ByteSource* bytes) {
  static constexpr const char* kNames[] = {"aisp.v1.Inference",
                                           "aisp.v1.Inference.Generate",
                                           "aisp.v1.InferenceRequest",
                                           "aisp.v1.InferenceRequest.model",
                                           ".aisp.v1.Inference",
                                           "aisp.v1",
                                           "inference.proto",
                                           "health.proto",
                                           "reflection.proto",
                                           "worker.proto",
                                           "aisp.v1.Router",
                                           "google/protobuf/descriptor.proto",
                                           "google.protobuf.FileOptions",
                                           "grpc.health.v1.Health",
                                           "grpc.reflection.v1.ServerReflectionResponse",
                                           ""};
  ServerReflectionRequest request;
  const auto name = [&] {
    return bytes->Below(4) == 3 ? std::string(bytes->Text(60)) : bytes->Pick(kNames);
  };
  if (bytes->Below(8) == 7) request.set_host(name());
  switch (bytes->Below(8)) {
    case 0:
    case 1:
      request.set_file_by_filename(name());
      break;
    case 2:
    case 3:
      request.set_file_containing_symbol(name());
      break;
    case 4:
      request.set_all_extension_numbers_of_type(name());
      break;
    case 5:
      request.set_list_services(name());
      break;
    case 6:
      request.mutable_file_containing_extension()->set_containing_type(name());
      request.mutable_file_containing_extension()->set_extension_number(bytes->Signed32());
      break;
    default:
      request.set_file_containing_symbol(std::string(kMaxRequestBytes - 8 + bytes->Below(16), 'x'));
  }
  return request.SerializePartialAsString();
}

}  // namespace

void FuzzOne(std::string_view input) {
  static const Server& server = *new Server;
  ByteSource bytes(input);
  std::vector<std::unique_ptr<Stream>> streams;
  Disturbed disturbed;
  const auto open = [&] {
    streams.push_back(std::make_unique<Stream>(server, bytes.Flip()));
    disturbed.crowded = streams.size() > kPlaces;
  };
  open();
  for (int n = 0; n < 64 && !bytes.spent(); ++n) {
    Stream& stream = *streams[bytes.Below(streams.size())];
    switch (bytes.Below(16)) {
      case 0:
        if (streams.size() < kMaxStreams) open();
        break;
      case 1:
        stream.Close();
        break;
      case 2:
        stream.Cancel();
        break;
      case 3:
        disturbed.swept = true;
        for (const auto& rpc : server.live->All())
          rpc->CheckProgress(SteadyClock().Now() + 2 * kIdle);
        break;
      case 4:
      case 5:
        stream.Read();
        break;
      case 6:
      case 7:
      case 8:
        stream.Send(std::string(bytes.Text(255)));
        break;
      case 9:
        stream.Send(std::string(bytes.Rest()));
        break;
      default:
        stream.Send(Made(&bytes));
    }
  }
  for (const auto& stream : streams) stream->End(disturbed);
  streams.clear();
  server.AwaitNobody();
}

}  // namespace aisp
