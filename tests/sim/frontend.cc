#include "tests/sim/frontend.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "text/plain_tokenizer.h"

namespace aisp {
namespace {

// Shorter than most answers take, so that comments are sent between events.
constexpr Duration kKeepAlive = std::chrono::milliseconds(40);

std::unique_ptr<Tenants> NoKeys() {
  auto tenants = Tenants::Load(Config());
  AISP_CHECK(tenants.has_value());
  return std::move(*tenants);
}

}  // namespace

SimExchange::~SimExchange() {
  if (!alive()) return;
  if (const auto reader = reader_.lock()) reader->OnDropped(arrived_);
}

void SimExchange::Respond(int status, HttpHeaders headers, std::string body) {
  if (gone_) return;
  complete_ = true;
  if (const auto reader = reader_.lock()) reader->OnAnswer(status, headers, body);
}

void SimExchange::BeginStream(int status, HttpHeaders headers) {
  if (gone_) return;
  if (const auto reader = reader_.lock()) reader->OnStream(status, headers);
}

void SimExchange::Write(std::string_view bytes) {
  if (gone_) return;
  if (const auto reader = reader_.lock()) reader->OnBytes(bytes);
}

void SimExchange::End() {
  if (gone_) return;
  complete_ = true;
  if (const auto reader = reader_.lock()) reader->OnEnd();
}

void SimExchange::Disconnect(Gone why) {
  if (!alive()) return;
  gone_ = true;
  if (const auto handler = std::exchange(handler_, nullptr)) handler(why);
}

// The process's loop: posted work runs at the same simulated time, after the current work.
class SimFrontend::Loop final : public EventLoop {
 public:
  Loop(SimWorld* world, std::shared_ptr<SimProcess> process, const SimClock* clock)
      : world_(world), process_(std::move(process)), clock_(clock) {}

  void Post(std::function<void()> fn) override {
    world_->At(world_->Now(),
               [process = process_, fn = std::move(fn)]() mutable { process->Deliver(fn); });
  }

  std::shared_ptr<Timer> RunAt(Instant when, std::function<void()> fn) override {
    auto timer = std::make_shared<Pending>();
    timer->fn = std::move(fn);
    if (when == kNever) return timer;
    world_->At(std::max(world_->Now(), clock_->ToWorld(when)),
               [process = process_, weak = std::weak_ptr(timer)] {
                 process->Deliver([weak] {
                   const auto alive = weak.lock();
                   if (alive) std::exchange(alive->fn, nullptr)();
                 });
               });
    return timer;
  }

 private:
  struct Pending final : Timer {
    std::function<void()> fn;
  };

  SimWorld* const world_;
  const std::shared_ptr<SimProcess> process_;
  const SimClock* const clock_;
};

// Tokenizing takes time, in which clients leave and deadlines pass.
class SimFrontend::Queue final : public WorkQueue {
 public:
  Queue(SimWorld* world, std::shared_ptr<SimProcess> process)
      : world_(world), process_(std::move(process)) {}

  bool TrySubmit(size_t bytes, std::function<void()> job, const TenantShare&) override {
    world_->After(FromMs(0.05 + static_cast<double>(bytes) * 0.002),
                  [process = process_, job = std::move(job)] { process->Deliver(job); });
    return true;
  }

 private:
  SimWorld* const world_;
  const std::shared_ptr<SimProcess> process_;
};

std::unique_ptr<TextModel> SimFrontend::MakeModel(const ProvenanceOptions& options) {
  auto model = std::make_unique<TextModel>();
  model->name = "provenance";
  model->max_model_len = options.max_context;
  model->vocabulary = options.vocabulary;
  model->limits.vocab_size = options.vocabulary;
  auto tokenizer = MakePlainTokenizer(options.vocabulary);
  AISP_CHECK(tokenizer.has_value());
  model->tokenizer = std::move(*tokenizer);
  return model;
}

SimFrontend::SimFrontend(SimWorld* world, const ProvenanceOptions& model,
                         std::shared_ptr<SimProcess> process, const SimClock* clock, Router* router,
                         Metrics* metrics)
    : world_(world),
      process_(std::move(process)),
      clock_(clock),
      model_(MakeModel(model)),
      loop_(std::make_unique<Loop>(world, process_, clock)),
      queue_(std::make_unique<Queue>(world, process_)),
      tenants_(NoKeys()),
      log_(metrics, clock),
      stats_(clock),
      loras_(metrics, {}, 0),
      frontend_(&context_, metrics) {
  context_.model = model_.get();
  context_.router = router;
  context_.pool = queue_.get();
  context_.loop = loop_.get();
  context_.clock = clock;
  context_.tenants = tenants_.get();
  context_.log = &log_;
  context_.stats = &stats_;
  context_.responses = std::make_shared<ResponseStore>(ResponseStore::Limits{});
  context_.keepalive_comment = kKeepAlive;
  context_.metrics = FrontendMetrics(metrics, {});
  context_.loras = &loras_;
}

SimFrontend::~SimFrontend() {
  for (const auto& weak : exchanges_) {
    if (const auto exchange = weak.lock()) exchange->Disconnect(HttpExchange::Gone::kShutdown);
  }
}

void SimFrontend::Handle(const std::shared_ptr<SimExchange>& exchange) {
  if (!exchange->alive()) return;
  std::erase_if(exchanges_, [](const auto& weak) { return weak.expired(); });
  exchanges_.push_back(exchange);
  exchange->Receive(clock_->Now());
  frontend_.Handle(exchange);
}

void SimFrontend::CheckQuiet() {
  if (!Idle()) world_->Fail(process_->name + " has a job and no request");
  if (context_.answers_bytes != 0)
    world_->Fail(process_->name + " holds bytes of an answer that has ended");
  for (const auto& weak : exchanges_) {
    if (!weak.expired()) world_->Fail(process_->name + " holds an exchange that has ended");
  }
}

}  // namespace aisp
