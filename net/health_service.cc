#include "net/health_service.h"

#include <list>
#include <unordered_map>
#include <utility>

#include "net/vain_calls.h"

namespace aisp {
namespace {

using Response = HealthService::Response;

bool Known(const std::string& service) { return service.empty() || service == "aisp.v1.Inference"; }

}  // namespace

// Shared with the watchers, which may outlive the service.
struct HealthService::State {
  Response::ServingStatus Status() const {
    return serving ? Response::SERVING : Response::NOT_SERVING;
  }

  // They need no key. Where all places are taken, who came first of the address with most of them
  // leaves: nobody's watchers keep others out.
  std::shared_ptr<Watcher> TakeOneToEnd();

  std::mutex mutex;
  bool serving = false;
  std::list<std::shared_ptr<Watcher>> watchers;  // in the order in which they came
};

// Sends the newest state, and skips those that came and went while a message was on its way.
class HealthService::Watcher final : public RpcReactor<grpc::ServerWriteReactor<Response>> {
 public:
  // `known`: of a service that is here.
  Watcher(grpc::CallbackServerContext* context, std::shared_ptr<LiveRpcs> live,
          std::shared_ptr<State> state, bool known)
      : RpcReactor(context, std::move(live)),
        state_(std::move(state)),
        address_(AddressOfPeer(context->peer())),
        known_(known) {}
  const std::string& address() const { return address_; }
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
      state_->watchers.remove(self);
    }
    RpcReactor::OnDone();
  }

 private:
  void WriteNewest() {
    if (finished_) return;
    writing_ = true;
    message_.set_status(newest_);
    this->StartWrite(&message_);
  }

  const std::shared_ptr<State> state_;
  const std::string address_;
  const bool known_;
  Response message_;
  Response::ServingStatus newest_ = Response::UNKNOWN;
  bool writing_ = false;
};

std::shared_ptr<HealthService::Watcher> HealthService::State::TakeOneToEnd() {
  std::unordered_map<std::string, size_t> held;
  for (const auto& watcher : watchers) ++held[watcher->address()];
  auto first = watchers.end();
  for (auto it = watchers.begin(); it != watchers.end(); ++it) {
    if (first == watchers.end() || held[(*it)->address()] > held[(*first)->address()]) first = it;
  }
  if (first == watchers.end()) return nullptr;
  std::shared_ptr<Watcher> taken = *first;
  watchers.erase(first);
  return taken;
}

HealthService::HealthService(std::shared_ptr<LiveRpcs> live, size_t max_watchers)
    : live_(std::move(live)), max_watchers_(max_watchers), state_(std::make_shared<State>()) {}
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
  // Those that were told to leave are still there for a moment.
  if (const Error refused = live_->Admit(watcher, /*bounded=*/false, 2 * max_watchers_);
      refused.code != Code::kOk) {
    watcher->Abort(refused);
    return watcher.get();
  }
  std::shared_ptr<Watcher> leaves;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->watchers.size() >= max_watchers_) leaves = state_->TakeOneToEnd();
    state_->watchers.push_back(watcher);
    watcher->Show(watcher->known() ? state_->Status() : Response::SERVICE_UNKNOWN);
  }
  if (leaves) leaves->Abort({Code::kResourceExhausted, "too many watch; ask again, or with Check"});
  return watcher.get();
}

}  // namespace aisp
