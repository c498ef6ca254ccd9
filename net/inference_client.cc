#include "net/inference_client.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>

#include <condition_variable>
#include <mutex>

#include "common/strings.h"
#include "inference.grpc.pb.h"

namespace aisp {
namespace {

// One connection is one TCP stream and one lock in gRPC: a thousand streams want more than one.
constexpr int kConnections = 8;

Error FromGrpc(const grpc::Status& status) {
  return {static_cast<Code>(status.error_code()), status.error_message()};
}

void AddMetadata(const InferenceMetadata& metadata, grpc::ClientContext* context) {
  for (const auto& [name, value] : metadata) context->AddMetadata(name, value);
}

std::chrono::system_clock::time_point DeadlineIn(Duration timeout) {
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(timeout);
}

std::shared_ptr<grpc::Channel> Connect(const std::string& address, int number) {
  grpc::ChannelArguments arguments;
  // Channels with equal arguments share their connections.
  arguments.SetInt("aisp.connection", number);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

// How many reactors gRPC still knows.
class Live {
 public:
  void Add() {
    const std::lock_guard lock(mutex_);
    ++count_;
  }
  void Remove() {
    const std::lock_guard lock(mutex_);
    if (--count_ == 0) empty_.notify_all();
  }
  void AwaitNone() {
    std::unique_lock lock(mutex_);
    empty_.wait(lock, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable empty_;
  int count_ = 0;
};

// What call and reactor share: the reactor as long as gRPC needs it, the call as long as its owner
// wants to hear.
struct Shared {
  IoLoop* loop = nullptr;
  std::shared_ptr<Live> live;
  grpc::ClientContext context;
  v1::InferenceRequest request;
  InferenceListener* listener = nullptr;  // loop thread only; null: abandoned
};

class Reactor final : public grpc::ClientReadReactor<v1::InferenceEvent> {
 public:
  Reactor(v1::Inference::Stub* stub, std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {
    shared_->live->Add();
    stub->async()->Generate(&shared_->context, &shared_->request, this);
    StartRead(&event_);
    StartCall();
  }

  void OnReadInitialMetadataDone(bool ok) override {
    if (!ok) return;
    InferenceMetadata metadata;
    for (const auto& [name, value] : shared_->context.GetServerInitialMetadata()) {
      metadata.emplace_back(std::string(name.data(), name.size()),
                            std::string(value.data(), value.size()));
    }
    ToListener([metadata = std::move(metadata)](InferenceListener* listener) {
      for (const auto& [name, value] : metadata) listener->OnMetadata(name, value);
    });
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    ToListener(
        [event = std::move(event_)](InferenceListener* listener) { listener->OnEvent(event); });
    event_ = {};
    StartRead(&event_);
  }
  void OnDone(const grpc::Status& status) override {
    std::optional<Duration> retry_after;
    const auto& trailers = shared_->context.GetServerTrailingMetadata();
    if (const auto it = trailers.find("retry-after-ms"); it != trailers.end()) {
      const auto ms =
          ParseIntInRange(std::string(it->second.data(), it->second.size()), 0, 86400000);
      if (ms) retry_after = std::chrono::milliseconds(*ms);
    }
    ToListener([end = FromGrpc(status), retry_after](InferenceListener* listener) {
      listener->OnEnd(end, retry_after);
    });
    const std::shared_ptr<Live> live = shared_->live;
    delete this;
    live->Remove();
  }

 private:
  template <typename Fn>
  void ToListener(Fn fn) {
    shared_->loop->Post([shared = shared_, fn = std::move(fn)] {
      if (shared->listener != nullptr) fn(shared->listener);
    });
  }

  std::shared_ptr<Shared> shared_;
  v1::InferenceEvent event_;
};

class Call final : public InferenceCall {
 public:
  explicit Call(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  ~Call() override {
    shared_->listener = nullptr;
    shared_->context.TryCancel();
  }

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace

struct InferenceClient::Impl {
  IoLoop* loop = nullptr;
  std::vector<std::unique_ptr<v1::Inference::Stub>> stubs;
  std::shared_ptr<Live> live = std::make_shared<Live>();
  size_t next = 0;
};

InferenceClient::InferenceClient(IoLoop* loop, const std::string& address)
    : impl_(std::make_shared<Impl>()) {
  impl_->loop = loop;
  for (int i = 0; i < kConnections; ++i) {
    impl_->stubs.push_back(v1::Inference::NewStub(Connect(address, i)));
  }
}

InferenceClient::~InferenceClient() { impl_->live->AwaitNone(); }

std::unique_ptr<InferenceCall> InferenceClient::Generate(v1::InferenceRequest request,
                                                         const InferenceMetadata& metadata,
                                                         InferenceListener* listener) {
  auto shared = std::make_shared<Shared>();
  shared->loop = impl_->loop;
  shared->live = impl_->live;
  shared->request = std::move(request);
  shared->listener = listener;
  AddMetadata(metadata, &shared->context);
  new Reactor(impl_->stubs[impl_->next++ % impl_->stubs.size()].get(), shared);  // deletes itself
  return std::make_unique<Call>(std::move(shared));
}

Result<v1::ListModelsResponse> InferenceClient::ListModels(const std::string& address,
                                                           const InferenceMetadata& metadata,
                                                           Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(DeadlineIn(timeout));
  AddMetadata(metadata, &context);
  v1::ListModelsResponse out;
  const auto status = v1::Inference::NewStub(Connect(address, 0))
                          ->ListModels(&context, v1::ListModelsRequest(), &out);
  if (!status.ok()) return tl::unexpected(FromGrpc(status));
  return out;
}

Result<v1::TokenizeResponse> InferenceClient::Tokenize(const std::string& address,
                                                       const v1::TokenizeRequest& request,
                                                       const InferenceMetadata& metadata,
                                                       Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(DeadlineIn(timeout));
  AddMetadata(metadata, &context);
  v1::TokenizeResponse out;
  const auto status =
      v1::Inference::NewStub(Connect(address, 0))->Tokenize(&context, request, &out);
  if (!status.ok()) return tl::unexpected(FromGrpc(status));
  return out;
}

}  // namespace aisp
