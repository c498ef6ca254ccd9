#include "server/router_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <random>
#include <utility>

#include "common/log.h"
#include "common/strings.h"
#include "common/threads.h"
#include "common/version.h"
#include "frontend/frontend.h"
#include "frontend/http_answer.h"
#include "frontend/inference_service.h"
#include "frontend/lora_requests.h"
#include "net/grpc_links.h"
#include "net/host_port.h"
#include "net/http_server.h"
#include "net/inference_server.h"
#include "net/io_loop.h"
#include "net/otlp_exporter.h"
#include "net/request_id.h"
#include "server/admin_api.h"
#include "server/cors.h"
#include "server/device_defaults.h"
#include "server/invitation.h"
#include "server/otlp_spans.h"
#include "server/page.h"
#include "server/work_pool.h"

namespace aisp {
namespace {

// Prompts that may wait per tokenizer thread.
constexpr size_t kQueuedPerTokenizer = 256;

// A router on an inherited socket accepts clients after this time even without any worker.
constexpr Duration kAcceptWithoutWorkers = std::chrono::seconds(10);
// Time limit for exporting the last requests' spans.
constexpr Duration kLastSpans = std::chrono::milliseconds(500);
constexpr Duration kLookForWorkers = std::chrono::milliseconds(5);

uint64_t DrawSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// `alone`: the workers are in this process, so a failed one does not come back.
RouterOptions RouterOptionsOf(const Config& config, const ServedModel& model, bool alone) {
  RouterOptions o;
  o.adapters = model.adapters->start();
  o.max_adapters = static_cast<int32_t>(config.model.max_loras);
  o.on_adapters = [adapters = model.adapters](const v1::AdapterSet& set) { adapters->Set(set); };
  if (alone) o.takeover_wait = {};
  o.vocabulary = model.vocabulary;
  o.max_inflight = static_cast<int32_t>(config.router.max_inflight);
  o.default_timeout = config.router.default_timeout;
  o.silence_limit = config.router.silence_limit;
  o.quiet_limit = std::max(config.router.quiet_limit, 5 * config.router.telemetry_interval);
  o.telemetry_interval = config.router.telemetry_interval;
  o.slo_ttft = config.router.slo_ttft;
  o.slo_tpot = config.router.slo_tpot;
  o.max_queued = static_cast<int32_t>(config.router.max_queued);
  o.batch_patience = config.router.batch_patience;
  o.best_effort_patience = config.router.best_effort_patience;
  o.max_attempts = static_cast<int>(config.router.max_attempts);
  o.policy.name = config.router.policy;
  const auto pulls = std::find(std::begin(kPrefixPulls), std::end(kPrefixPulls),
                               std::string_view(config.router.prefix_pulls));
  o.pulls = static_cast<PrefixPulls>(pulls - std::begin(kPrefixPulls));
  return o;
}

// Port for `asked` (a port, 0, or -1: `beside` http.port, or a free one if http.port is unset).
int64_t PortBeside(const Config& config, int64_t asked, int64_t beside, int http_fd) {
  if (asked >= 0) return asked;
  const int64_t http = config.http.port;
  return http != 0 && http + beside <= UINT16_MAX && http_fd < 0 ? http + beside : 0;
}

// Bytes per http.write_timeout.
size_t MinTakenBytes(const Config& config) {
  const double bytes =
      static_cast<double>(config.http.min_read_rate) * ToSeconds(config.http.write_timeout);
  return std::max<size_t>(1, static_cast<size_t>(bytes));
}

HttpServerOptions HttpOptionsOf(const Config& config, int listen_fd) {
  HttpServerOptions o;
  o.listen_fd = listen_fd;
  o.tls = config.http.tls;
  o.address = config.http.address;
  o.port = static_cast<uint16_t>(config.http.port);
  o.max_header_bytes = static_cast<size_t>(config.http.max_header);
  o.max_body_bytes = static_cast<size_t>(config.http.max_body);
  o.max_total_body_bytes = static_cast<size_t>(config.http.max_total_body);
  o.max_party_body_bytes = static_cast<size_t>(config.http.max_client_body);
  o.max_connections = static_cast<size_t>(config.http.max_connections);
  o.max_waiting_per_address = static_cast<size_t>(config.http.max_waiting_per_address);
  o.max_unsent_bytes = static_cast<size_t>(config.http.max_unsent);
  o.read_timeout = config.http.read_timeout;
  o.idle_timeout = config.http.idle_timeout;
  o.write_timeout = config.http.write_timeout;
  o.min_taken_bytes = MinTakenBytes(config);
  o.request_id = [ids = std::make_shared<RequestIds>(DrawSeed())](std::string_view given) {
    return ids->For(given);
  };
  o.error_body = [](const HttpServerOptions::Refused& refused, int status,
                    std::string_view message) {
    return ErrorBodyFor(refused.path, refused.request_id, status, message);
  };
  return o;
}

// host:port of the gRPC server for clients.
std::string ClientGrpcAddress(const Config& config, const RouterSockets& sockets) {
  const Config::Http& http = config.http;
  const int64_t port = PortBeside(config, http.grpc_port, 1, sockets.http);
  return HostPort(http.grpc_address.empty() ? http.address : http.grpc_address, port);
}

// For the admin port: no TLS on loopback, where an eavesdropper could read our memory anyway.
HttpServerOptions AdminOptionsOf(const Config& config, const RouterSockets& sockets) {
  HttpServerOptions o = HttpOptionsOf(config, sockets.admin);
  o.address = config.router.admin_address;
  o.port = static_cast<uint16_t>(PortBeside(config, config.router.admin_port, 2, sockets.http));
  o.port_flag = "--router-admin-port N";
  if (config.router.admin == "loopback") o.tls = {};
  return o;
}

InferenceServerOptions InferenceOptionsOf(const Config& config, const RouterSockets& sockets) {
  InferenceServerOptions o;
  o.address = ClientGrpcAddress(config, sockets);
  o.listen_fd = sockets.grpc;
  o.tls = config.http.tls;
  // A drain must last longer than this.
  o.connection_age = std::clamp<Duration>(config.drain_timeout / 4, std::chrono::seconds(1),
                                          std::chrono::seconds(10));
  o.max_message_bytes = static_cast<size_t>(config.http.max_body);
  o.max_calls = static_cast<size_t>(config.http.max_connections);
  o.max_unsent_bytes = static_cast<size_t>(config.http.max_unsent);
  o.write_timeout = config.http.write_timeout;
  o.min_taken_bytes = MinTakenBytes(config);
  o.max_connections = static_cast<size_t>(config.http.max_connections);
  o.max_connections_per_address = static_cast<size_t>(config.http.max_waiting_per_address);
  o.read_timeout = config.http.read_timeout;
  o.idle_timeout = config.http.idle_timeout;
  o.max_total_bytes = static_cast<size_t>(config.http.max_total_body);
  o.max_client_bytes = static_cast<size_t>(config.http.max_client_body);
  o.seed = DrawSeed();
  return o;
}

class RouterServiceImpl final : public RouterService {
 public:
  RouterServiceImpl(const Config& config, const ServedModel* model, const Clock* clock,
                    Metrics* metrics, LocalHub* local, const RouterSockets& sockets,
                    std::shared_ptr<const LinkSecurity> security)
      : config_(config),
        sockets_(sockets),
        clock_(clock),
        local_(local),
        links_(this),
        log_(metrics, clock),
        stats_(clock),
        pool_("tokenizer", static_cast<int>(config.router.tokenizer_threads),
              kQueuedPerTokenizer * static_cast<size_t>(config.router.tokenizer_threads)) {
    const Poster post = [this](std::function<void()> fn) { loop_.Post(std::move(fn)); };
    if (local != nullptr) {
      sender_ = local->ServeRouterControl(kLocalRouterAddress, &links_, post);
    } else {
      grpc_ = std::make_unique<GrpcServer>();
      sender_ = grpc_->ServeRouterControl(&links_, post, {.security = std::move(security)});
    }
    router_ = std::make_unique<Router>(RouterOptionsOf(config, *model, local != nullptr),
                                       model->fingerprint, clock, DrawSeed(), sender_, metrics);
    FillContext(model, metrics);
    frontend_ = std::make_unique<Frontend>(&context_, metrics);
    if (config.http.grpc) {
      inference_ = std::make_unique<InferenceService>(&context_, [this] { ArmTimer(); });
      InferenceServerOptions grpc = InferenceOptionsOf(config, sockets);
      grpc.party = [this](std::string_view authorization) -> std::optional<std::string> {
        auto tenant = tenants_->Authenticate(authorization);
        if (!tenant) return std::nullopt;
        return std::move(*tenant);
      };
      client_grpc_ = std::make_unique<InferenceServer>(&loop_, std::move(grpc), inference_.get());
    }
    HttpServerOptions http = HttpOptionsOf(config, sockets.http);
    http.intake = [this](const HttpRequest& head) { return frontend_->Intake(head); };
    http_ = std::make_unique<HttpServer>(
        &loop_, std::move(http),
        [this](const std::shared_ptr<HttpExchange>& exchange) { Answer(cors_.Admit(exchange)); });
    if (config.router.admin == "off") return;
    HttpServerOptions admin = AdminOptionsOf(config, sockets);
    admin.intake = [this](const HttpRequest& head) {
      return admin_ != nullptr && admin_->WantsBody(head) ? HttpIntake{true, "admin"}
                                                          : frontend_->Intake(head);
    };
    admin_http_ = std::make_unique<HttpServer>(
        &loop_, std::move(admin),
        [this](const std::shared_ptr<HttpExchange>& exchange) { AnswerAdminPort(exchange); });
  }

  Status MakeTraces(Metrics* metrics) {
    Traces::Options options;
    options.capacity = static_cast<size_t>(config_.trace.buffer);
    options.sample_percent = static_cast<int>(config_.trace.sample_percent);
    Traces::Export to;
    if (!config_.trace.otlp_endpoint.empty()) {
      OtlpOptions otlp;
      otlp.endpoint = config_.trace.otlp_endpoint;
      otlp.version = std::string(Version());
      otlp.resource = {{"service.name", config_.trace.service_name},
                       {"service.version", otlp.version},
                       {"aisp.model", context_.model->name}};
      AISP_ASSIGN_OR_RETURN(otlp_, OtlpExporter::Create(otlp, metrics));
      to = [this](const RequestTrace& trace) { otlp_->Send(OtlpSpansOf(trace)); };
    }
    traces_ = std::make_unique<Traces>(options, clock_, DrawSeed(), std::move(to));
    context_.traces = traces_.get();
    return {};
  }

  Status MakeAdmin() {
    AdminSources sources;
    sources.router = router_.get();
    sources.loop = &loop_;
    sources.clock = clock_;
    sources.stats = &stats_;
    sources.traces = &traces_->ring();
    sources.model = context_.model->name;
    sources.runtime_lora = config_.model.runtime_lora;
    AISP_ASSIGN_OR_RETURN(admin_, AdminApi::Create(config_, sources));
    AISP_ASSIGN_OR_RETURN(tenants_, Tenants::Load(config_));
    context_.tenants = tenants_.get();
    AISP_ASSIGN_OR_RETURN(cors_, Cors::Create(config_.http.cors_origins));
    const TlsServerOptions& tls = config_.http.tls;
    if (!tls.on() && (!tls.key_file.empty() || !tls.client_ca_file.empty())) {
      return InvalidArgument(
          "http.tls_cert_file (--tls-cert) is empty, but a key or a client authority is given: "
          "without a certificate nothing would be encrypted");
    }
    return {};
  }

  ~RouterServiceImpl() override {
    DrainAndStop({}, [] { return true; });
    if (local_ != nullptr) local_->StopServing(LinkKind::kRouterControl, kLocalRouterAddress);
  }

  Status Start() override {
    AISP_RETURN_IF_ERROR(http_->Listen());
    if (admin_http_) AISP_RETURN_IF_ERROR(admin_http_->Listen());
    if (grpc_ && sockets_.workers >= 0) {
      AISP_RETURN_IF_ERROR(grpc_->StartOn(sockets_.workers));
    } else if (grpc_) {
      AISP_RETURN_IF_ERROR(grpc_->Start(config_.router.listen));
    }
    if (client_grpc_) AISP_RETURN_IF_ERROR(client_grpc_->Start());
    thread_ = Thread("router", [this] {
      // With workers in the same process, log lines need the router's identity.
      if (local_ != nullptr) SetThreadLogIdentity({"router", "router"});
      ArmTimer();
      AcceptWhenReady(clock_->Now() + kAcceptWithoutWorkers);
      loop_.Run();
    });
    started_ = true;
    return {};
  }

  std::string http_address() const override {
    return HostPort(config_.http.address, http_->port());
  }

  std::string admin_address() const override {
    if (!admin_http_) return "";
    return HostPort(config_.router.admin_address, admin_http_->port());
  }

  std::string grpc_address() const override {
    if (!client_grpc_) return "";
    const std::string address = ClientGrpcAddress(config_, sockets_);
    return HostPort(SplitHostPort(address).host, client_grpc_->port());
  }

  std::string workers_address() const override {
    if (!grpc_) return "";
    return HostPort(SplitHostPort(config_.router.listen).host, grpc_->port());
  }

  void DrainAndStop(Duration limit, const std::function<bool()>& haste) override {
    if (!std::exchange(started_, false)) return;
    AwaitIdle(limit, haste);
    loop_.Stop();
    thread_.Join();
    if (client_grpc_) client_grpc_->Shutdown(std::chrono::milliseconds(500));
    if (otlp_) otlp_->Stop(kLastSpans);
    if (grpc_) grpc_->Shutdown(std::chrono::milliseconds(500));
  }

 private:
  // Passes messages to the router, then rearms its timer, which any message may have moved.
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

  // Null: already answered.
  void Answer(const std::shared_ptr<HttpExchange>& exchange) {
    if (exchange != nullptr) frontend_->Handle(exchange);
    ArmTimer();
  }

  void AnswerAdminPort(const std::shared_ptr<HttpExchange>& exchange) {
    if (!ServePage(*exchange) && !admin_->Handle(exchange)) frontend_->Handle(exchange);
    ArmTimer();
  }

  void FillContext(const ServedModel* model, Metrics* metrics) {
    context_.model = model;
    context_.router = router_.get();
    context_.pool = &pool_;
    context_.loop = &loop_;
    context_.clock = clock_;
    context_.log = &log_;
    context_.stats = &stats_;
    context_.keepalive_comment = config_.http.keepalive_comment;
    context_.max_answer_bytes = static_cast<size_t>(config_.http.max_answer);
    context_.max_answers_bytes = static_cast<size_t>(config_.http.max_total_body);
    context_.default_timeout = config_.router.default_timeout;
    context_.started_unix_s = UnixTimeS();
    const MetricLabels labels{{"role", "router"}, {"model", model->name}};
    context_.metrics = FrontendMetrics(metrics, labels);
    const bool adapts = config_.model.runtime_lora || !config_.model.lora_modules.empty();
    loras_.emplace(metrics, labels, adapts ? static_cast<size_t>(config_.model.max_loras) : 0);
    context_.loras = &*loras_;
    context_.responses = std::make_shared<ResponseStore>(
        ResponseStore::Limits{static_cast<size_t>(config_.http.max_stored_responses),
                              static_cast<size_t>(config_.http.max_stored_bytes),
                              static_cast<size_t>(config_.http.max_total_stored)},
        ResponseStore::Meters{
            metrics->AddGauge("aisp_stored_responses",
                              "Responses that are kept for previous_response_id", labels),
            metrics->AddGauge("aisp_stored_responses_bytes", "Bytes that they take, about", labels),
            metrics->AddCounter("aisp_stored_responses_forgotten_total",
                                "Responses that had to make room for others", labels)});
  }

  // Called after every event that the router was given.
  void ArmTimer() {
    const bool ready = router_->Ready().has_value();
    if (client_grpc_) client_grpc_->SetServing(ready);
    if (ready && !std::exchange(said_serving_, true)) {
      LogInfo("serving", {{"url", SchemeOf(config_) + http_address()},
                          {"grpc", grpc_address()},
                          {"admin", admin_address()},
                          {"model", context_.model->name}});
    }
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
      if (admin_http_) admin_http_->Accept();
      if (client_grpc_) client_grpc_->Accept();
      return;
    }
    accept_timer_ = loop_.RunAt(std::min(deadline, now + kLookForWorkers),
                                [this, deadline] { AcceptWhenReady(deadline); });
  }

  // Waits on the caller's thread until all requests and connections have ended.
  void AwaitIdle(Duration limit, const std::function<bool()>& haste) {
    struct Drained {
      std::mutex mutex;
      std::condition_variable changed;
      int surfaces = 1;
    };
    auto drained = std::make_shared<Drained>();
    if (client_grpc_) ++drained->surfaces;
    if (admin_http_) ++drained->surfaces;
    loop_.Post([this, drained] {
      stopping_ = true;
      // Before the workers are told: when they dial again they must reach the successor.
      if (grpc_) grpc_->StopAccepting();
      router_->BeginDrain();
      const auto one_drained = [drained] {
        std::lock_guard lock(drained->mutex);
        --drained->surfaces;
        drained->changed.notify_all();
      };
      http_->Drain(one_drained);
      if (admin_http_) admin_http_->Drain(one_drained);
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
    // After a failed start the limit is zero.
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
  LiveStats stats_;
  std::unique_ptr<OtlpExporter> otlp_;
  std::unique_ptr<Traces> traces_;
  FrontendContext context_;
  std::optional<LoraRequests> loras_;
  std::unique_ptr<Tenants> tenants_;
  Cors cors_;
  WorkPool pool_;
  std::unique_ptr<GrpcServer> grpc_;
  LinkSender<v1::RouterMessage>* sender_ = nullptr;
  std::unique_ptr<Router> router_;
  std::unique_ptr<AdminApi> admin_;
  std::unique_ptr<Frontend> frontend_;
  std::unique_ptr<InferenceService> inference_;
  std::unique_ptr<InferenceServer> client_grpc_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<HttpServer> admin_http_;
  std::shared_ptr<IoLoop::Timer> timer_;
  std::shared_ptr<IoLoop::Timer> accept_timer_;
  bool stopping_ = false;
  bool said_serving_ = false;
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
  if (!SplitHostPort(config.router.listen).port) {
    return InvalidArgument(
        fmt::format("router.listen is '{}'; it wants host:port, an IPv6 number in brackets",
                    config.router.listen));
  }
  AISP_ASSIGN_OR_RETURN(auto security, LinkSecurity::Load(config.cluster));
  auto service = std::make_unique<RouterServiceImpl>(config, model, clock, metrics, local, sockets,
                                                     std::move(security));
  AISP_RETURN_IF_ERROR(service->MakeTraces(metrics));
  AISP_RETURN_IF_ERROR(service->MakeAdmin());
  return service;
}

}  // namespace aisp
