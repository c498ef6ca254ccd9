#include "net/inference_server.h"

#include <algorithm>

#include "common/check.h"
#include "common/log.h"
#include "net/abandoned_calls.h"
#include "net/connection_bytes.h"
#include "net/grpc_acceptor.h"
#include "net/grpc_credentials.h"
#include "net/health_service.h"
#include "net/listen_socket.h"
#include "net/reflection_service.h"
#include "net/request_id.h"
#include "net/rpc_reactor.h"

namespace aisp {

namespace {

// Retry delay for clients that were refused for lack of room.
constexpr int kRetryAfterMs = 1000;
constexpr int kMaxStreamsPerConnection = 1024;
// Limits of one tenant or address.
constexpr AbandonedCalls::Limits kAbandonedCalls{.at_once = 1000, .per_second = 500};
// Streams that need no key: Health/Watch and reflection. Ended ones remain for a moment, hence the
// margin.
constexpr size_t kMaxWatchers = 256;
constexpr size_t kMaxReflecting = 256;
constexpr size_t kMaxWithoutKey = 2 * (kMaxWatchers + kMaxReflecting);
// The kernel doubles it. Holds about 300 heads of calls, or 1,600 of twenty bytes.
constexpr int kReceiveBuffer = 24 << 10;
constexpr int kLookAheadBytes = 64 << 10;
// Memory besides messages, for connections and calls.
constexpr size_t kQuotaBase = 256 << 20;
constexpr const char* kChoosePort = "--grpc-port N, 0 for a free one, or --no-grpc";
constexpr int kKeepAliveMs = 20'000;

constexpr int64_t kTenYearsS = int64_t{10} * 365 * 86'400;

// Clamps a client's deadline, which our clock may not be able to represent.
Instant ToInstant(gpr_timespec deadline, Instant now) {
  const gpr_timespec left = gpr_time_sub(gpr_convert_clock_type(deadline, GPR_CLOCK_REALTIME),
                                         gpr_now(GPR_CLOCK_REALTIME));
  if (left.tv_sec > kTenYearsS) return kNever;
  if (left.tv_sec < 0) return now;
  return now + std::chrono::seconds(left.tv_sec) + Duration(left.tv_nsec);
}

RpcInfo InfoOf(const grpc::CallbackServerContext& context, std::string method, Instant now) {
  RpcInfo info;
  info.method = std::move(method);
  info.peer = context.peer();
  info.received = now;
  info.deadline = ToInstant(context.raw_deadline(), now);
  for (const auto& [name, value] : context.client_metadata()) {
    info.metadata.emplace_back(std::string(name.data(), name.size()),
                               std::string(value.data(), value.size()));
  }
  return info;
}

// The loop's side of a call, shared by StreamHandle and UnaryHandle.
template <typename Interface, typename Request, typename Reactor>
class RpcHandle : public Interface,
                  public std::enable_shared_from_this<RpcHandle<Interface, Request, Reactor>> {
 public:
  RpcHandle(RpcInfo info, std::shared_ptr<Reactor> reactor, IoLoop* loop)
      : info_(std::move(info)), reactor_(std::move(reactor)), loop_(loop) {}

  // Call before the handler sees it; null: the message was not read.
  void SetRequest(std::unique_ptr<Request> request) {
    if (request != nullptr) request_.Swap(request.get());
  }
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

  // Tells the loop that the client is gone.
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
  // True for the first caller only.
  bool EndOnce() {
    on_gone_ = nullptr;
    return !std::exchange(ended_, true);
  }

  RpcInfo info_;
  Request request_;
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
    : public RpcHandle<StreamCall<Request, Event>, Request, StreamReactor<Request, Event>> {
 public:
  using RpcHandle<StreamCall<Request, Event>, Request, StreamReactor<Request, Event>>::RpcHandle;
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
    : public RpcHandle<UnaryCall<Request, Response>, Request, UnaryReactor<Request, Response>> {
 public:
  using RpcHandle<UnaryCall<Request, Response>, Request,
                  UnaryReactor<Request, Response>>::RpcHandle;
  ~UnaryHandle() override { Finish(this->Dropped(), {}); }

  Response* response() override { return &response_; }
  void Finish(const Error& status, const RpcMetadata& trailers) override {
    if (this->EndOnce()) this->reactor_->End(status, trailers, &response_);
  }

 private:
  Response response_;
};

RpcIntake::Limits IntakeLimitsOf(const InferenceServerOptions& o) {
  const size_t largest = std::max<size_t>(o.max_message_bytes, 1);
  return {.reading = std::max<size_t>(o.max_total_bytes / largest, 1),
          .reading_per_party = std::max<size_t>(o.max_client_bytes / largest, 1),
          .bytes = o.max_total_bytes};
}

// aisp.v1.Inference. Not the generated class, which calls a method only after its message was read
// (net/rpc_reactor.h). On the wire they are the same.
class ClientService final : public grpc::Service {
 public:
  ClientService(IoLoop* loop, const InferenceServerOptions& options, InferenceHandler* handler,
                std::shared_ptr<LiveRpcs> live, std::shared_ptr<ConnectionBytes> bytes,
                std::shared_ptr<AbandonedCalls> abandoned)
      : loop_(loop),
        options_(options),
        handler_(handler),
        live_(std::move(live)),
        bytes_(std::move(bytes)),
        abandoned_(std::move(abandoned)),
        intake_(std::make_shared<RpcIntake>(IntakeLimitsOf(options))),
        ids_(std::make_shared<RequestIds>(options.seed)) {
    using Stream = StreamReactor<v1::InferenceRequest, v1::InferenceEvent>;
    constexpr const char* kGenerate = "/aisp.v1.Inference/Generate";
    Add<v1::InferenceRequest, v1::InferenceEvent>(
        kGenerate, [this](grpc::CallbackServerContext* context) {
          auto reactor =
              std::make_shared<Stream>(context, live_, intake_, Times(), options_.max_unsent_bytes);
          return Open<StreamHandle<v1::InferenceRequest, v1::InferenceEvent>, v1::InferenceRequest>(
              context, kGenerate, reactor, &InferenceHandler::Generate);
        });
    AddUnary<v1::EmbedRequest, v1::EmbedResponse>("/aisp.v1.Inference/Embed",
                                                  &InferenceHandler::Embed);
    AddUnary<v1::ScoreRequest, v1::ScoreResponse>("/aisp.v1.Inference/Score",
                                                  &InferenceHandler::Score);
    AddUnary<v1::RerankRequest, v1::RerankResponse>("/aisp.v1.Inference/Rerank",
                                                    &InferenceHandler::Rerank);
    AddUnary<v1::TokenizeRequest, v1::TokenizeResponse>("/aisp.v1.Inference/Tokenize",
                                                        &InferenceHandler::Tokenize);
    AddUnary<v1::DetokenizeRequest, v1::DetokenizeResponse>("/aisp.v1.Inference/Detokenize",
                                                            &InferenceHandler::Detokenize);
    AddUnary<v1::ListModelsRequest, v1::ListModelsResponse>("/aisp.v1.Inference/ListModels",
                                                            &InferenceHandler::ListModels);
  }

  size_t reading() const { return intake_->reading(); }

 private:
  RpcTimes Times() const {
    return {options_.read_timeout, options_.write_timeout, options_.min_taken_bytes};
  }
  template <typename Request, typename Event, typename Opener>
  void Add(const char* method, Opener open) {
    AddMethod(new grpc::internal::RpcServiceMethod(
        method, grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
    MarkMethodCallback(methods_++, new grpc::internal::CallbackBidiHandler<Request, Event>(open));
  }
  template <typename Request, typename Response, typename Method>
  void AddUnary(const char* name, Method method) {
    Add<Request, Response>(name, [this, name, method](grpc::CallbackServerContext* context) {
      auto reactor =
          std::make_shared<UnaryReactor<Request, Response>>(context, live_, intake_, Times());
      return Open<UnaryHandle<Request, Response>, Request>(context, name, reactor, method);
    });
  }

  // A call's head has arrived: registers it, reads its message if it may send one, and posts both
  // to the handler's thread.
  template <typename Handle, typename Request, typename Reactor, typename Method>
  Reactor* Open(grpc::CallbackServerContext* context, const char* name,
                const std::shared_ptr<Reactor>& reactor, Method method) {
    auto handle = std::make_shared<Handle>(InfoOf(*context, name, clock_.Now()), reactor, loop_);
    const std::string peer = PeerKey(handle->info().peer);
    auto tenant = options_.party ? options_.party(handle->info().Metadata("authorization"))
                                 : std::optional<std::string>("");
    const std::string address = AddressOfPeer(handle->info().peer);
    const std::string party = tenant && !tenant->empty() ? "tenant " + *tenant : address;
    reactor->OnGone([loop = loop_, weak = std::weak_ptr(handle), abandoned = abandoned_, party,
                     name = handle->info().peer](RpcCall::Gone why) {
      if (why == RpcCall::Gone::kClosed) abandoned->Count(party, name, SteadyClock().Now());
      loop->Post([weak, why] {
        if (const auto alive = weak.lock()) alive->Lose(why);
      });
    });
    if (tenant) {
      reactor->OnCameToSomething([abandoned = abandoned_, address, name = handle->info().peer] {
        abandoned->GiveBack(address, name);
      });
    }
    if (Error refused = live_->Admit(reactor, /*bounded=*/true, options_.max_calls);
        refused.code != Code::kOk) {
      handle->Finish(refused, {{"retry-after-ms", std::to_string(kRetryAfterMs)}});
      return reactor.get();
    }
    if (Error refused = RefuseMetadata(*context); refused.code != Code::kOk) {
      handle->Finish(refused, {});
      return reactor.get();
    }
    auto give = [loop = loop_, handle, ids = ids_, handler = handler_,
                 method](std::unique_ptr<Request> message) {
      handle->SetRequest(std::move(message));
      loop->Post([handle, ids, handler, method] {
        handle->Accept(ids->For(handle->info().Metadata("x-request-id")));
        (handler->*method)(handle);
      });
    };
    if (!tenant) {
      give(nullptr);
    } else {
      bytes_->OnReading(peer);
      reactor->Read(party, std::move(give),
                    [bytes = bytes_, peer](bool whole) { bytes->OnRead(peer, whole); });
    }
    return reactor.get();
  }

  IoLoop* const loop_;
  const InferenceServerOptions options_;
  InferenceHandler* const handler_;
  const std::shared_ptr<LiveRpcs> live_;
  const std::shared_ptr<ConnectionBytes> bytes_;
  const std::shared_ptr<AbandonedCalls> abandoned_;
  const std::shared_ptr<RpcIntake> intake_;
  const std::shared_ptr<RequestIds> ids_;  // used by the loop
  const SteadyClock clock_;
  int methods_ = 0;
};

}  // namespace

struct InferenceServer::Impl : std::enable_shared_from_this<InferenceServer::Impl> {
  Impl(IoLoop* l, const InferenceServerOptions& o, InferenceHandler* handler)
      : loop(l),
        options(o),
        live(std::make_shared<LiveRpcs>()),
        bytes(std::make_shared<ConnectionBytes>(o.max_message_bytes)),
        abandoned(std::make_shared<AbandonedCalls>(bytes, kAbandonedCalls)),
        health(live, kMaxWatchers, kMaxWithoutKey),
        reflection(
            live, {kMaxReflecting, kMaxWithoutKey, o.idle_timeout},
            {"aisp.v1.Inference", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"}),
        clients(l, o, handler, live, bytes, abandoned) {}

  // Runs periodically on the loop.
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
  const std::shared_ptr<ConnectionBytes> bytes;
  const std::shared_ptr<AbandonedCalls> abandoned;
  HealthService health;
  ReflectionService reflection;
  ClientService clients;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<GrpcAcceptor> acceptor;
  std::shared_ptr<IoLoop::Timer> timer;
  bool accepting = false;  // on a shared socket
  int port = 0;
};

InferenceServer::InferenceServer(IoLoop* loop, const InferenceServerOptions& options,
                                 InferenceHandler* handler)
    : impl_(std::make_shared<Impl>(loop, options, handler)) {}

InferenceServer::~InferenceServer() { Shutdown(std::chrono::milliseconds(500)); }

namespace {

int Millis(Duration d) { return static_cast<int>(ToMs(d)); }

void SetBounds(const InferenceServerOptions& o, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(o.max_message_bytes));
  // gRPC checks the size only after unpacking, when 16 MiB may have become 16 GiB.
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  grpc::ResourceQuota quota("clients");
  quota.Resize(o.max_total_bytes + kQuotaBase);
  builder->SetResourceQuota(quota);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, static_cast<int>(kMaxMetadataBytes));
  // Bounds what a stream may send before its message is requested.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kLookAheadBytes);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, Millis(o.read_timeout));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, Millis(o.idle_timeout));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, Millis(o.connection_age));
  // Detects clients that vanished without closing, so that their work stops.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepAliveMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepAliveMs);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
}

}  // namespace

Status InferenceServer::Start() {
  AISP_CHECK_MSG(!impl_->server, "Start is called once");
  const InferenceServerOptions& options = impl_->options;
  grpc::ServerBuilder builder;
  AISP_ASSIGN_OR_RETURN(auto credentials, ClientServerCredentials(options.tls));
  int listen_fd = options.listen_fd;
  if (listen_fd < 0) {
    AISP_ASSIGN_OR_RETURN(listen_fd, ListenOn(options.address, kChoosePort));
  }
  impl_->port = PortOf(listen_fd);
  impl_->acceptor = std::make_unique<GrpcAcceptor>(
      &builder, listen_fd, std::move(credentials),
      GrpcAcceptor::Limits{options.max_connections, options.max_connections_per_address,
                           kReceiveBuffer},
      impl_->bytes);
  builder.RegisterService(&impl_->clients);
  builder.RegisterService(&impl_->health);
  builder.RegisterService(&impl_->reflection);
  SetBounds(options, &builder);
  AbandonedCalls::Watch(impl_->abandoned, &builder);
  impl_->server = builder.BuildAndStart();
  if (!impl_->server) {
    return Unavailable("gRPC could not be started for clients on " + options.address);
  }
  // An own socket has no predecessor to wait for.
  if (options.listen_fd < 0) impl_->acceptor->Start();
  impl_->loop->Post([weak = std::weak_ptr(impl_)] {
    if (const auto impl = weak.lock()) impl->Sweep();
  });
  return {};
}

void InferenceServer::Accept() {
  if (!impl_->acceptor || impl_->options.listen_fd < 0) return;
  impl_->acceptor->Start();
  impl_->accepting = true;
}

uint16_t InferenceServer::port() const { return static_cast<uint16_t>(impl_->port); }
size_t InferenceServer::reading() const { return impl_->clients.reading(); }

void InferenceServer::SetServing(bool serving) { impl_->health.SetServing(serving); }

void InferenceServer::Drain(std::function<void()> done) {
  const auto refuse_and_wait = [live = impl_->live, loop = impl_->loop, done = std::move(done)] {
    live->Drain([loop, done] { loop->Post(done); });
  };
  // Clients may call on a connection until it ends by its age. Ending it at a fixed time would
  // refuse calls sent before the client saw the GOAWAY.
  if (impl_->acceptor && impl_->accepting && impl_->options.listen_fd >= 0) {
    impl_->acceptor->Retire(refuse_and_wait);
    impl_->live->EndWatching();
  } else {
    refuse_and_wait();
  }
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
