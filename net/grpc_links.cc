#include "net/grpc_links.h"

#include <atomic>
#include <vector>

#include "common/check.h"
#include "common/log.h"
#include "kv.grpc.pb.h"
#include "net/abandoned_calls.h"
#include "net/dialled_bytes.h"
#include "net/grpc_acceptor.h"
#include "net/grpc_call.h"
#include "net/grpc_credentials.h"
#include "net/listen_socket.h"
#include "worker.grpc.pb.h"

namespace aisp {
namespace {

// How long a destroyed dialer waits for closed links to send their queues.
constexpr std::chrono::milliseconds kFlushLimit{500};
constexpr std::chrono::milliseconds kCancelLimit{5000};
constexpr int kConnectTimeoutMs = 5000;

// Bounds for peers that are not authenticated yet. A link is one stream on its own connection, so a
// connection without a stream for this long is no peer.
constexpr GrpcAcceptor::Limits kConnections{
    .connections = 4096, .per_address = 1024, .receive_buffer = 0};
constexpr int kHandshakeTimeoutMs = 10'000;
constexpr int kIdleMs = 30'000;
constexpr int kMaxStreamsPerConnection = 16;
// Links live for hours, but all workers of one address may reconnect at once.
constexpr AbandonedCalls::Limits kAbandonedLinks{.at_once = 1024, .per_second = 100};

int Ms(std::chrono::milliseconds duration) { return static_cast<int>(duration.count()); }

// "ipv4:127.0.0.1:5000" and "ipv6:%5B::1%5D:5000" in readable form.
std::string ReadablePeer(const std::string& peer) {
  std::string out;
  const size_t start = peer.starts_with("ipv4:") || peer.starts_with("ipv6:") ? 5 : 0;
  for (size_t i = start; i < peer.size(); ++i) {
    const std::string escape = peer.substr(i, 3);
    if (escape == "%5B" || escape == "%5D") {
      out.push_back(escape == "%5B" ? '[' : ']');
      i += 2;
    } else {
      out.push_back(peer[i]);
    }
  }
  return out;
}

class Endpoint {
 public:
  virtual ~Endpoint() = default;
  virtual void CloseAll() = 0;
};

// Refuses a stream; owned by gRPC.
template <typename In, typename Out>
class Refusal final : public grpc::ServerBidiReactor<In, Out> {
 public:
  Refusal() {
    this->Finish(grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                              "this port wants the cluster's token (cluster.token_file)"));
  }
  void OnDone() override { delete this; }
};

// The accepting side of one kind of link.
template <typename In, typename Out>
class ServerEndpoint final : public LinkSender<Out>, public Endpoint {
 public:
  using Call = GrpcCall<In, Out>;
  using Inbox = typename Call::Inbox;

  ServerEndpoint(LinkHandler<In>* handler, Poster post, const GrpcLinkOptions& options,
                 std::shared_ptr<ConnectionBytes> bytes)
      : options_(options),
        bytes_(std::move(bytes)),
        inbox_(std::make_shared<Inbox>(handler, std::move(post))),
        live_(std::make_shared<typename Call::Live>()) {}

  // Handles a new stream; gRPC owns the returned reactor.
  grpc::ServerBidiReactor<In, Out>* Accept(grpc::CallbackServerContext* context) {
    if (!HasToken(options_.security.get(), *context)) {
      LogWarning("a peer without the cluster's token was refused",
                 {{"peer", ReadablePeer(context->peer())}});
      return new Refusal<In, Out>();
    }
    const LinkId id(next_id_.fetch_add(1));
    auto call = std::make_shared<Call>(id, options_, inbox_, live_);
    // Before anything is read, so that Up is posted before the first message.
    const bool accepted = inbox_->Accept(id, ReadablePeer(context->peer()), call);
    auto* stream = new ServerStream<In, Out>(call, context, bytes_);
    if (!accepted) {
      call->EndStream(Error{Code::kUnavailable, "the server is shutting down"},
                      /*drop_unsent=*/false);
    }
    return stream;
  }

  void Send(LinkId link, Out message) override {
    if (const auto call = inbox_->Find(link)) call->Send(std::move(message));
  }
  Status Offer(LinkId link, Out message) override {
    const auto call = inbox_->Find(link);
    return call ? call->Offer(std::move(message)) : Status();
  }
  void Close(LinkId link) override {
    if (const auto call = inbox_->Forget(link)) call->Close();
  }
  void CloseAll() override {
    for (const auto& call : inbox_->Stop()) call->Close();
  }

 private:
  const GrpcLinkOptions options_;
  const std::shared_ptr<ConnectionBytes> bytes_;
  const std::shared_ptr<Inbox> inbox_;
  const std::shared_ptr<typename Call::Live> live_;
  std::atomic<uint64_t> next_id_{1};
};

class RouterControlService final : public v1::RouterControl::CallbackService {
 public:
  using Links = ServerEndpoint<v1::WorkerMessage, v1::RouterMessage>;
  explicit RouterControlService(Links* links) : links_(links) {}
  grpc::ServerBidiReactor<v1::WorkerMessage, v1::RouterMessage>* Attach(
      grpc::CallbackServerContext* context) override {
    return links_->Accept(context);
  }

 private:
  Links* const links_;
};

class KvPeerService final : public v1::KvPeer::CallbackService {
 public:
  using Links = ServerEndpoint<v1::DecodeToPrefill, v1::PrefillToDecode>;
  explicit KvPeerService(Links* links) : links_(links) {}
  grpc::ServerBidiReactor<v1::DecodeToPrefill, v1::PrefillToDecode>* Session(
      grpc::CallbackServerContext* context) override {
    return links_->Accept(context);
  }

 private:
  Links* const links_;
};

// The dialling side of one kind of link. `Stub` is the generated stub of the service.
template <typename Stub, typename In, typename Out>
class GrpcDialer final : public LinkDialer<Out> {
 public:
  using Call = GrpcCall<In, Out>;
  using Inbox = typename Call::Inbox;
  using Bind = void (*)(Stub*, grpc::ClientContext*, grpc::ClientBidiReactor<Out, In>*);

  GrpcDialer(LinkHandler<In>* handler, Poster post, const GrpcLinkOptions& options, Bind bind)
      : options_(options),
        bind_(bind),
        bytes_(std::make_shared<ConnectionBytes>(options.max_message_bytes)),
        dialled_(bytes_),
        inbox_(std::make_shared<Inbox>(handler, std::move(post))),
        live_(std::make_shared<typename Call::Live>()) {}

  ~GrpcDialer() override {
    inbox_->Stop();
    const Error why{Code::kCancelled, "the dialling side is gone"};
    bool flushing = false;
    for (const auto& call : live_->All()) {
      const bool closing = call->closing();
      flushing |= closing;
      if (!closing) call->Abort(why);
    }
    if (flushing) live_->AwaitEmpty(kFlushLimit);
    for (const auto& call : live_->All()) call->Abort(why);
    if (live_->AwaitEmpty(kCancelLimit)) return;
    LogWarning("grpc_calls_left_behind");
    static_cast<void>(std::make_unique<Channels>(std::move(channels_)).release());  // leaked on
                                                                                    // purpose, see
                                                                                    // channels_
  }

  LinkId Dial(const std::string& address) override {
    const LinkId id(next_id_++);
    auto call = std::make_shared<Call>(id, options_, inbox_, live_);
    inbox_->Expect(id, call);
    const std::string key = std::to_string(id.value);
    grpc::ChannelArguments arguments = Arguments();
    dialled_.Watch(key, &arguments);
    const auto credentials = LinkChannelCredentials(options_.security.get(), &arguments);
    const auto channel = grpc::CreateCustomChannel(address, credentials, arguments);
    const auto stub = std::make_unique<Stub>(channel);
    auto* stream = new ClientStream<In, Out>(call, address, bytes_, key, dialled_.Soon());
    stream->Start([&](grpc::ClientContext* context, grpc::ClientBidiReactor<Out, In>* reactor) {
      AddToken(options_.security.get(), context);
      bind_(stub.get(), context, reactor);
    });
    std::erase_if(channels_, [this](const auto& entry) { return !live_->Contains(entry.first); });
    channels_.emplace_back(std::move(call), channel);
    return id;
  }
  void Send(LinkId link, Out message) override {
    if (const auto call = inbox_->Find(link)) call->Send(std::move(message));
  }
  Status Offer(LinkId link, Out message) override {
    const auto call = inbox_->Find(link);
    return call ? call->Offer(std::move(message)) : Status();
  }
  void Close(LinkId link) override {
    if (const auto call = inbox_->Forget(link)) call->Close();
  }

 private:
  using Channels = std::vector<std::pair<std::shared_ptr<Call>, std::shared_ptr<grpc::Channel>>>;

  grpc::ChannelArguments Arguments() const {
    grpc::ChannelArguments args;
    // Bounds what a paused stream may send, as on the accepting side.
    DialledBytes::Bound(options_.max_message_bytes, &args);
    args.SetMaxSendMessageSize(static_cast<int>(options_.max_message_bytes));
    args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, Ms(options_.keepalive_interval));
    args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Ms(options_.keepalive_timeout));
    args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    // A redial must try at once, without the back-off left by an earlier link to the same address.
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
    args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    args.SetInt(GRPC_ARG_CLIENT_IDLE_TIMEOUT_MS, 1000);
    // Links stay inside the cluster: no proxy from the environment, no service config from DNS.
    args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    args.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
    return args;
  }

  const GrpcLinkOptions options_;
  const Bind bind_;
  const std::shared_ptr<ConnectionBytes> bytes_;  // of the connections of all links
  DialledBytes dialled_;
  const std::shared_ptr<Inbox> inbox_;
  const std::shared_ptr<typename Call::Live> live_;
  uint64_t next_id_ = 1;
  // gRPC 1.51 joins its callback threads when their last channel is destroyed. If a callback
  // releases that channel, a thread joins itself and the process aborts. So channels are released
  // on the owner's thread, after their stream has ended and while another is in use. Idle ones
  // disconnect after 1 s.
  Channels channels_;
};

}  // namespace

struct GrpcServer::Impl {
  template <typename Service, typename Handler>
  typename Service::Links* Add(Handler* handler, Poster post, const GrpcLinkOptions& link_options) {
    AISP_CHECK_MSG(!server, "services are added before Start");
    if (!bytes) {
      bytes = std::make_shared<ConnectionBytes>(link_options.max_message_bytes);
      abandoned = std::make_shared<AbandonedCalls>(bytes, kAbandonedLinks);
    }
    auto* links = new typename Service::Links(handler, std::move(post), link_options, bytes);
    endpoints.emplace_back(links);
    services.push_back(std::make_unique<Service>(links));
    options = link_options;
    return links;
  }

  std::vector<std::unique_ptr<Endpoint>> endpoints;
  std::vector<std::unique_ptr<grpc::Service>> services;
  void Configure(grpc::ServerBuilder* builder) const;

  Status StartOn(int listen_fd);

  GrpcLinkOptions options;
  std::shared_ptr<ConnectionBytes> bytes;  // of all connections
  std::shared_ptr<AbandonedCalls> abandoned;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<GrpcAcceptor> acceptor;
  bool handed_over = false;  // another process may hold the socket too
  int port = 0;
};

// An unused channel never connects.
struct GrpcKeeper::Impl {
  std::shared_ptr<grpc::Channel> channel =
      grpc::CreateChannel("127.0.0.1:1", grpc::InsecureChannelCredentials());
};
GrpcKeeper::GrpcKeeper() : impl_(std::make_unique<Impl>()) {}
GrpcKeeper::~GrpcKeeper() = default;

GrpcServer::GrpcServer() : impl_(std::make_unique<Impl>()) {}

GrpcServer::~GrpcServer() { Shutdown(kFlushLimit); }

LinkSender<v1::RouterMessage>* GrpcServer::ServeRouterControl(
    LinkHandler<v1::WorkerMessage>* handler, Poster post, const GrpcLinkOptions& options) {
  return impl_->Add<RouterControlService>(handler, std::move(post), options);
}

LinkSender<v1::PrefillToDecode>* GrpcServer::ServeKvPeer(LinkHandler<v1::DecodeToPrefill>* handler,
                                                         Poster post,
                                                         const GrpcLinkOptions& options) {
  return impl_->Add<KvPeerService>(handler, std::move(post), options);
}

void GrpcServer::Impl::Configure(grpc::ServerBuilder* builder) const {
  for (const auto& service : services) builder->RegisterService(service.get());
  builder->SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder->SetMaxSendMessageSize(static_cast<int>(options.max_message_bytes));
  // gRPC checks a message's size only after unpacking it, so compression is disabled.
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Ms(options.keepalive_interval));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Ms(options.keepalive_timeout));
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Clients may send keep-alive pings as often as they are configured to.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  // Bounds what a stream may send before it is consumed; a probed window would grow.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1 << 20);
}

Status GrpcServer::Start(const std::string& address) {
  AISP_CHECK_MSG(!impl_->server, "Start is called once");
  AISP_ASSIGN_OR_RETURN(const int listen_fd, ListenOn(address, "another number in this address"));
  return impl_->StartOn(listen_fd);
}

Status GrpcServer::StartOn(int listen_fd) {
  AISP_CHECK_MSG(!impl_->server, "Start is called once");
  impl_->handed_over = true;
  return impl_->StartOn(listen_fd);
}

// Always through GrpcAcceptor: gRPC's own listener has no bounds.
Status GrpcServer::Impl::StartOn(int listen_fd) {
  grpc::ServerBuilder builder;
  port = PortOf(listen_fd);
  acceptor = std::make_unique<GrpcAcceptor>(
      &builder, listen_fd, LinkServerCredentials(options.security.get()), kConnections, bytes);
  Configure(&builder);
  AbandonedCalls::Watch(abandoned, &builder);
  server = builder.BuildAndStart();
  if (!server) return Unavailable("gRPC did not start for links between processes");
  acceptor->Start();
  return {};
}

void GrpcServer::StopAccepting() {
  if (impl_->acceptor && impl_->handed_over) impl_->acceptor->Stop();
}

uint16_t GrpcServer::port() const { return static_cast<uint16_t>(impl_->port); }

void GrpcServer::Shutdown(std::chrono::milliseconds deadline) {
  if (impl_->acceptor) impl_->acceptor->Stop();
  for (const auto& endpoint : impl_->endpoints) endpoint->CloseAll();
  if (!impl_->server) return;
  impl_->server->Shutdown(std::chrono::system_clock::now() + deadline);
  impl_->server->Wait();
  impl_->server.reset();
}

std::unique_ptr<LinkDialer<v1::WorkerMessage>> MakeRouterDialer(
    LinkHandler<v1::RouterMessage>* handler, Poster post, const GrpcLinkOptions& options) {
  using Stub = v1::RouterControl::Stub;
  return std::make_unique<GrpcDialer<Stub, v1::RouterMessage, v1::WorkerMessage>>(
      handler, std::move(post), options,
      +[](Stub* stub, grpc::ClientContext* context,
          grpc::ClientBidiReactor<v1::WorkerMessage, v1::RouterMessage>* reactor) {
        stub->async()->Attach(context, reactor);
      });
}

std::unique_ptr<LinkDialer<v1::DecodeToPrefill>> MakeKvPeerDialer(
    LinkHandler<v1::PrefillToDecode>* handler, Poster post, const GrpcLinkOptions& options) {
  using Stub = v1::KvPeer::Stub;
  return std::make_unique<GrpcDialer<Stub, v1::PrefillToDecode, v1::DecodeToPrefill>>(
      handler, std::move(post), options,
      +[](Stub* stub, grpc::ClientContext* context,
          grpc::ClientBidiReactor<v1::DecodeToPrefill, v1::PrefillToDecode>* reactor) {
        stub->async()->Session(context, reactor);
      });
}

}  // namespace aisp
