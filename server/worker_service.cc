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
#include "common/version.h"
#include "decode/decode_role.h"
#include "net/host_port.h"
#include "prefill/prefill_role.h"
#include "proto/role.h"
#include "server/adapter_loader.h"
#include "server/arithmetic.h"
#include "server/backend.h"
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
#include "server/step_log.h"
#include "server/work_pool.h"
#include "worker/incarnation.h"
#include "worker/parked_role.h"
#include "worker/role_switch.h"

namespace aisp {
namespace {

uint64_t NewIncarnation() {
  std::random_device device;
  return DrawIncarnation([&device] { return (uint64_t{device()} << 32) | device(); });
}

WorkerOptions WorkerOptionsOf(const WorkerHost& host, const std::string& id, Pulse* pulse,
                              AdapterKeeper* adapters, const v1::Fingerprint& fingerprint) {
  const Config& config = *host.config;
  WorkerOptions o;
  o.worker_id = id;
  o.adapters = adapters;
  o.incarnation = pulse->incarnation();
  o.pulse = pulse;
  o.pid = getpid();
  o.admin_url = host.admin_url;
  o.version = std::string(Version());
  o.last_exit = host.last_exit;
  o.host_id = config.worker.host_id.empty() ? BootId() : config.worker.host_id;
  // Routers given by DNS name are added when they are resolved.
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

// The "host:port" that others dial: the host of `advertise` (and its port, if given), else what was
// bound.
std::string AdvertisedAddress(const std::string& advertise, const std::string& listen,
                              uint16_t port) {
  const SplitAddress split = SplitHostPort(advertise.empty() ? listen : advertise);
  if (!advertise.empty() && split.port) return advertise;
  return HostPort(split.host, port);
}

// How long a worker with a GPU polls after its last step: a core, while requests come more often.
constexpr Duration kAwakeAfterWork = std::chrono::milliseconds(250);
// Where cores are fewer, other threads need them.
constexpr unsigned kCoresToPoll = 4;

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
    // The hub outlives the worker, and so may its peers.
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
    if (device.asynchronous && std::thread::hardware_concurrency() >= kCoresToPoll)
      loop_.PollAfterWork(kAwakeAfterWork);
    if (device.kind == "cuda")
      gpu_metrics_ = GpuMetrics::Start({.ordinals = {device.index}}, host_.metrics);
    AISP_ASSIGN_OR_RETURN(verified_pool_, VerifiedPool());
    const bool alone = host_.local != nullptr && host_.inproc == nullptr;
    if (!alone) {
      AISP_ASSIGN_OR_RETURN(transports_, MakeKvTransports(config, host_.inproc, *backend_.device,
                                                          backend_.executor->kv_pool(),
                                                          [this] { loop_.WakeTransport(); }));
    }
    AISP_ASSIGN_OR_RETURN(tiers_, OpenTiers(config, fingerprint_, role_name_, backend_,
                                            [this] { loop_.WakeTransport(); }));
    post_ = [this](std::function<void()> fn) { loop_.Post(std::move(fn)); };
    post_in_step_ = [this](std::function<void()> fn) { loop_.PostInStep(std::move(fn)); };
    return BuildRoles(alone);
  }

  void Start(std::function<void()> on_ready, std::function<void()> on_stop) override {
    on_ready_ = std::move(on_ready);
    on_stop_ = std::move(on_stop);
    touched_ = host_.clock->Now();
    started_ = true;
    loop_.Post([this] { SetThreadLogIdentity({role_name_, id_}); });
    loop_.Start(switch_.get());
    heart_ = std::make_unique<PulseThread>(&pulse_, routers_.get(), host_.clock);
    if (host_.local != nullptr || !RouterResolver::Needed(host_.config->worker.routers)) return;
    resolver_ = std::make_unique<RouterResolver>(
        host_.config->worker.routers, [this](const std::vector<std::string>& addresses) {
          loop_.Post([this, addresses] { switch_->SetRouters(addresses); });
        });
  }

  Status Ready() const override {
    // During a step only Pulse knows whether it makes progress.
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
      switch_->BeginDrain();
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
    loop_.Post([this] { switch_->CloseLinks(); });
    loop_.Stop();
    heart_.reset();
    if (grpc_) grpc_->Shutdown(std::chrono::milliseconds(500));
  }

  const std::string& id() const override { return id_; }

 private:
  // The pool if kv.verify checks what arrives in it, else null.
  Result<const std::byte*> VerifiedPool() const {
    const std::string& verify = host_.config->kv.verify;
    const DeviceInfo& device = backend_.device->info();
    if (verify == "off" || (verify == "auto" && device.asynchronous)) return nullptr;
    if (device.asynchronous) {
      return InvalidArgument(fmt::format(
          "kv.verify is on and the KV pool is in the memory of a {} device, which the host cannot "
          "read; use --kv-verify auto or off",
          device.kind));
    }
    return static_cast<const std::byte*>(backend_.executor->kv_pool().data());
  }

  // Builds all roles that this process can take, over one engine; it starts with the first.
  Status BuildRoles(bool alone) {
    const Config& config = *host_.config;
    const bool decodes_first = role_name_ == "decode";
    MakeAdapters();
    if (!config.worker.step_log.empty()) {
      AISP_ASSIGN_OR_RETURN(step_log_, StepLog::Open(config.worker.step_log, id_));
    }
    WorkerOptions worker = WorkerOptionsOf(host_, id_, &pulse_, adapters_.get(), fingerprint_);
    worker.steps = step_log_.get();
    worker.launched_ahead = backend_.executor->max_depth() - 1;
    Status listens = alone ? Status() : ListenForReaders();
    // If another process has the port, a decode worker can still decode.
    if (!listens && !decodes_first) return listens;
    if (!listens) {
      LogWarning(
          "this worker can never prefill for others nor give prefixes away: it cannot listen",
          {{"worker", id_}, {"error", listens.error().message}});
    }
    const bool prefills = !alone && listens;
    // Set for every role, since other workers may pull prefixes cached here.
    if (prefills) worker.kv_address = host_.local != nullptr ? LocalKvAddress() : kv_address_;
    worker.roles = {v1::ROLE_DECODE, v1::ROLE_PARKED};
    if (prefills) worker.roles.insert(worker.roles.begin(), v1::ROLE_PREFILL);

    switch_ = std::make_unique<RoleSwitch>(
        RoleSwitch::Options{id_,
                            [this](v1::Role role) {
                              SetThreadLogIdentity({std::string(RoleName(role)), id_});
                            }},
        host_.clock);
    routers_ = host_.local != nullptr ? host_.local->MakeRouterDialer(switch_.get(), post_)
                                      : MakeRouterDialer(switch_.get(), post_, links_);
    switch_->SetDialer(routers_.get());
    if (prefills) prefill_ = std::make_unique<PrefillRole>(PrefillOptionsOf(worker));
    decode_ = std::make_unique<DecodeRole>(DecodeOptionsOf(worker));
    parked_ = std::make_unique<ParkedRole>(worker);

    EngineOptions options = EngineOptionsOf(config, fingerprint_);
    AISP_ASSIGN_OR_RETURN(options.speculator,
                          MakeSpeculator(config, *host_.served, backend_, host_.clock));
    options.tiers = std::move(tiers_.options);
    if (!backend_.device->info().asynchronous)
      options.between_layers = [this] { loop_.RunInStep(); };
    engine_ = std::make_unique<Engine>(options, backend_.executor.get(), host_.clock,
                                       prefills ? prefill_->layer_sink() : nullptr);
    adapters_->Wire(engine_.get());
    if (!decodes_first) WirePrefill();
    WireDecode();
    if (decodes_first && prefills) WirePrefill();
    parked_->Wire(engine_.get(), host_.clock, switch_->DialerOf(v1::ROLE_PARKED));
    switch_->Add(v1::ROLE_PARKED, parked_.get());
    return {};
  }

  void MakeAdapters() {
    adapter_files_ = std::make_unique<WorkPool>("adapters", 1, kMaxAdapterLoads);
    adapters_ = std::make_unique<AdapterKeeper>(
        host_.served->adapters->start(),
        MakeAdapterLoader(*host_.config, &backend_.executor->model(), adapter_files_.get(), post_));
  }

  PrefillOptions PrefillOptionsOf(const WorkerOptions& worker) const {
    const Config::Engine engine = EngineSettingsOf(*host_.config);
    PrefillOptions o;
    o.worker = worker;
    o.horizon_tokens = 2 * static_cast<int32_t>(engine.max_batch_tokens);
    o.max_transfers = static_cast<int32_t>(host_.config->engine.max_waiting);
    o.feature_layers = backend_.feature_layers;
    o.max_sequence_tokens = host_.served->max_model_len;
    o.max_running = static_cast<int32_t>(engine.max_sequences);
    o.pid = getpid();
    return o;
  }

  DecodeOptions DecodeOptionsOf(const WorkerOptions& worker) const {
    const Config& config = *host_.config;
    DecodeOptions o;
    o.worker = worker;
    o.max_sequence_tokens = host_.served->max_model_len;
    o.max_running = static_cast<int32_t>(EngineSettingsOf(config).max_sequences);
    o.default_timeout = config.router.default_timeout;
    o.lease_base = config.worker.lease;
    o.feature_layers = backend_.feature_layers;
    o.answers = {config.worker.answer_window, static_cast<size_t>(config.worker.answer_memory),
                 static_cast<size_t>(config.worker.max_answers)};
    if (host_.served->guides != nullptr) {
      o.guides = [pool = host_.served->guides, post = post_](const v1::GenerateRequest& request,
                                                             DecodeOptions::OnGuide later) {
        return pool->Guide(request, [post, later = std::move(later)](auto guide) {
          post([later, guide = std::move(guide)] { later(guide); });
        });
      };
    }
    return o;
  }

  // Binds the address that decode workers dial; their messages go to the prefill role.
  Status ListenForReaders() {
    if (host_.local != nullptr) return {};
    const Config::Worker& worker = host_.config->worker;
    grpc_ = std::make_unique<GrpcServer>();
    readers_ = grpc_->ServeKvPeer(&reader_links_, post_in_step_, links_);
    if (Status started = grpc_->Start(worker.kv_listen); !started) {
      grpc_.reset();
      return started;
    }
    kv_address_ = AdvertisedAddress(worker.kv_advertise, worker.kv_listen, grpc_->port());
    return {};
  }

  void WirePrefill() {
    connects_ = std::make_unique<WorkPool>("connect", kConnectThreads, kMaxConnects);
    connector_ = std::make_unique<RankedConnector>(
        transports_.ranked, kConnectTimeout,
        [this](std::function<void()> work, std::function<void()> then) {
          return connects_->TrySubmit(0, [this, work = std::move(work), then = std::move(then)] {
            work();
            post_in_step_(then);
          });
        });
    reader_links_.role = prefill_->reader_links();
    if (host_.local != nullptr) {
      readers_ = host_.local->ServeKvPeer(LocalKvAddress(), &reader_links_, post_in_step_);
      serves_locally_ = true;
    }
    PrefillDeps deps;
    deps.engine = engine_.get();
    deps.clock = host_.clock;
    deps.routers = switch_->DialerOf(v1::ROLE_PREFILL);
    deps.readers = readers_;
    deps.connector = connector_.get();
    deps.metrics = host_.metrics;
    deps.host_pool = verified_pool_;
    deps.fetcher = decode_->fetcher();
    if (!backend_.device->info().asynchronous)
      deps.conversion_pool = static_cast<std::byte*>(backend_.executor->kv_pool().data());
    prefill_->Wire(deps);
    switch_->Add(v1::ROLE_PREFILL, prefill_.get());
  }

  void WireDecode() {
    death_ = std::make_unique<ProcessDeath>(transports_.watchers);
    peers_ = host_.local != nullptr
                 ? host_.local->MakeKvPeerDialer(decode_->peer_links(), post_in_step_)
                 : MakeKvPeerDialer(decode_->peer_links(), post_in_step_, links_);
    DecodeDeps deps;
    deps.engine = engine_.get();
    deps.clock = host_.clock;
    deps.routers = switch_->DialerOf(v1::ROLE_DECODE);
    deps.peers = peers_.get();
    deps.transports = transports_.ranked;
    deps.death = death_.get();
    deps.metrics = host_.metrics;
    deps.host_pool = verified_pool_;
    decode_->Wire(deps);
    switch_->Add(v1::ROLE_DECODE, decode_.get());
  }

  std::string LocalKvAddress() const { return "local:" + id_; }

  // On the loop's thread, after every step and timer.
  void OnStep() {
    const Status ready = switch_->Ready();
    const bool drained = switch_->Drained();
    // After a device failure, wait until the answers of the failed requests are delivered.
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
    if (on_stop_ && (failed || switch_->StopWanted())) {
      if (failed) {
        LogError("the device has failed; this process ends",
                 {{"worker", id_}, {"error", engine_->failed().error().message}});
      }
      std::exchange(on_stop_, nullptr)();
    }
  }

  static constexpr Duration kConnectTimeout = std::chrono::milliseconds(500);
  static constexpr int kConnectThreads = 4;
  static constexpr size_t kMaxConnects = 256;     // waiting
  static constexpr size_t kMaxAdapterLoads = 64;  // waiting

  const WorkerHost host_;
  const std::string role_name_;
  const std::string id_;
  Pulse pulse_;

  // Declared first and destroyed last: links, transports and watchers post to it until they end.
  WorkerLoop loop_;
  Poster post_;
  Poster post_in_step_;  // for requests of other workers

  // Members are destroyed from last to first: the role before everything it uses.
  GrpcLinkOptions links_;
  Backend backend_;
  v1::Fingerprint fingerprint_;
  std::unique_ptr<GpuMetrics> gpu_metrics_;
  const std::byte* verified_pool_ = nullptr;  // see VerifiedPool
  KvTransports transports_;
  WorkerTiers tiers_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<AdapterKeeper> adapters_;
  std::unique_ptr<StepLog> step_log_;  // null: nobody wants one
  std::unique_ptr<WorkPool> adapter_files_;
  std::unique_ptr<PeerConnector> connector_;
  std::unique_ptr<WorkPool> connects_;  // declared after all that its jobs use
  std::unique_ptr<ProcessDeath> death_;
  std::unique_ptr<GrpcServer> grpc_;
  LinkSender<v1::PrefillToDecode>* readers_ = nullptr;
  std::string kv_address_;
  std::unique_ptr<LinkDialer<v1::WorkerMessage>> routers_;
  std::unique_ptr<LinkDialer<v1::DecodeToPrefill>> peers_;
  // Sits between the listener, which is created first, and the role.
  struct ReaderLinks final : LinkHandler<v1::DecodeToPrefill> {
    LinkHandler<v1::DecodeToPrefill>* role = nullptr;
    void OnLinkUp(LinkId link, const std::string& peer_address) override {
      role->OnLinkUp(link, peer_address);
    }
    void OnMessage(LinkId link, v1::DecodeToPrefill message) override {
      role->OnMessage(link, std::move(message));
    }
    void OnLinkDown(LinkId link, const Error& why) override { role->OnLinkDown(link, why); }
  };
  ReaderLinks reader_links_;
  std::unique_ptr<PrefillRole> prefill_;  // null: this process can never prefill for others
  std::unique_ptr<DecodeRole> decode_;
  std::unique_ptr<ParkedRole> parked_;
  std::unique_ptr<RoleSwitch> switch_;
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
