// Prompts and texts that wait for the tokenizers: their deadline runs while they wait, jobs that
// nobody waits for are skipped, and each counts towards its tenant's limit.
#include <gmock/gmock.h>

#include <atomic>
#include <future>

#include "frontend/frontend.h"
#include "net/http_client.h"
#include "server/served_model.h"
#include "server/work_pool.h"
#include "tests/net/loop_thread.h"
#include "tests/router/router_harness.h"

namespace aisp {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr seconds kWait{20};

// Real time plus an offset.
class ShiftedClock final : public Clock {
 public:
  Instant Now() const override { return steady_.Now() + Duration(shift_.load()); }
  void Advance(Duration by) { shift_ += by.count(); }

 private:
  SteadyClock steady_;
  std::atomic<int64_t> shift_{0};
};

struct Ending {
  std::promise<ApiError> failed;
};

class RecordingSink final : public AnswerSink {
 public:
  explicit RecordingSink(Ending* ending) : ending_(ending) {}
  void OnTraced(const std::string&) override {}
  void OnPrepared(const PreparedRequest&) override {}
  void OnRouted(const std::string&) override {}
  void OnProgress(ChoiceStream&) override {}
  void OnDone(std::span<const std::unique_ptr<ChoiceStream>>, const AnswerUsage&) override {}
  void OnFailed(const ApiError& error, Duration) override { ending_->failed.set_value(error); }

 private:
  Ending* const ending_;
};

// One tokenizer, blocked until the test releases it.
class PoolJobs : public ::testing::Test {
 protected:
  PoolJobs() : router_({}, {}, &clock_, 1, &workers_, &metrics_), stats_(&clock_) {
    Config config;
    config.model.path = AISP_SOURCE_DIR "/models/story-7m";
    auto model = LoadServedModel(config);
    EXPECT_TRUE(model);
    model_ = std::move(*model);
    config.http.api_keys = {"alice:sk-alice", "bob:sk-bob"};
    config.http.max_inflight_per_key = 2;
    tenants_ = std::move(*Tenants::Load(config));
    context_.model = model_.get();
    context_.router = &router_;
    context_.pool = &pool_;
    context_.loop = &loop_.loop();
    context_.clock = &clock_;
    context_.tenants = tenants_.get();
    context_.log = &log_;
    context_.stats = &stats_;
    context_.metrics = FrontendMetrics(&metrics_, {});
    context_.loras = &loras_;
    context_.default_timeout = seconds(30);
    loop_.On([&] {
      HttpServerOptions options;
      options.intake = [this](const HttpRequest& head) { return frontend_.Intake(head); };
      http_ = std::make_unique<HttpServer>(
          &loop_.loop(), options,
          [this](const std::shared_ptr<HttpExchange>& each) { frontend_.Handle(each); });
      ASSERT_TRUE(http_->Start());
    });
    Hold();
  }
  ~PoolJobs() override {
    LetGo();
    Drain();
    loop_.On([&] { http_.reset(); });
    loop_.Stop();
  }

  void Hold() {
    std::promise<void> begun;
    ASSERT_TRUE(pool_.TrySubmit(1, [&begun, held = let_go_.get_future().share()] {
      begun.set_value();
      held.wait();
    }));
    begun.get_future().wait();
  }
  void LetGo() {
    if (!std::exchange(free_, true)) let_go_.set_value();
  }
  // Waits until all earlier jobs have run or were dropped, and the loop knows it.
  void Drain() {
    std::promise<void> last;
    ASSERT_TRUE(pool_.TrySubmit(1, [&last] { last.set_value(); }));
    last.get_future().wait();
    loop_.On([] {});
  }
  std::shared_ptr<GenerationJob> StartJob(Duration timeout, Ending* ending) {
    std::shared_ptr<GenerationJob> job;
    loop_.On([&] {
      GenerationJob::Request request;
      request.caller.received = clock_.Now();
      request.timeout = timeout;
      request.prepare = [this]() -> ApiResult<PreparedRequest> {
        ++prepared_;
        return tl::unexpected(ApiError(Code::kInvalidArgument, "it was read"));
      };
      job = GenerationJob::Start(&context_, std::move(request),
                                 std::make_unique<RecordingSink>(ending));
    });
    return job;
  }
  std::future<HttpAnswer> Post(const std::string& path, const std::string& body,
                               const std::string& key) {
    return std::async(std::launch::async, [=, this] {
      auto client = HttpClient::Connect("127.0.0.1", http_->port(), kWait);
      if (!client) return HttpAnswer{};
      return client->Request("POST", path, body, {{"authorization", "Bearer " + key}})
          .value_or(HttpAnswer{});
    });
  }

  ShiftedClock clock_;
  Metrics metrics_;
  RecordingSender workers_;
  Router router_;
  LoopThread loop_;
  WorkPool pool_{"test", 1, 64};
  RequestLog log_{&metrics_, &clock_};
  LiveStats stats_;
  LoraRequests loras_{&metrics_, {}, 0};
  std::unique_ptr<ServedModel> model_;
  std::unique_ptr<Tenants> tenants_;
  FrontendContext context_;
  Frontend frontend_{&context_, &metrics_};
  std::unique_ptr<HttpServer> http_;
  std::promise<void> let_go_;
  bool free_ = false;
  std::atomic<int> prepared_{0};
};

TEST_F(PoolJobs, WhoseTimeIsOverInTheQueueIsNotTokenized) {
  Ending late, in_time;
  StartJob(seconds(2), &late);
  StartJob(seconds(10), &in_time);
  clock_.Advance(seconds(3));
  LetGo();
  const ApiError error = late.failed.get_future().get();
  EXPECT_EQ(error.code, Code::kDeadlineExceeded);
  EXPECT_THAT(error.message, HasSubstr("before its text was tokenized"));
  EXPECT_EQ(in_time.failed.get_future().get().message, "it was read");
  EXPECT_EQ(prepared_, 1);
  EXPECT_THAT(metrics_.Render(), HasSubstr("reason=\"deadline\"} 1"));
}

TEST_F(PoolJobs, WithoutATimeOfItsOwnTheDefaultCounts) {
  Ending late;
  StartJob({}, &late);
  clock_.Advance(seconds(31));
  LetGo();
  EXPECT_EQ(late.failed.get_future().get().code, Code::kDeadlineExceeded);
  EXPECT_EQ(prepared_, 0);
}

TEST_F(PoolJobs, WhoLeftIsNotTokenized) {
  Ending left;
  const auto job = StartJob(seconds(10), &left);
  loop_.On([&] { job->Abandon("closed"); });
  LetGo();
  Drain();
  EXPECT_EQ(prepared_, 0);
}

using Answers = std::vector<std::future<HttpAnswer>>;

// The first future that is ready while the tokenizer is blocked; null: none within the time.
std::future<HttpAnswer>* FirstAnswered(Answers* answers) {
  const auto deadline = std::chrono::steady_clock::now() + kWait;
  while (std::chrono::steady_clock::now() < deadline) {
    for (auto& each : *answers) {
      if (each.wait_for(std::chrono::milliseconds(2)) == std::future_status::ready) return &each;
    }
  }
  return nullptr;
}

TEST_F(PoolJobs, TokenizeAndDetokenizeHoldPlacesOfTheirTenant) {
  const char* const text = R"({"prompt": "Once upon a time"})";
  const char* const ids = R"({"tokens": [5, 6]})";
  Answers alices;
  alices.push_back(Post("/tokenize", text, "sk-alice"));
  alices.push_back(Post("/detokenize", ids, "sk-alice"));
  alices.push_back(Post("/tokenize", text, "sk-alice"));
  // The limit is two: one of the three is refused at once, whichever came last.
  std::future<HttpAnswer>* const refused = FirstAnswered(&alices);
  ASSERT_NE(refused, nullptr) << "nothing bounds a tenant's calls";
  EXPECT_EQ(refused->get().status, 429);
  auto bobs = Post("/tokenize", text, "sk-bob");
  LetGo();
  for (auto& each : alices) {
    if (each.valid()) {
      EXPECT_EQ(each.get().status, 200);
    }
  }
  EXPECT_EQ(bobs.get().status, 200);
  // And the room is free again.
  EXPECT_EQ(Post("/tokenize", text, "sk-alice").get().status, 200);
  EXPECT_EQ(Post("/detokenize", ids, "sk-alice").get().status, 200);
}

TEST_F(PoolJobs, TokenizeWaitsNoLongerThanARequestMay) {
  Answers answers;
  for (int i = 0; i < 3; ++i)
    answers.push_back(Post("/tokenize", R"({"prompt": "Once upon a time"})", "sk-alice"));
  // The third is refused while the two before it wait.
  std::future<HttpAnswer>* const refused = FirstAnswered(&answers);
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->get().status, 429);
  clock_.Advance(seconds(31));
  LetGo();
  for (auto& each : answers) {
    if (each.valid()) {
      EXPECT_EQ(each.get().status, 504);
    }
  }
}

// Compiles nothing before it is released.
class SlowCompiler final : public ConstraintCompiler {
 public:
  Result<std::shared_ptr<Constraint>> Get(const v1::Constraint&, const std::string&) override {
    held_.wait();
    return InvalidArgument("it was compiled");
  }
  bool Keeps(const v1::Constraint&) override { return false; }
  void LetGo() { let_go_.set_value(); }

 private:
  std::promise<void> let_go_;
  std::shared_future<void> held_ = let_go_.get_future().share();
};

TEST_F(PoolJobs, ConstraintsThatCompileKeepNoTextWaiting) {
  LetGo();
  const auto compiler = std::make_shared<SlowCompiler>();
  model_->constraints = compiler;
  const char* const constrained =
      R"({"prompt": "Once", "max_tokens": 4, "structured_outputs": {"regex": "a+"}})";
  Answers slow;
  for (int i = 0; i < 2; ++i) slow.push_back(Post("/v1/completions", constrained, "sk-alice"));
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(Post("/tokenize", R"({"prompt": "Once upon a time"})", "sk-bob").get().status, 200);
  compiler->LetGo();
  for (auto& each : slow) {
    const HttpAnswer answer = each.get();
    EXPECT_EQ(answer.status, 400);
    EXPECT_THAT(answer.body, HasSubstr("it was compiled"));
  }
}

}  // namespace
}  // namespace aisp
