#include "server/worker_service.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <random>
#include <utility>

#include "common/log.h"
#include "common/strings.h"
#include "decode/decode_role.h"
#include "prefill/prefill_role.h"
#include "server/arithmetic.h"
#include "server/backend.h"
#include "server/commands.h"
#include "server/device_defaults.h"
#include "server/gpu_metrics.h"
#include "server/kv_tiers.h"
#include "server/kv_transports.h"
#include "server/process.h"
#include "server/process_death.h"
#include "server/pulse_thread.h"
#include "server/router_resolver.h"
#include "server/router_service.h"
#include "server/speculation.h"
#include "server/work_pool.h"
#include "worker/incarnation.h"

namespace aisp {
namespace {

uint64_t NewIncarnation() {
  std::random_device device;
  return DrawIncarnation([&device] { return (uint64_t{device()} << 32) | device(); });
}

WorkerOptions WorkerOptionsOf(const WorkerHost& host, const std::string& id, Pulse* pulse,
                              const v1::Fingerprint& fingerprint) {
  const Config& config = *host.config;
  WorkerOptions o;
  o.worker_id = id;
  o.incarnation = pulse->incarnation();
  o.pulse = pulse;
  o.pid = getpid();
  o.admin_url = host.admin_url;
  o.version = std::string(Version());
  o.last_exit = host.last_exit;
  o.host_id = config.worker.host_id.empty() ? BootId() : config.worker.host_id;
  // The others follow when their names have been looked up.
  o.router_addresses = host.local != nullptr
                           ? std::vector<std::string>{RouterService::kLocalRouterAddress}
                           : RouterResolver::WithoutNames(config.worker.routers);
  o.fingerprint = fingerprint;
  const Config::Engine engine = EngineSettingsOf(config);
  o.max_batch_tokens = static_cast<int32_t>(engine.max_batch_tokens);
  o.max_prefill_chunk = static_cast<int32_t>(engine.max_prefill_chunk);
  o.telemetry_interval = config.router.telemetry_interval;
  o.step_stall_limit = config.worker.step_stall_limit;
  o.drain_timeout = config.drain_timeout;
  return o;
}

// "host:port" that others dial: the host of `advertise` (and its port, when it has one) over what
// was bound.
std::string AdvertisedAddress(const std::string& advertise, const std::string& listen,
                              uint16_t port) {
  const std::string& host = advertise.empty() ? listen : advertise;
  const size_t colon = host.rfind(':');
  if (!advertise.empty() && colon != std::string::npos) return advertise;
  return fmt::format("{}:{}", host.substr(0, colon), port);
}

class WorkerServiceImpl final : public WorkerService {
 public:
  WorkerServiceImpl(const WorkerHost& host, std::string role, std::string id)
      : host_(host),
        role_name_(std::move(role)),
        id_(std::move(id)),
        pulse_({.incarnation = NewIncarnation(),
                .least_limit = host.config->worker.step_stall_limit,
                .most_limit = host.config->worker.step_limit}),
        loop_("engine-" + role_name_, host.clock, [this] { OnStep(); }) {}

  ~WorkerServiceImpl() override {
    DrainAndStop({}, [] { return true; });
    // The hub outlives the worker, and its peers may.
    if (serves_locally_) host_.local->StopServing(LinkKind::kKvPeer, LocalKvAddress());
  }

  Status Build() {
    const Config& config = *host_.config;
    AISP_ASSIGN_OR_RETURN(links_.security, LinkSecurity::Load(config.cluster));
    AISP_ASSIGN_OR_RETURN(backend_, MakeBackend(config, *host_.served));
    fingerprint_ = WorkerFingerprint(config, *host_.served, backend_);
    LogInfo("computing", {{"worker", id_}, {"in", fingerprint_.arithmetic()}});
    if (host_.replace_executor)
      backend_.executor = host_.replace_executor(std::move(backend_.executor));
    backend_.executor =
        std::make_unique<PulseExecutor>(std::move(backend_.executor), &pulse_, host_.clock);
    const DeviceInfo& device = backend_.device->info();
    if (device.kind == "cuda")
      gpu_metrics_ = GpuMetrics::Start({.ordinals = {device.index}}, host_.metrics);
    const bool alone = host_.local != nullptr && host_.inproc == nullptr;
    if (!alone) {
      AISP_ASSIGN_OR_RETURN(transports_, MakeKvTransports(config, host_.inproc, *backend_.device,
                                                          backend_.executor->kv_pool(),
                                                          [this] { loop_.WakeTransport(); }));
    }
    AISP_ASSIGN_OR_RETURN(tiers_, OpenTiers(config, fingerprint_, role_name_, backend_,
                                            [this] { loop_.WakeTransport(); }));
    post_ = [this](std::function<void()> fn) { loop_.Post(std::move(fn)); };
    return role_name_ == "prefill" ? BuildPrefill() : BuildDecode();
  }

  void Start(std::function<void()> on_ready, std::function<void()> on_stop) override {
    on_ready_ = std::move(on_ready);
    on_stop_ = std::move(on_stop);
    touched_ = host_.clock->Now();
    started_ = true;
    loop_.Post([this] { SetThreadLogIdentity({role_name_, id_}); });
    loop_.Start(role_.get());
    heart_ = std::make_unique<PulseThread>(&pulse_, routers_.get(), host_.clock);
    if (host_.local != nullptr || !RouterResolver::Needed(host_.config->worker.routers)) return;
    resolver_ = std::make_unique<RouterResolver>(
        host_.config->worker.routers, [this](const std::vector<std::string>& addresses) {
          loop_.Post([this, addresses] { role_->SetRouters(addresses); });
        });
  }

  Status Ready() const override {
    // Inside a step only Pulse knows whether it still moves.
    AISP_RETURN_IF_ERROR(pulse_.Moves(host_.clock->Now()));
    std::lock_guard lock(mutex_);
    const Duration silent = host_.clock->Now() - touched_;
    if (silent > host_.config->worker.step_stall_limit && !pulse_.InStep()) {
      return Unavailable(
          fmt::format("the engine of {} has made no step for {:.1f} s", id_, ToSeconds(silent)));
    }
    return ready_;
  }

  Status Failure() const override {
    std::lock_guard lock(mutex_);
    return failure_;
  }

  void DrainAndStop(Duration limit, const std::function<bool()>& haste) override {
    if (!std::exchange(started_, false)) return;
    loop_.Post([this] {
      role_->BeginDrain();
      OnStep();
    });
    const Instant deadline = host_.clock->Now() + limit;
    {
      std::unique_lock lock(mutex_);
      while (!drained_ && host_.clock->Now() < deadline && !haste()) {
        changed_.wait_for(lock, std::chrono::milliseconds(50));
      }
      if (!drained_) LogWarning("worker stops with work left", {{"worker", id_}});
    }
    resolver_.reset();
    loop_.Post([this] { role_->Leave(); });
    loop_.Stop();
    heart_.reset();
    if (grpc_) grpc_->Shutdown(std::chrono::milliseconds(500));
  }

  const std::string& id() const override { return id_; }

 private:
  Status BuildPrefill() {
    const Config& config = *host_.config;
    PrefillOptions o;
    o.worker = WorkerOptionsOf(host_, id_, &pulse_, fingerprint_);
    const Config::Engine engine = EngineSettingsOf(config);
    o.horizon_tokens = 2 * static_cast<int32_t>(engine.max_batch_tokens);
    o.max_transfers = static_cast<int32_t>(config.engine.max_waiting);
    o.max_sequence_tokens = host_.served->max_model_len;
    o.max_running = static_cast<int32_t>(engine.max_sequences);
    o.pid = getpid();
    auto role = std::make_unique<PrefillRole>(o);
    EngineOptions engine_options = EngineOptionsOf(config, fingerprint_);
    engine_options.tiers = std::move(tiers_.options);
    engine_ = std::make_unique<Engine>(engine_options, backend_.executor.get(), host_.clock,
                                       role->layer_sink());
    connects_ = std::make_unique<WorkPool>("connect", kConnectThreads, kMaxConnects);
    connector_ = std::make_unique<RankedConnector>(
        transports_.ranked, kConnectTimeout,
        [this](std::function<void()> work, std::function<void()> then) {
          return connects_->TrySubmit(0, [this, work = std::move(work), then = std::move(then)] {
            work();
            post_(then);
          });
        });

    PrefillDeps deps;
    deps.engine = engine_.get();
    deps.clock = host_.clock;
    deps.connector = connector_.get();
    deps.metrics = host_.metrics;
    if (host_.local != nullptr) {
      deps.kv_address = LocalKvAddress();
      deps.readers = host_.local->ServeKvPeer(deps.kv_address, role->reader_links(), post_);
      serves_locally_ = true;
    } else {
      grpc_ = std::make_unique<GrpcServer>();
      deps.readers = grpc_->ServeKvPeer(role->reader_links(), post_, links_);
      AISP_RETURN_IF_ERROR(grpc_->Start(config.worker.kv_listen));
      deps.kv_address =
          AdvertisedAddress(config.worker.kv_advertise, config.worker.kv_listen, grpc_->port());
    }
    DialRouters(role.get());
    deps.routers = routers_.get();
    role->Wire(deps);
    role_ = std::move(role);
    return {};
  }

  Status BuildDecode() {
    const Config& config = *host_.config;
    DecodeOptions o;
    o.worker = WorkerOptionsOf(host_, id_, &pulse_, fingerprint_);
    o.max_sequence_tokens = host_.served->max_model_len;
    o.max_running = static_cast<int32_t>(EngineSettingsOf(config).max_sequences);
    o.default_timeout = config.router.default_timeout;
    o.lease_base = config.worker.lease;
    if (host_.served->constraints != nullptr) {
      o.guides = [pool = host_.served->constraints, post = post_](
                     const v1::GenerateRequest& request, DecodeOptions::OnGuide later) {
        return pool->Guide(request, [post, later = std::move(later)](auto guide) {
          post([later, guide = std::move(guide)] { later(guide); });
        });
      };
    }
    auto role = std::make_unique<DecodeRole>(o);
    EngineOptions engine_options = EngineOptionsOf(config, fingerprint_);
    AISP_ASSIGN_OR_RETURN(engine_options.speculator, MakeSpeculator(config, host_.clock));
    engine_options.tiers = std::move(tiers_.options);
    engine_ =
        std::make_unique<Engine>(engine_options, backend_.executor.get(), host_.clock, nullptr);
    death_ = std::make_unique<ProcessDeath>(transports_.watchers);
    peers_ = host_.local != nullptr ? host_.local->MakeKvPeerDialer(role->peer_links(), post_)
                                    : MakeKvPeerDialer(role->peer_links(), post_, links_);
    DialRouters(role.get());

    DecodeDeps deps;
    deps.engine = engine_.get();
    deps.clock = host_.clock;
    deps.routers = routers_.get();
    deps.peers = peers_.get();
    deps.transports = transports_.ranked;
    deps.death = death_.get();
    deps.metrics = host_.metrics;
    role->Wire(deps);
    role_ = std::move(role);
    return {};
  }

  std::string LocalKvAddress() const { return "local:" + id_; }

  void DialRouters(LinkHandler<v1::RouterMessage>* handler) {
    routers_ = host_.local != nullptr ? host_.local->MakeRouterDialer(handler, post_)
                                      : MakeRouterDialer(handler, post_, links_);
  }

  // On the loop's thread, after every step and timer.
  void OnStep() {
    const Status ready = role_->Ready();
    const bool drained = role_->Drained();
    // In flight are, then, only the answers of the requests that ended with it.
    const bool failed = !engine_->failed() && !engine_->InFlight();
    {
      std::lock_guard lock(mutex_);
      touched_ = host_.clock->Now();
      ready_ = ready;
      drained_ = drained;
      if (failed) failure_ = engine_->failed();
    }
    if (drained) changed_.notify_all();
    if (ready && on_ready_) std::exchange(on_ready_, nullptr)();
    if (on_stop_ && (failed || role_->StopWanted())) {
      if (failed) {
        LogError("the device has failed; this process ends",
                 {{"worker", id_}, {"error", engine_->failed().error().message}});
      }
      std::exchange(on_stop_, nullptr)();
    }
  }

  static constexpr Duration kConnectTimeout = std::chrono::milliseconds(500);
  static constexpr int kConnectThreads = 4;
  static constexpr size_t kMaxConnects = 256;  // that wait

  const WorkerHost host_;
  const std::string role_name_;
  const std::string id_;
  Pulse pulse_;

  // Before, and so destroyed after, all that posts to it from threads of its own until it ends:
  // links, transports, watchers.
  WorkerLoop loop_;
  Poster post_;

  // Destroyed from the last to the first: the role before all that it was wired to.
  GrpcLinkOptions links_;
  Backend backend_;
  v1::Fingerprint fingerprint_;
  std::unique_ptr<GpuMetrics> gpu_metrics_;
  KvTransports transports_;
  WorkerTiers tiers_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<PeerConnector> connector_;
  std::unique_ptr<WorkPool> connects_;  // what it runs
  std::unique_ptr<ProcessDeath> death_;
  std::unique_ptr<GrpcServer> grpc_;
  std::unique_ptr<LinkDialer<v1::WorkerMessage>> routers_;
  std::unique_ptr<LinkDialer<v1::DecodeToPrefill>> peers_;
  std::unique_ptr<WorkerRole> role_;
  std::unique_ptr<PulseThread> heart_;
  std::unique_ptr<RouterResolver> resolver_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Instant touched_;
  Status ready_ = Unavailable("the worker is starting");
  Status failure_;
  bool drained_ = false;
  bool started_ = false;
  bool serves_locally_ = false;
  std::function<void()> on_ready_;
  std::function<void()> on_stop_;
};

}  // namespace

Result<std::unique_ptr<WorkerService>> WorkerService::Create(const WorkerHost& host,
                                                             const std::string& role,
                                                             const std::string& id) {
  auto service = std::make_unique<WorkerServiceImpl>(host, role, id);
  AISP_RETURN_IF_ERROR(service->Build());
  return service;
}

}  // namespace aisp
