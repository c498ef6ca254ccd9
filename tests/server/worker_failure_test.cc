// A device that fails under its worker: requests end with a retryable error, the worker turns
// unready and requests its process's exit, once.
#include <gmock/gmock.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "net/http_client.h"
#include "server/forwarding_executor.h"
#include "server/router_service.h"
#include "server/worker_service.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;

constexpr Duration kPatience = std::chrono::seconds(20);
constexpr const char* kBroken = "CUDA, a step on the GPU: an illegal memory access was encountered";

// Computes a number of steps; then every call fails like a GPU with a broken context.
class FailingExecutor final : public ForwardingExecutor {
 public:
  FailingExecutor(std::unique_ptr<ServingExecutor> real, int good_steps, bool in_collect)
      : ForwardingExecutor(std::move(real)), fuse_(good_steps), in_collect_(in_collect) {}
  Result<Ticket> Launch(const StepInput& input) override {
    if (!in_collect_ && fuse_-- <= 0) return Unavailable(kBroken);
    return ForwardingExecutor::Launch(input);
  }
  Result<StepResult> Collect(Ticket ticket) override {
    if (in_collect_ && fuse_-- <= 0) return Unavailable(kBroken);
    return ForwardingExecutor::Collect(ticket);
  }

 private:
  int fuse_;
  const bool in_collect_;
};

// A router and one worker in this process, like `aisp serve --role all`.
class House {
 public:
  House(int good_steps, bool in_collect) {
    config_.model.path = AISP_SOURCE_DIR "/models/story-7m";
    config_.model.device = "cpu";
    config_.http.port = 0;
    config_.http.grpc = false;
    config_.router.default_timeout = std::chrono::seconds(5);
    auto served = LoadServedModel(config_);
    EXPECT_TRUE(served);
    served_ = std::move(*served);
    auto router = RouterService::Create(config_, served_.get(), &clock_, &metrics_, &hub_);
    EXPECT_TRUE(router);
    router_ = std::move(*router);
    EXPECT_TRUE(router_->Start());
    WorkerHost host;
    host.config = &config_;
    host.served = served_.get();
    host.clock = &clock_;
    host.metrics = &metrics_;
    host.local = &hub_;
    host.replace_executor = [=](std::unique_ptr<ServingExecutor> real) {
      return std::make_unique<FailingExecutor>(std::move(real), good_steps, in_collect);
    };
    auto worker = WorkerService::Create(host, "decode", "worker");
    EXPECT_TRUE(worker);
    worker_ = std::move(*worker);
    worker_->Start([this] { Note(&ready_); }, [this] { Note(&stops_); });
    EXPECT_TRUE(AwaitAtLeast(ready_, 1));
  }
  ~House() {
    router_->DrainAndStop({}, [] { return true; });
    worker_->DrainAndStop({}, [] { return true; });
  }

  Result<HttpAnswer> Complete(int max_tokens) {
    const std::string address = router_->http_address();
    const size_t colon = address.rfind(':');
    auto client =
        HttpClient::Connect(address.substr(0, colon),
                            static_cast<uint16_t>(std::stoi(address.substr(colon + 1))), kPatience);
    EXPECT_TRUE(client);
    return client->Request("POST", "/v1/completions",
                           R"({"prompt": "Once upon a time", "ignore_eos": true, "max_tokens": )" +
                               std::to_string(max_tokens) + "}",
                           {{"content-type", "application/json"}});
  }

  bool AwaitStop() { return AwaitAtLeast(stops_, 1); }
  int stops() {
    std::lock_guard lock(mutex_);
    return stops_;
  }
  WorkerService& worker() { return *worker_; }

 private:
  void Note(int* count) {
    std::lock_guard lock(mutex_);
    ++*count;
    changed_.notify_all();
  }
  bool AwaitAtLeast(const int& count, int wanted) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return count >= wanted; });
  }

  Config config_;
  SteadyClock clock_;
  Metrics metrics_;
  LocalHub hub_;
  std::unique_ptr<ServedModel> served_;
  std::unique_ptr<RouterService> router_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int ready_ = 0, stops_ = 0;
  std::unique_ptr<WorkerService> worker_;
};

class WorkerFailure : public ::testing::TestWithParam<bool> {};

TEST_P(WorkerFailure, ABrokenDeviceEndsRequestsAsRetryableAndThenTheProcess) {
  House house(/*good_steps=*/5, /*in_collect=*/GetParam());
  const auto fine = house.Complete(2);
  ASSERT_TRUE(fine);
  EXPECT_EQ(fine->status, 200) << fine->body;
  EXPECT_TRUE(house.worker().Failure());

  const auto broken = house.Complete(100);
  ASSERT_TRUE(broken);
  EXPECT_EQ(broken->status, 503) << broken->body;
  EXPECT_NE(broken->Header("retry-after"), "");
  ASSERT_TRUE(house.AwaitStop());
  ASSERT_FALSE(house.worker().Ready());
  EXPECT_THAT(house.worker().Ready().error().message, HasSubstr("illegal memory access"));
  ASSERT_FALSE(house.worker().Failure());
  EXPECT_EQ(house.worker().Failure().error().code, Code::kUnavailable);

  // Later requests get the same error at once, and the exit is requested once.
  const auto late = house.Complete(1);
  ASSERT_TRUE(late);
  EXPECT_EQ(late->status, 503) << late->body;
  EXPECT_EQ(house.stops(), 1);
}

INSTANTIATE_TEST_SUITE_P(All, WorkerFailure, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "InCollect" : "InLaunch"; });

}  // namespace
}  // namespace aisp
