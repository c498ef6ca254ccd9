#include "net/inference_client.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>

#include "common/strings.h"
#include "inference.grpc.pb.h"
#include "net/connection_bytes.h"
#include "net/dialled_bytes.h"

namespace aisp {
namespace {

// gRPC has one lock per connection, so many streams need several connections.
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

// Limits for untrusted servers: one message, and the events of one stream that await the loop.
constexpr size_t kMaxMessageBytes = 16 << 20;
constexpr size_t kMaxPostedBytes = 1 << 20;
// Incomplete messages that may arrive on one connection at a time.
constexpr int kMessagesAtOnce = 4;

// The connections to one server.
class Connections {
 public:
  std::shared_ptr<grpc::Channel> Connect(const std::string& address, const std::string& key) {
    grpc::ChannelArguments arguments;
    DialledBytes::Bound(kMaxMessageBytes, &arguments);
    // Each channel has its own socket mutator, so channels share no connections.
    dialled_.Watch(key, &arguments);
    for (int i = 0; i < kMessagesAtOnce; ++i) bytes_->OnReading(key);
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }
  const std::shared_ptr<ConnectionBytes>& bytes() const { return bytes_; }

 private:
  const std::shared_ptr<ConnectionBytes> bytes_ =
      std::make_shared<ConnectionBytes>(kMaxMessageBytes);
  DialledBytes dialled_{bytes_};
};

// Counts the reactors that gRPC still holds.
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

// Shared by call and reactor: gRPC releases the reactor, the owner releases the call.
struct Shared {
  IoLoop* loop = nullptr;
  std::shared_ptr<Live> live;
  std::shared_ptr<ConnectionBytes> bytes;
  std::string connection;
  grpc::ClientContext context;
  v1::InferenceRequest request;
  InferenceListener* listener = nullptr;  // loop thread only; null: abandoned

  std::mutex mutex;
  size_t posted_bytes = 0;        // bytes of events posted to the loop
  bool abandoned = false;         // reading continues without the loop
  std::function<void()> read_on;  // set while reading waits for the loop
};

// Subtracts handled bytes; resumes reading that waited for them. An abandoned call reads on.
void Release(Shared* shared, size_t bytes) {
  std::function<void()> read_on;
  {
    const std::lock_guard lock(shared->mutex);
    shared->posted_bytes -= bytes;
    if (!shared->abandoned && shared->posted_bytes > kMaxPostedBytes / 2) return;
    read_on = std::exchange(shared->read_on, nullptr);
  }
  if (read_on) read_on();
}

class Reactor final : public grpc::ClientReadReactor<v1::InferenceEvent> {
 public:
  Reactor(v1::Inference::Stub* stub, std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {
    shared_->live->Add();
    stub->async()->Generate(&shared_->context, &shared_->request, this);
    // Lets the loop start reads until one has failed.
    AddHold();
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
    if (!ok) return RemoveHold();
    shared_->bytes->OnProgress(shared_->connection);
    const size_t bytes = event_.ByteSizeLong();
    bool wait = false;
    v1::InferenceEvent event = std::move(event_);
    event_ = {};
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->posted_bytes += bytes;
      wait = !shared_->abandoned && shared_->posted_bytes > kMaxPostedBytes;
      if (wait) shared_->read_on = [this] { StartRead(&event_); };
    }
    shared_->loop->Post([shared = shared_, event = std::move(event), bytes] {
      if (shared->listener != nullptr) shared->listener->OnEvent(event);
      Release(shared.get(), bytes);
    });
    if (!wait) StartRead(&event_);
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
  // gRPC's own implementation aborts when a connection ends inside a head.
  bool InternalTrailersOnly(const grpc_call*) const override { return false; }
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
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->abandoned = true;
    }
    // The client may wait for the reactor on the loop's thread, so nothing posted would run.
    Release(shared_.get(), 0);
  }

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace

struct InferenceClient::Impl {
  IoLoop* loop = nullptr;
  Connections connections;
  std::vector<std::unique_ptr<v1::Inference::Stub>> stubs;
  std::shared_ptr<Live> live = std::make_shared<Live>();
  size_t next = 0;
};

InferenceClient::InferenceClient(IoLoop* loop, const std::string& address)
    : impl_(std::make_shared<Impl>()) {
  impl_->loop = loop;
  for (int i = 0; i < kConnections; ++i) {
    impl_->stubs.push_back(
        v1::Inference::NewStub(impl_->connections.Connect(address, std::to_string(i))));
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
  const size_t number = impl_->next++ % impl_->stubs.size();
  shared->bytes = impl_->connections.bytes();
  shared->connection = std::to_string(number);
  new Reactor(impl_->stubs[number].get(), shared);  // deletes itself
  return std::make_unique<Call>(std::move(shared));
}

Result<v1::ListModelsResponse> InferenceClient::ListModels(const std::string& address,
                                                           const InferenceMetadata& metadata,
                                                           Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(DeadlineIn(timeout));
  AddMetadata(metadata, &context);
  v1::ListModelsResponse out;
  Connections connections;
  const auto status = v1::Inference::NewStub(connections.Connect(address, "0"))
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
  Connections connections;
  const auto status =
      v1::Inference::NewStub(connections.Connect(address, "0"))->Tokenize(&context, request, &out);
  if (!status.ok()) return tl::unexpected(FromGrpc(status));
  return out;
}

}  // namespace aisp
