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
#include "net/io_loop.h"
#include "server/frontend.h"
#include "server/work_pool.h"

namespace aisp {
namespace {

// Prompts that wait to be tokenized, for each thread that does it.
constexpr size_t kQueuedPerTokenizer = 256;

uint64_t DrawSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

RouterOptions RouterOptionsOf(const Config& config) {
  RouterOptions o;
  o.max_inflight = static_cast<int32_t>(config.router.max_inflight);
  o.default_timeout = config.router.default_timeout;
  o.silence_limit = config.router.silence_limit;
  o.telemetry_interval = config.router.telemetry_interval;
  o.max_attempts = static_cast<int>(config.router.max_attempts);
  o.policy.chunk_tokens = static_cast<int32_t>(
      std::min(config.engine.max_prefill_chunk, config.engine.max_batch_tokens));
  return o;
}

HttpServerOptions HttpOptionsOf(const Config& config) {
  HttpServerOptions o;
  o.address = config.http.address;
  o.port = static_cast<uint16_t>(config.http.port);
  o.max_header_bytes = static_cast<size_t>(config.http.max_header.bytes);
  o.max_body_bytes = static_cast<size_t>(config.http.max_body.bytes);
  o.max_connections = static_cast<size_t>(config.http.max_connections);
  o.max_unsent_bytes = static_cast<size_t>(config.http.max_unsent.bytes);
  o.read_timeout = config.http.read_timeout;
  o.idle_timeout = config.http.idle_timeout;
  o.write_timeout = config.http.write_timeout;
  o.error_body = [](int status, std::string_view message) { return ErrorBody(status, message); };
  return o;
}

class RouterServiceImpl final : public RouterService {
 public:
  RouterServiceImpl(const Config& config, const ServedModel* model, const Clock* clock,
                    Metrics* metrics, LocalHub* local)
      : config_(config),
        clock_(clock),
        links_(this),
        pool_("tokenizer", static_cast<int>(config.router.tokenizer_threads),
              kQueuedPerTokenizer * static_cast<size_t>(config.router.tokenizer_threads)) {
    const Poster post = [this](std::function<void()> fn) { loop_.Post(std::move(fn)); };
    if (local != nullptr) {
      sender_ = local->ServeRouterControl(kLocalRouterAddress, &links_, post);
    } else {
      grpc_ = std::make_unique<GrpcServer>();
      sender_ = grpc_->ServeRouterControl(&links_, post);
    }
    router_ = std::make_unique<Router>(RouterOptionsOf(config), model->fingerprint, clock,
                                       DrawSeed(), sender_, metrics);
    frontend_ = std::make_unique<Frontend>(
        Frontend::Deps{model, router_.get(), &pool_, &loop_, clock, metrics,
                       config.http.keepalive_comment, DrawSeed()});
    http_ = std::make_unique<HttpServer>(&loop_, HttpOptionsOf(config),
                                         [this](std::shared_ptr<HttpExchange> exchange) {
                                           frontend_->Handle(std::move(exchange));
                                           ArmTimer();
                                         });
  }

  ~RouterServiceImpl() override {
    DrainAndStop({}, [] { return true; });
  }

  Status Start() override {
    AISP_RETURN_IF_ERROR(http_->Start());
    if (grpc_) AISP_RETURN_IF_ERROR(grpc_->Start(config_.router.listen));
    thread_ = Thread("router", [this] {
      ArmTimer();
      loop_.Run();
    });
    started_ = true;
    return {};
  }

  std::string http_address() const override {
    return fmt::format("{}:{}", config_.http.address, http_->port());
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

  void ArmTimer() {
    const Instant next = router_->NextTimer();
    if (next == armed_for_) return;
    armed_for_ = next;
    timer_ = next == kNever ? nullptr : loop_.RunAt(next, [this] {
      armed_for_ = kNever;
      router_->OnTimer(clock_->Now());
      ArmTimer();
    });
  }

  // Waits, on the caller's thread, until requests and connections have ended.
  void AwaitIdle(Duration limit, const std::function<bool()>& haste) {
    struct Drained {
      std::mutex mutex;
      std::condition_variable changed;
      bool done = false;
    };
    auto drained = std::make_shared<Drained>();
    loop_.Post([this, drained] {
      router_->BeginDrain();
      http_->Drain([drained] {
        std::lock_guard lock(drained->mutex);
        drained->done = true;
        drained->changed.notify_all();
      });
    });
    const Instant deadline = clock_->Now() + limit;
    std::unique_lock lock(drained->mutex);
    while (!drained->done && clock_->Now() < deadline && !haste()) {
      drained->changed.wait_for(lock, std::chrono::milliseconds(50));
    }
    if (!drained->done)
      LogWarning("stopping with requests still running", {{"connections", http_->connections()}});
  }

  const Config config_;
  const Clock* const clock_;
  IoLoop loop_;
  Links links_;
  WorkPool pool_;
  std::unique_ptr<GrpcServer> grpc_;
  LinkSender<v1::RouterMessage>* sender_ = nullptr;
  std::unique_ptr<Router> router_;
  std::unique_ptr<Frontend> frontend_;
  std::unique_ptr<HttpServer> http_;
  std::shared_ptr<IoLoop::Timer> timer_;
  Instant armed_for_ = kNever;
  Thread thread_;
  bool started_ = false;
};

}  // namespace

Result<std::unique_ptr<RouterService>> RouterService::Create(const Config& config,
                                                             const ServedModel* model,
                                                             const Clock* clock, Metrics* metrics,
                                                             LocalHub* local) {
  if (config.router.listen.rfind(':') == std::string::npos) {
    return InvalidArgument(
        fmt::format("router.listen is '{}'; it wants host:port", config.router.listen));
  }
  return std::make_unique<RouterServiceImpl>(config, model, clock, metrics, local);
}

}  // namespace aisp
