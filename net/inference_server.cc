#include "net/inference_server.h"

#include <algorithm>

#include "common/check.h"
#include "common/log.h"
#include "inference.grpc.pb.h"
#include "net/grpc_acceptor.h"
#include "net/grpc_bind.h"
#include "net/grpc_reflection.h"
#include "net/health_service.h"
#include "net/listen_socket.h"
#include "net/request_id.h"
#include "net/rpc_reactor.h"

namespace aisp {

std::string_view RpcInfo::Metadata(std::string_view name) const {
  for (const auto& [key, value] : metadata) {
    if (key == name) return value;
  }
  return "";
}

Error LiveRpcs::Admit(std::shared_ptr<LiveRpc> rpc, bool bounded, size_t limit) {
  const std::lock_guard lock(mutex_);
  auto& set = bounded ? bounded_ : watching_;
  set.insert(std::move(rpc));
  if (stopped_ || draining_) {
    return {Code::kUnavailable, "this router is draining; use another one"};
  }
  if (set.size() > limit) {
    return {Code::kResourceExhausted, "the server has all the calls that it allows (" +
                                          std::to_string(limit) + "); try again soon"};
  }
  return {Code::kOk, ""};
}

void LiveRpcs::Remove(const std::shared_ptr<LiveRpc>& rpc) {
  std::function<void()> idle;
  {
    const std::lock_guard lock(mutex_);
    watching_.erase(rpc);
    if (bounded_.erase(rpc) == 0 || !bounded_.empty()) return;
    idle = std::exchange(idle_, nullptr);
  }
  if (idle) idle();
}

std::vector<std::shared_ptr<LiveRpc>> LiveRpcs::All() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<LiveRpc>> all(bounded_.begin(), bounded_.end());
  all.insert(all.end(), watching_.begin(), watching_.end());
  return all;
}

void LiveRpcs::Stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  idle_ = nullptr;
}

void LiveRpcs::Drain(std::function<void()> idle) {
  {
    const std::lock_guard lock(mutex_);
    draining_ = true;
    if (!bounded_.empty()) {
      idle_ = std::move(idle);
      return;
    }
  }
  idle();
}

namespace {

// How long a client that was refused for lack of room should wait.
constexpr int kRetryAfterMs = 1000;
constexpr int kMaxStreamsPerConnection = 1024;
constexpr size_t kMaxWatchers = 256;
constexpr int kKeepAliveMs = 20'000;
// Between GOAWAY and the last call that a client may have sent before it heard it.
constexpr Duration kGoodbye = std::chrono::milliseconds(250);

Instant ToInstant(std::chrono::system_clock::time_point deadline, Instant now) {
  if (deadline == std::chrono::system_clock::time_point::max()) return kNever;
  return now + std::chrono::duration_cast<Duration>(deadline - std::chrono::system_clock::now());
}

RpcInfo InfoOf(const grpc::CallbackServerContext& context, std::string method, Instant now) {
  RpcInfo info;
  info.method = std::move(method);
  info.peer = context.peer();
  info.received = now;
  info.deadline = ToInstant(context.deadline(), now);
  for (const auto& [name, value] : context.client_metadata()) {
    info.metadata.emplace_back(std::string(name.data(), name.size()),
                               std::string(value.data(), value.size()));
  }
  return info;
}

// What StreamHandle and UnaryHandle share: the loop's side of a call.
template <typename Interface, typename Request, typename Reactor>
class RpcHandle : public Interface,
                  public std::enable_shared_from_this<RpcHandle<Interface, Request, Reactor>> {
 public:
  RpcHandle(RpcInfo info, const Request& request, std::shared_ptr<Reactor> reactor, IoLoop* loop)
      : info_(std::move(info)), request_(request), reactor_(std::move(reactor)), loop_(loop) {}

  const RpcInfo& info() const override { return info_; }
  const Request& request() const override { return request_; }
  void AddHeader(std::string_view name, std::string_view value) override {
    reactor_->AddHeader(std::string(name), std::string(value));
  }
  void OnGone(std::function<void(RpcCall::Gone)> handler) override {
    on_gone_ = std::move(handler);
    if (!gone_) return;
    loop_->Post([weak = this->weak_from_this()] {
      if (const auto self = weak.lock()) self->Lose(self->why_);
    });
  }

  // The loop is told of the client's end.
  void Lose(RpcCall::Gone why) {
    gone_ = true;
    why_ = why;
    if (ended_ || !on_gone_) return;
    std::exchange(on_gone_, nullptr)(why);
  }
  void Accept(std::string request_id) {
    info_.request_id = std::move(request_id);
    AddHeader("x-request-id", info_.request_id);
  }

 protected:
  static Error Dropped() { return {Code::kInternal, "the request was given up inside the server"}; }
  // True for the first of all endings.
  bool EndOnce() {
    on_gone_ = nullptr;
    return !std::exchange(ended_, true);
  }

  RpcInfo info_;
  const Request request_;
  const std::shared_ptr<Reactor> reactor_;
  IoLoop* const loop_;

 private:
  bool ended_ = false;
  bool gone_ = false;
  RpcCall::Gone why_ = RpcCall::Gone::kClosed;
  std::function<void(RpcCall::Gone)> on_gone_;
};

template <typename Request, typename Event>
class StreamHandle final
    : public RpcHandle<StreamCall<Request, Event>, Request, StreamReactor<Event>> {
 public:
  using RpcHandle<StreamCall<Request, Event>, Request, StreamReactor<Event>>::RpcHandle;
  ~StreamHandle() override { Finish(this->Dropped(), {}); }

  void Write(Event event) override { this->reactor_->Send(std::move(event), clock_.Now()); }
  void Finish(const Error& status, const RpcMetadata& trailers) override {
    if (this->EndOnce()) this->reactor_->End(status, trailers);
  }

 private:
  const SteadyClock clock_;
};

template <typename Request, typename Response>
class UnaryHandle final
    : public RpcHandle<UnaryCall<Request, Response>, Request, UnaryReactor<Response>> {
 public:
  using RpcHandle<UnaryCall<Request, Response>, Request, UnaryReactor<Response>>::RpcHandle;
  ~UnaryHandle() override { Finish(this->Dropped(), {}); }

  Response* response() override { return &response_; }
  void Finish(const Error& status, const RpcMetadata& trailers) override {
    if (this->EndOnce()) this->reactor_->End(status, trailers, &response_);
  }

 private:
  Response response_;
};

class ClientService final : public v1::Inference::CallbackService {
 public:
  ClientService(IoLoop* loop, const InferenceServerOptions& options, InferenceHandler* handler,
                std::shared_ptr<LiveRpcs> live)
      : loop_(loop),
        options_(options),
        handler_(handler),
        live_(std::move(live)),
        ids_(std::make_shared<RequestIds>(options.seed)) {}

  grpc::ServerWriteReactor<v1::InferenceEvent>* Generate(
      grpc::CallbackServerContext* context, const v1::InferenceRequest* request) override {
    using Reactor = StreamReactor<v1::InferenceEvent>;
    auto reactor = std::make_shared<Reactor>(context, live_, options_.max_unsent_bytes,
                                             options_.write_timeout);
    return Dispatch<StreamHandle<v1::InferenceRequest, v1::InferenceEvent>>(
        context, "Generate", request, reactor, &InferenceHandler::Generate);
  }
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override {
    return DispatchUnary(context, "Tokenize", request, response, &InferenceHandler::Tokenize);
  }
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override {
    return DispatchUnary(context, "Detokenize", request, response, &InferenceHandler::Detokenize);
  }
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override {
    return DispatchUnary(context, "ListModels", request, response, &InferenceHandler::ListModels);
  }

 private:
  template <typename Request, typename Response, typename Method>
  grpc::ServerUnaryReactor* DispatchUnary(grpc::CallbackServerContext* context, const char* name,
                                          const Request* request, Response* response,
                                          Method method) {
    auto reactor = std::make_shared<UnaryReactor<Response>>(context, response, live_);
    return Dispatch<UnaryHandle<Request, Response>>(context, name, request, reactor, method);
  }

  // Registers the call and posts it to the handler's thread.
  template <typename Handle, typename Request, typename Reactor, typename Method>
  Reactor* Dispatch(grpc::CallbackServerContext* context, const char* name, const Request* request,
                    const std::shared_ptr<Reactor>& reactor, Method method) {
    RpcInfo info = InfoOf(*context, std::string("/aisp.v1.Inference/") + name, clock_.Now());
    auto handle = std::make_shared<Handle>(std::move(info), *request, reactor, loop_);
    reactor->OnGone([loop = loop_, weak = std::weak_ptr(handle)](RpcCall::Gone why) {
      loop->Post([weak, why] {
        if (const auto alive = weak.lock()) alive->Lose(why);
      });
    });
    if (Error refused = live_->Admit(reactor, /*bounded=*/true, options_.max_calls);
        refused.code != Code::kOk) {
      handle->Finish(refused, {{"retry-after-ms", std::to_string(kRetryAfterMs)}});
      return reactor.get();
    }
    loop_->Post([handle, ids = ids_, handler = handler_, method] {
      handle->Accept(ids->For(handle->info().Metadata("x-request-id")));
      (handler->*method)(handle);
    });
    return reactor.get();
  }

  IoLoop* const loop_;
  const InferenceServerOptions options_;
  InferenceHandler* const handler_;
  const std::shared_ptr<LiveRpcs> live_;
  const std::shared_ptr<RequestIds> ids_;  // the loop's
  const SteadyClock clock_;
};

}  // namespace

struct InferenceServer::Impl : std::enable_shared_from_this<InferenceServer::Impl> {
  Impl(IoLoop* l, const InferenceServerOptions& o, InferenceHandler* handler)
      : loop(l),
        options(o),
        live(std::make_shared<LiveRpcs>()),
        health(live, kMaxWatchers),
        clients(l, o, handler, live) {}

  // On the loop, again and again.
  void Sweep() {
    for (const auto& rpc : live->All()) rpc->CheckProgress(clock.Now());
    const Duration period = std::clamp<Duration>(
        options.write_timeout / 8, std::chrono::milliseconds(5), std::chrono::seconds(1));
    timer = loop->RunAt(clock.Now() + period, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->Sweep();
    });
  }

  IoLoop* const loop;
  const InferenceServerOptions options;
  const SteadyClock clock;
  const std::shared_ptr<LiveRpcs> live;
  HealthService health;
  ClientService clients;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<GrpcAcceptor> acceptor;
  std::shared_ptr<IoLoop::Timer> timer, drain_timer;
  int port = 0;
};

InferenceServer::InferenceServer(IoLoop* loop, const InferenceServerOptions& options,
                                 InferenceHandler* handler)
    : impl_(std::make_shared<Impl>(loop, options, handler)) {}

InferenceServer::~InferenceServer() { Shutdown(std::chrono::milliseconds(500)); }

Status InferenceServer::Start() {
  AISP_CHECK_MSG(!impl_->server, "Start is called once");
  grpc::ServerBuilder builder;
  builder.SetOption(ReflectionOption(Reflection::kOn));
  const int listen_fd = impl_->options.listen_fd;
  if (listen_fd >= 0) {
    impl_->port = PortOf(listen_fd);
    impl_->acceptor = std::make_unique<GrpcAcceptor>(&builder, listen_fd);
  } else {
    builder.AddListeningPort(impl_->options.address, grpc::InsecureServerCredentials(),
                             &impl_->port);
  }
  builder.RegisterService(&impl_->clients);
  builder.RegisterService(&impl_->health);
  builder.SetMaxReceiveMessageSize(static_cast<int>(impl_->options.max_message_bytes));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                             static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                                  impl_->options.connection_age)
                                                  .count()));
  // A client that vanished without a word is noticed, and what is computed for it stops.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepAliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepAliveMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  impl_->server = builder.BuildAndStart();
  if (!impl_->server || impl_->port == 0) {
    impl_->server.reset();
    return tl::unexpected(
        BindError(impl_->options.address, "--grpc-port N, 0 for a free one, or --no-grpc"));
  }
  impl_->loop->Post([weak = std::weak_ptr(impl_)] {
    if (const auto impl = weak.lock()) impl->Sweep();
  });
  return {};
}

void InferenceServer::Accept() {
  if (impl_->acceptor) impl_->acceptor->Start();
}

uint16_t InferenceServer::port() const { return static_cast<uint16_t>(impl_->port); }

void InferenceServer::SetServing(bool serving) { impl_->health.SetServing(serving); }

void InferenceServer::Drain(std::function<void()> done) {
  const auto refuse_and_wait = [live = impl_->live, loop = impl_->loop, done = std::move(done)] {
    live->Drain([loop, done] { loop->Post(done); });
  };
  if (!impl_->acceptor) return refuse_and_wait();
  impl_->acceptor->Stop();
  const std::optional<Instant> youngest = impl_->acceptor->last_accept();
  const Instant now = impl_->clock.Now();
  // gRPC spreads the age by 10 %.
  const Duration longest = impl_->options.connection_age * 9 / 8 + kGoodbye;
  if (!youngest || now - *youngest >= longest) return refuse_and_wait();
  impl_->drain_timer = impl_->loop->RunAt(*youngest + longest, refuse_and_wait);
}

void InferenceServer::Shutdown(std::chrono::milliseconds limit) {
  if (!impl_->server) return;
  if (impl_->acceptor) impl_->acceptor->Stop();
  impl_->live->Stop();
  for (const auto& rpc : impl_->live->All()) {
    rpc->Abort({Code::kUnavailable, "the server is shutting down"});
  }
  impl_->server->Shutdown(std::chrono::system_clock::now() + limit);
  impl_->server->Wait();
  impl_->server.reset();
}

}  // namespace aisp
