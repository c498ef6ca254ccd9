#include "server/router_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <random>
#include <utility>

#include "common/log.h"
#include "common/strings.h"
#include "common/threads.h"
#include "net/grpc_links.h"
#include "net/http_server.h"
#include "net/inference_server.h"
#include "net/io_loop.h"
#include "net/request_id.h"
#include "server/admin_api.h"
#include "server/device_defaults.h"
#include "server/frontend.h"
#include "server/inference_service.h"
#include "server/work_pool.h"

namespace aisp {
namespace {

// Prompts that wait to be tokenized, for each thread that does it.
constexpr size_t kQueuedPerTokenizer = 256;

// A router on a handed-over socket answers requests without any worker after this time only.
constexpr Duration kAcceptWithoutWorkers = std::chrono::seconds(10);
constexpr Duration kLookForWorkers = std::chrono::milliseconds(5);

uint64_t DrawSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// `alone`: the workers are part of this process. One that has failed does not come back.
RouterOptions RouterOptionsOf(const Config& config, bool alone) {
  RouterOptions o;
  if (alone) o.takeover_wait = {};
  o.max_inflight = static_cast<int32_t>(config.router.max_inflight);
  o.default_timeout = config.router.default_timeout;
  o.silence_limit = config.router.silence_limit;
  o.telemetry_interval = config.router.telemetry_interval;
  o.max_attempts = static_cast<int>(config.router.max_attempts);
  const Config::Engine engine = EngineSettingsOf(config);
  o.policy.chunk_tokens =
      static_cast<int32_t>(std::min(engine.max_prefill_chunk, engine.max_batch_tokens));
  return o;
}

HttpServerOptions HttpOptionsOf(const Config& config, int listen_fd) {
  HttpServerOptions o;
  o.listen_fd = listen_fd;
  o.address = config.http.address;
  o.port = static_cast<uint16_t>(config.http.port);
  o.max_header_bytes = static_cast<size_t>(config.http.max_header.bytes);
  o.max_body_bytes = static_cast<size_t>(config.http.max_body.bytes);
  o.max_connections = static_cast<size_t>(config.http.max_connections);
  o.max_unsent_bytes = static_cast<size_t>(config.http.max_unsent.bytes);
  o.read_timeout = config.http.read_timeout;
  o.idle_timeout = config.http.idle_timeout;
  o.write_timeout = config.http.write_timeout;
  o.request_id = [ids = std::make_shared<RequestIds>(DrawSeed())](std::string_view given) {
    return ids->For(given);
  };
  o.error_body = [](int status, std::string_view message) { return ErrorBody(status, message); };
  return o;
}

// host:port of the gRPC server for clients.
std::string ClientGrpcAddress(const Config& config, const RouterSockets& sockets) {
  const Config::Http& http = config.http;
  int64_t port = http.grpc_port;
  if (port < 0) {
    // Beside an HTTP port that nobody chose, none is expected either.
    const bool chosen = http.port != 0 && http.port < 65535 && sockets.http < 0;
    port = chosen ? http.port + 1 : 0;
  }
  return fmt::format("{}:{}", http.grpc_address.empty() ? http.address : http.grpc_address, port);
}

InferenceServerOptions InferenceOptionsOf(const Config& config, const RouterSockets& sockets) {
  InferenceServerOptions o;
  o.address = ClientGrpcAddress(config, sockets);
  o.listen_fd = sockets.grpc;
  // A drain has to outlast it.
  o.connection_age = std::clamp<Duration>(config.drain_timeout / 4, std::chrono::seconds(1),
                                          std::chrono::seconds(10));
  o.max_message_bytes = static_cast<size_t>(config.http.max_body.bytes);
  o.max_calls = static_cast<size_t>(config.http.max_connections);
  o.max_unsent_bytes = static_cast<size_t>(config.http.max_unsent.bytes);
  o.write_timeout = config.http.write_timeout;
  o.seed = DrawSeed();
  return o;
}

class RouterServiceImpl final : public RouterService {
 public:
  RouterServiceImpl(const Config& config, const ServedModel* model, const Clock* clock,
                    Metrics* metrics, LocalHub* local, const RouterSockets& sockets)
      : config_(config),
        sockets_(sockets),
        clock_(clock),
        local_(local),
        links_(this),
        log_(metrics, clock),
        pool_("tokenizer", static_cast<int>(config.router.tokenizer_threads),
              kQueuedPerTokenizer * static_cast<size_t>(config.router.tokenizer_threads)) {
    const Poster post = [this](std::function<void()> fn) { loop_.Post(std::move(fn)); };
    if (local != nullptr) {
      sender_ = local->ServeRouterControl(kLocalRouterAddress, &links_, post);
    } else {
      grpc_ = std::make_unique<GrpcServer>();
      sender_ = grpc_->ServeRouterControl(&links_, post);
    }
    router_ = std::make_unique<Router>(RouterOptionsOf(config, local != nullptr),
                                       model->fingerprint, clock, DrawSeed(), sender_, metrics);
    FillContext(model, metrics);
    frontend_ = std::make_unique<Frontend>(&context_, metrics);
    if (config.http.grpc) {
      inference_ = std::make_unique<InferenceService>(&context_, [this] { ArmTimer(); });
      client_grpc_ = std::make_unique<InferenceServer>(&loop_, InferenceOptionsOf(config, sockets),
                                                       inference_.get());
    }
    http_ = std::make_unique<HttpServer>(&loop_, HttpOptionsOf(config, sockets.http),
                                         [this](const std::shared_ptr<HttpExchange>& exchange) {
                                           if (!admin_->Handle(exchange))
                                             frontend_->Handle(exchange);
                                           ArmTimer();
                                         });
  }

  Status MakeAdmin() {
    AISP_ASSIGN_OR_RETURN(admin_, AdminApi::Create(config_, router_.get(), &loop_, clock_));
    AISP_ASSIGN_OR_RETURN(tenants_, Tenants::Load(config_));
    context_.tenants = tenants_.get();
    return {};
  }

  ~RouterServiceImpl() override {
    DrainAndStop({}, [] { return true; });
    if (local_ != nullptr) local_->StopServing(LinkKind::kRouterControl, kLocalRouterAddress);
  }

  Status Start() override {
    AISP_RETURN_IF_ERROR(http_->Listen());
    if (grpc_ && sockets_.workers >= 0) {
      AISP_RETURN_IF_ERROR(grpc_->StartOn(sockets_.workers));
    } else if (grpc_) {
      AISP_RETURN_IF_ERROR(grpc_->Start(config_.router.listen));
    }
    if (client_grpc_) AISP_RETURN_IF_ERROR(client_grpc_->Start());
    thread_ = Thread("router", [this] {
      ArmTimer();
      AcceptWhenReady(clock_->Now() + kAcceptWithoutWorkers);
      loop_.Run();
    });
    started_ = true;
    return {};
  }

  std::string http_address() const override {
    return fmt::format("{}:{}", config_.http.address, http_->port());
  }

  std::string grpc_address() const override {
    if (!client_grpc_) return "";
    const std::string address = ClientGrpcAddress(config_, sockets_);
    return fmt::format("{}:{}", address.substr(0, address.rfind(':')), client_grpc_->port());
  }

  std::string workers_address() const override {
    if (!grpc_) return "";
    const std::string& listen = config_.router.listen;
    return fmt::format("{}:{}", listen.substr(0, listen.rfind(':')), grpc_->port());
  }

  void DrainAndStop(Duration limit, const std::function<bool()>& haste) override {
    if (!std::exchange(started_, false)) return;
    AwaitIdle(limit, haste);
    loop_.Stop();
    thread_.Join();
    if (client_grpc_) client_grpc_->Shutdown(std::chrono::milliseconds(500));
    if (grpc_) grpc_->Shutdown(std::chrono::milliseconds(500));
  }

 private:
  // Passes what arrives to the router and looks after its timer, which every message may have moved.
  class Links final : public LinkHandler<v1::WorkerMessage> {
   public:
    explicit Links(RouterServiceImpl* service) : service_(service) {}
    void OnLinkUp(LinkId link, const std::string& peer) override {
      service_->router_->OnLinkUp(link, peer);
      service_->ArmTimer();
    }
    void OnMessage(LinkId link, v1::WorkerMessage message) override {
      service_->router_->OnMessage(link, std::move(message));
      service_->ArmTimer();
    }
    void OnLinkDown(LinkId link, const Error& why) override {
      service_->router_->OnLinkDown(link, why);
      service_->ArmTimer();
    }

   private:
    RouterServiceImpl* const service_;
  };

  void FillContext(const ServedModel* model, Metrics* metrics) {
    context_.model = model;
    context_.router = router_.get();
    context_.pool = &pool_;
    context_.loop = &loop_;
    context_.clock = clock_;
    context_.log = &log_;
    context_.keepalive_comment = config_.http.keepalive_comment;
    context_.default_timeout = config_.router.default_timeout;
    context_.started_unix_s = UnixTimeS();
    const MetricLabels labels{{"role", "router"}, {"model", model->name}};
    context_.disconnected =
        metrics->AddCounter("aisp_disconnected_clients_total",
                            "Clients that went away before their answer was complete.", labels);
  }

  // After everything that the router was told.
  void ArmTimer() {
    if (client_grpc_) client_grpc_->SetServing(router_->Ready().has_value());
    const Instant next = router_->NextTimer();
    if (next == armed_for_) return;
    armed_for_ = next;
    timer_ = next == kNever ? nullptr : loop_.RunAt(next, [this] {
      armed_for_ = kNever;
      router_->OnTimer(clock_->Now());
      ArmTimer();
    });
  }

  void AcceptWhenReady(Instant deadline) {
    const Instant now = clock_->Now();
    if (stopping_) return;
    if (sockets_.http < 0 || now >= deadline || router_->Ready()) {
      http_->Accept();
      if (client_grpc_) client_grpc_->Accept();
      return;
    }
    accept_timer_ = loop_.RunAt(std::min(deadline, now + kLookForWorkers),
                                [this, deadline] { AcceptWhenReady(deadline); });
  }

  // Waits, on the caller's thread, until requests and connections have ended.
  void AwaitIdle(Duration limit, const std::function<bool()>& haste) {
    struct Drained {
      std::mutex mutex;
      std::condition_variable changed;
      int surfaces = 1;
    };
    auto drained = std::make_shared<Drained>();
    if (client_grpc_) ++drained->surfaces;
    loop_.Post([this, drained] {
      stopping_ = true;
      // Before the workers hear of it: those that dial again must find the successor.
      if (grpc_) grpc_->StopAccepting();
      router_->BeginDrain();
      const auto one_drained = [drained] {
        std::lock_guard lock(drained->mutex);
        --drained->surfaces;
        drained->changed.notify_all();
      };
      http_->Drain(one_drained);
      if (client_grpc_) {
        client_grpc_->SetServing(false);
        client_grpc_->Drain(one_drained);
      }
    });
    const Instant deadline = clock_->Now() + limit;
    std::unique_lock lock(drained->mutex);
    while (drained->surfaces > 0 && clock_->Now() < deadline && !haste()) {
      drained->changed.wait_for(lock, std::chrono::milliseconds(50));
    }
    // A start that failed ends so too, without any time for it.
    if (drained->surfaces > 0 && limit > Duration{})
      LogWarning("stopping with requests still running", {{"connections", http_->connections()}});
  }

  const Config config_;
  const RouterSockets sockets_;
  const Clock* const clock_;
  LocalHub* const local_;
  IoLoop loop_;
  Links links_;
  RequestLog log_;
  FrontendContext context_;
  std::unique_ptr<Tenants> tenants_;
  WorkPool pool_;
  std::unique_ptr<GrpcServer> grpc_;
  LinkSender<v1::RouterMessage>* sender_ = nullptr;
  std::unique_ptr<Router> router_;
  std::unique_ptr<AdminApi> admin_;
  std::unique_ptr<Frontend> frontend_;
  std::unique_ptr<InferenceService> inference_;
  std::unique_ptr<InferenceServer> client_grpc_;
  std::unique_ptr<HttpServer> http_;
  std::shared_ptr<IoLoop::Timer> timer_;
  std::shared_ptr<IoLoop::Timer> accept_timer_;
  bool stopping_ = false;
  Instant armed_for_ = kNever;
  Thread thread_;
  bool started_ = false;
};

}  // namespace

Result<std::unique_ptr<RouterService>> RouterService::Create(const Config& config,
                                                             const ServedModel* model,
                                                             const Clock* clock, Metrics* metrics,
                                                             LocalHub* local,
                                                             const RouterSockets& sockets) {
  if (config.router.listen.rfind(':') == std::string::npos) {
    return InvalidArgument(
        fmt::format("router.listen is '{}'; it wants host:port", config.router.listen));
  }
  auto service = std::make_unique<RouterServiceImpl>(config, model, clock, metrics, local, sockets);
  AISP_RETURN_IF_ERROR(service->MakeAdmin());
  return service;
}

}  // namespace aisp
