#include "net/health_service.h"

#include <unordered_set>
#include <utility>

#include "net/abandoned_calls.h"
#include "net/open_places.h"

namespace aisp {
namespace {

using Response = HealthService::Response;

bool Known(const std::string& service) { return service.empty() || service == "aisp.v1.Inference"; }

}  // namespace

// Shared with the watchers, which may outlive the service.
struct HealthService::State {
  explicit State(size_t max_watchers) : places(max_watchers) {}
  Response::ServingStatus Status() const {
    return serving ? Response::SERVING : Response::NOT_SERVING;
  }

  std::mutex mutex;
  bool serving = false;
  std::unordered_set<std::shared_ptr<Watcher>> watchers;
  OpenPlaces places;
};

// Sends the newest state; states that changed during a write are skipped.
class HealthService::Watcher final : public RpcReactor<grpc::ServerWriteReactor<Response>> {
 public:
  // `known`: whether the watched service exists.
  Watcher(grpc::CallbackServerContext* context, std::shared_ptr<LiveRpcs> live,
          std::shared_ptr<State> state, bool known)
      : RpcReactor(context, std::move(live)), state_(std::move(state)), known_(known) {}
  bool known() const { return known_; }

  void Show(Response::ServingStatus status) {
    const std::lock_guard lock(mutex_);
    newest_ = status;
    if (!writing_) WriteNewest();
  }
  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    if (ok && newest_ != message_.status()) WriteNewest();
  }
  void OnDone() override {
    const auto self = std::static_pointer_cast<Watcher>(shared_from_this());
    {
      const std::lock_guard lock(state_->mutex);
      state_->watchers.erase(self);
    }
    state_->places.Leave(this);
    RpcReactor::OnDone();
  }
  void Evict(const Error& status) override {
    const std::lock_guard lock(mutex_);
    // The end would wait behind a message that the client does not read, so cancel.
    if (writing_ && !finished_) context_->TryCancel();
    FinishOnce(ToGrpc(status));
  }

 private:
  void WriteNewest() {
    if (finished_) return;
    writing_ = true;
    message_.set_status(newest_);
    this->StartWrite(&message_);
  }

  const std::shared_ptr<State> state_;
  const bool known_;
  Response message_;
  Response::ServingStatus newest_ = Response::UNKNOWN;
  bool writing_ = false;
};

HealthService::HealthService(std::shared_ptr<LiveRpcs> live, size_t max_watchers, size_t all_calls)
    : live_(std::move(live)),
      all_calls_(all_calls),
      state_(std::make_shared<State>(max_watchers)) {}
HealthService::~HealthService() = default;

void HealthService::SetServing(bool serving) {
  const std::lock_guard lock(state_->mutex);
  if (std::exchange(state_->serving, serving) == serving) return;
  for (const auto& watcher : state_->watchers) {
    if (watcher->known()) watcher->Show(state_->Status());
  }
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const Request* request, Response* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!Known(request->service())) {
    reactor->Finish(
        {grpc::StatusCode::NOT_FOUND,
         "no service of this name is here; ask for aisp.v1.Inference or the empty name"});
    return reactor;
  }
  {
    const std::lock_guard lock(state_->mutex);
    response->set_status(state_->Status());
  }
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<Response>* HealthService::Watch(grpc::CallbackServerContext* context,
                                                         const Request* request) {
  auto watcher = std::make_shared<Watcher>(context, live_, state_, Known(request->service()));
  if (const Error refused = live_->Admit(watcher, /*bounded=*/false, all_calls_);
      refused.code != Code::kOk) {
    watcher->Abort(refused);
    return watcher.get();
  }
  if (const Error refused = RefuseMetadata(*context); refused.code != Code::kOk) {
    watcher->Abort(refused);
    return watcher.get();
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->watchers.insert(watcher);
    watcher->Show(watcher->known() ? state_->Status() : Response::SERVICE_UNKNOWN);
  }
  if (const auto leaves = state_->places.Take(watcher, AddressOfPeer(context->peer())))
    leaves->Evict({Code::kResourceExhausted, "too many watch; ask again, or with Check"});
  return watcher.get();
}

}  // namespace aisp
