#include "net/reflection_service.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <functional>
#include <set>
#include <utility>

#include "common/check.h"
#include "net/abandoned_calls.h"

namespace aisp {
namespace {

namespace reflection = grpc::reflection::v1;
using reflection::ServerReflectionRequest;
using reflection::ServerReflectionResponse;

// Enough for names of files, symbols and a host; the answer repeats the request.
constexpr size_t kMaxRequestBytes = 16 << 10;

const google::protobuf::DescriptorPool& Linked() {
  return *google::protobuf::DescriptorPool::generated_pool();
}

void Refuse(grpc::StatusCode code, std::string why, ServerReflectionResponse* out) {
  out->mutable_error_response()->set_error_code(code);
  out->mutable_error_response()->set_error_message(std::move(why));
}

}  // namespace

ServedFiles::ServedFiles(const std::vector<std::string>& services) : services_(services) {
  for (const std::string& name : services_) {
    const auto* const service = Linked().FindServiceByName(name);
    AISP_CHECK_MSG(service != nullptr, "a service of this port has no descriptor");
    Add(service->file());
  }
}

void ServedFiles::Add(const File* file) {
  if (files_.contains(file->name())) return;
  google::protobuf::FileDescriptorProto text;
  file->CopyTo(&text);
  files_[file->name()] = text.SerializeAsString();
  for (int i = 0; i < file->dependency_count(); ++i) Add(file->dependency(i));
}

bool ServedFiles::Has(const File* file) const {
  return file != nullptr && files_.contains(file->name());
}

void ServedFiles::Describe(const File* file, ServerReflectionResponse* out) const {
  if (!Has(file)) return Refuse(grpc::StatusCode::NOT_FOUND, "not known here", out);
  auto* const all = out->mutable_file_descriptor_response();
  std::set<const File*> told;
  const std::function<void(const File*)> tell = [&](const File* each) {
    if (!told.insert(each).second) return;
    all->add_file_descriptor_proto(files_.at(each->name()));
    for (int i = 0; i < each->dependency_count(); ++i) tell(each->dependency(i));
  };
  tell(file);
}

ServerReflectionResponse ServedFiles::Answer(const ServerReflectionRequest& request) const {
  ServerReflectionResponse out;
  out.set_valid_host(request.host());
  *out.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kFileByFilename:
      Describe(Linked().FindFileByName(request.file_by_filename()), &out);
      break;
    case ServerReflectionRequest::kFileContainingSymbol:
      Describe(Linked().FindFileContainingSymbol(request.file_containing_symbol()), &out);
      break;
    case ServerReflectionRequest::kAllExtensionNumbersOfType: {
      // proto3 has no extensions, so the list is empty.
      const std::string& name = request.all_extension_numbers_of_type();
      const auto* const type = Linked().FindMessageTypeByName(name);
      if (type == nullptr || !Has(type->file())) {
        Refuse(grpc::StatusCode::NOT_FOUND, "not known here", &out);
      } else {
        out.mutable_all_extension_numbers_response()->set_base_type_name(name);
      }
      break;
    }
    case ServerReflectionRequest::kListServices:
      for (const std::string& name : services_)
        out.mutable_list_services_response()->add_service()->set_name(name);
      break;
    case ServerReflectionRequest::kFileContainingExtension:
      Refuse(grpc::StatusCode::NOT_FOUND, "nothing here has extensions", &out);
      break;
    case ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      Refuse(grpc::StatusCode::INVALID_ARGUMENT, "the request asks for nothing known", &out);
      break;
  }
  return out;
}

// Handles one request at a time: the next is read after the answer was written.
class ReflectionService::Stream final
    : public RpcReactor<grpc::ServerBidiReactor<grpc::ByteBuffer, ServerReflectionResponse>> {
 public:
  Stream(grpc::CallbackServerContext* context, std::shared_ptr<LiveRpcs> live,
         std::shared_ptr<OpenPlaces> places, std::shared_ptr<const ServedFiles> files,
         Duration idle)
      : RpcReactor(context, std::move(live)),
        places_(std::move(places)),
        files_(std::move(files)),
        idle_(idle),
        since_(clock_.Now()) {}

  void Begin() {
    const std::lock_guard lock(mutex_);
    if (!finished_) StartRead(&message_);
  }
  void OnReadDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    if (!ok) return FinishOnce(grpc::Status::OK);
    if (message_.Length() > kMaxRequestBytes) {
      return FinishOnce(
          {grpc::StatusCode::INVALID_ARGUMENT, "a request of reflection is larger than " +
                                                   std::to_string(kMaxRequestBytes) + " bytes"});
    }
    ServerReflectionRequest request;
    if (!grpc::SerializationTraits<ServerReflectionRequest>::Deserialize(&message_, &request)
             .ok()) {
      return FinishOnce({grpc::StatusCode::INVALID_ARGUMENT,
                         "a message is no grpc.reflection.v1.ServerReflectionRequest"});
    }
    response_ = files_->Answer(request);
    since_ = clock_.Now();
    writing_ = true;
    StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    since_ = clock_.Now();
    if (ok && !finished_) StartRead(&message_);
  }
  void Evict(const Error& status) override {
    const std::lock_guard lock(mutex_);
    // The end would wait behind an answer that the client does not read, so cancel.
    if (writing_ && !finished_) context_->TryCancel();
    FinishOnce(ToGrpc(status));
  }
  void CheckProgress(Instant now) override {
    {
      const std::lock_guard lock(mutex_);
      if (finished_ || now - since_ < idle_) return;
    }
    Evict({Code::kDeadlineExceeded, "nothing was asked for " +
                                        std::to_string(static_cast<int64_t>(ToMs(idle_))) +
                                        " ms (http.idle_timeout)"});
  }
  void OnDone() override {
    places_->Leave(this);
    RpcReactor::OnDone();
  }

 private:
  const std::shared_ptr<OpenPlaces> places_;
  const std::shared_ptr<const ServedFiles> files_;
  const Duration idle_;
  const SteadyClock clock_;
  // Unparsed: gRPC takes a message that does not parse for the end of the client's stream.
  grpc::ByteBuffer message_;
  ServerReflectionResponse response_;
  Instant since_;
  bool writing_ = false;
};

ReflectionService::ReflectionService(std::shared_ptr<LiveRpcs> live, const Limits& limits,
                                     const std::vector<std::string>& services)
    : live_(std::move(live)),
      limits_(limits),
      files_(std::make_shared<ServedFiles>(services)),
      places_(std::make_shared<OpenPlaces>(limits.streams)) {
  int index = 0;
  for (const char* const method :
       {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}) {
    AddMethod(new grpc::internal::RpcServiceMethod(
        method, grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
    MarkMethodCallback(
        index++,
        new grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, ServerReflectionResponse>(
            [this](grpc::CallbackServerContext* context) { return Open(context); }));
  }
}

ReflectionService::Stream* ReflectionService::Open(grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<Stream>(context, live_, places_, files_, limits_.idle);
  if (const Error refused = live_->Admit(stream, /*bounded=*/false, limits_.all_calls);
      refused.code != Code::kOk) {
    stream->Abort(refused);
    return stream.get();
  }
  if (const Error refused = RefuseMetadata(*context); refused.code != Code::kOk) {
    stream->Abort(refused);
    return stream.get();
  }
  if (const auto leaves = places_->Take(stream, AddressOfPeer(context->peer()))) {
    leaves->Evict({Code::kResourceExhausted, "too many ask for reflection; ask again"});
  }
  stream->Begin();
  return stream.get();
}

}  // namespace aisp
