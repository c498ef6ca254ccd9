// The driver against a scripted server: every request ends once, whatever happens to it.
#include "loadgen/driver.h"

#include <gmock/gmock.h>

#include <functional>
#include <map>

namespace aisp::loadgen {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Answers each request with what `script` does to its listener, from the loop.
class ScriptedBackend final : public Backend {
 public:
  struct Sent {
    size_t number;  // of the attempt, over all requests
    BackendListener* listener;
  };
  using Script = std::function<void(const Sent&)>;
  ScriptedBackend(IoLoop* loop, Script script) : loop_(loop), script_(std::move(script)) {}

  std::unique_ptr<BackendCall> Start(const WorkItem& item, BackendListener* listener) override {
    std::string asked;
    if (item.history != nullptr) {
      for (const SpokenTurn& turn : *item.history) asked += turn.asked->text + turn.answer;
    }
    asked_.push_back(asked + item.text);
    auto call = std::make_unique<Call>();
    call->backend = this;
    ++open_;
    most_open_ = std::max(most_open_, open_);
    loop_->Post([this, alive = call->alive, sent = Sent{starts_++, listener}] {
      if (*alive) script_(sent);
    });
    return call;
  }
  int open() const { return open_; }
  int most_open() const { return most_open_; }
  size_t starts() const { return starts_; }
  // With the earlier turns.
  const std::vector<std::string>& asked() const { return asked_; }

 private:
  struct Call final : BackendCall {
    ~Call() override {
      *alive = false;
      --backend->open_;
    }
    ScriptedBackend* backend = nullptr;
    std::shared_ptr<bool> alive = std::make_shared<bool>(true);
  };
  IoLoop* loop_;
  Script script_;
  size_t starts_ = 0;
  std::vector<std::string> asked_;
  int open_ = 0;
  int most_open_ = 0;
};

Delta Token(std::string_view text) { return {.has_output = true, .raw_text = text}; }
Delta Last() { return {.finished = true, .finish_reason = "length"}; }

void Answer(BackendListener* listener, int tokens) {
  for (int i = 0; i < tokens; ++i) listener->OnDelta(Token("x"));
  listener->OnDelta(Last());
  listener->OnUsage({10, tokens, 0});
  listener->OnEnd({.completed = true, .http_status = 200});
}

class DriverTest : public ::testing::Test {
 protected:
  void Run(size_t count, const DriverOptions& options, ScriptedBackend::Script script,
           std::vector<double> at_s = {}, const std::function<void(Driver*)>& during = {}) {
    if (items_.empty()) items_.resize(count);
    for (WorkItem& item : items_) item.output_tokens = 8;
    if (at_s.empty()) at_s.assign(count, 0.0);
    backend_ = std::make_unique<ScriptedBackend>(&loop_, std::move(script));
    Driver driver(&loop_, backend_.get(), options, &items_, std::move(at_s), &records_);
    loop_.Post([&] {
      driver.Start([this] { loop_.Stop(); });
      if (during) during(&driver);
    });
    loop_.Run();
    EXPECT_EQ(driver.ended(), count);
    EXPECT_EQ(driver.in_flight(), 0u);
  }
  std::map<RequestStatus, int> Counts() const {
    std::map<RequestStatus, int> counts;
    for (const RequestRecord& r : records_) ++counts[r.status];
    return counts;
  }

  IoLoop loop_;
  std::vector<WorkItem> items_;
  std::vector<RequestRecord> records_;
  std::unique_ptr<ScriptedBackend> backend_;
};

// A server that sends unknown data forever fills no memory.
TEST_F(DriverTest, AnAnswerWithoutAnEndEndsItsRequest) {
  Run(2, {.keep_texts = true}, [](const auto& sent) {
    if (sent.number == 1) return Answer(sent.listener, 4);
    const std::string text(1 << 20, 'x');
    for (int i = 0; i < 100; ++i) sent.listener->OnDelta(Token(text));
  });
  EXPECT_EQ(records_[0].status, RequestStatus::kFailed);
  EXPECT_THAT(records_[0].reason, HasSubstr("bytes of text"));
  EXPECT_LE(records_[0].texts[0].size(), size_t{64} << 20);
  EXPECT_EQ(records_[1].status, RequestStatus::kCompleted);
}

TEST_F(DriverTest, ChunksWithoutNumberEndTheirRequest) {
  Run(1, {}, [](const auto& sent) {
    for (int i = 0; i < 3'000'000; ++i) sent.listener->OnDelta(Token("x"));
  });
  EXPECT_EQ(records_[0].status, RequestStatus::kFailed);
  EXPECT_THAT(records_[0].reason, HasSubstr("chunks"));
}

TEST_F(DriverTest, AChoiceThatNobodyAskedForEndsItsRequest) {
  Run(1, {.keep_texts = true}, [](const auto& sent) {
    sent.listener->OnDelta({.has_output = true, .choice = 0xFFFFFFFF, .raw_text = "x"});
  });
  EXPECT_EQ(records_[0].status, RequestStatus::kFailed);
  EXPECT_THAT(records_[0].reason, HasSubstr("choice 4294967295"));
}

TEST_F(DriverTest, EveryRequestIsSentOnceAndCompleted) {
  Run(200, {.keep_texts = true}, [](const auto& sent) { Answer(sent.listener, 4); });
  EXPECT_EQ(backend_->starts(), 200u);
  for (const RequestRecord& r : records_) {
    EXPECT_EQ(r.status, RequestStatus::kCompleted);
    EXPECT_EQ(r.output_tokens, 4);
    EXPECT_EQ(r.chunks, 4);
    EXPECT_EQ(r.gaps_ms.size(), 3u);
    EXPECT_EQ(r.texts, std::vector<std::string>{"xxxx"});
    EXPECT_GE(r.sent_s, r.intended_s);
  }
}

TEST_F(DriverTest, ConcurrencyHasItsBound) {
  Run(60, {.max_concurrency = 7, .closed_loop = true},
      [](const auto& sent) { Answer(sent.listener, 2); });
  EXPECT_EQ(backend_->most_open(), 7);
  EXPECT_EQ(Counts()[RequestStatus::kCompleted], 60);
}

TEST_F(DriverTest, OpenLoopDoesNotWaitForAnswers) {
  // The server answers nothing before the last request has been sent: a closed loop would wait
  // forever.
  std::vector<BackendListener*> waiting;
  std::vector<double> at;
  for (int i = 0; i < 30; ++i) at.push_back(0.002 * i);
  Run(
      30, {},
      [&](const auto& sent) {
        waiting.push_back(sent.listener);
        if (waiting.size() < 30) return;
        for (BackendListener* listener : waiting) Answer(listener, 2);
      },
      at);
  EXPECT_EQ(backend_->most_open(), 30);
  for (size_t i = 0; i < 30; ++i) {
    EXPECT_DOUBLE_EQ(records_[i].intended_s, at[i]);
    EXPECT_GE(records_[i].sent_s, at[i]);
    EXPECT_GT(records_[i].ttft_ms(false), 1e3 * (at.back() - at[i]) - 1);
  }
}

TEST_F(DriverTest, CancelledOnesAreTheShareAskedForAndTheSameForASeed) {
  const auto answer = [](const auto& sent) { Answer(sent.listener, 8); };
  Run(1000, {.cancel_rate = 0.3, .seed = 4}, answer);
  std::vector<size_t> first;
  for (size_t i = 0; i < records_.size(); ++i) {
    if (records_[i].status != RequestStatus::kCancelled) continue;
    first.push_back(i);
    EXPECT_THAT(records_[i].reason, HasSubstr("as asked"));
    EXPECT_GE(records_[i].chunks, 1);
    EXPECT_LT(records_[i].chunks, 8);
  }
  EXPECT_NEAR(static_cast<double>(first.size()), 300, 45);
  EXPECT_EQ(Counts()[RequestStatus::kFailed], 0);
}

TEST_F(DriverTest, RefusedOnesAreTriedAgainUpToTheLimitAndCounted) {
  std::map<BackendListener*, int> attempts;
  Run(3, {.retries = 2}, [&](const auto& sent) {
    const int attempt = ++attempts[sent.listener];
    const bool hopeless = sent.number % 3 == 2;  // the third request, in each round
    if (attempt <= 1 || hopeless) {
      sent.listener->OnEnd({.reason = "HTTP 503: busy",
                            .http_status = 503,
                            .may_retry = true,
                            .retry_after = std::chrono::milliseconds(5)});
    } else {
      Answer(sent.listener, 2);
    }
  });
  EXPECT_EQ(Counts()[RequestStatus::kCompleted] + Counts()[RequestStatus::kFailed], 3);
  EXPECT_GE(Counts()[RequestStatus::kCompleted], 2);
  for (const RequestRecord& r : records_) {
    EXPECT_GE(r.retries, 1);
    EXPECT_LE(r.retries, 2);
    if (r.status == RequestStatus::kFailed) {
      EXPECT_EQ(r.http_status, 503);
    }
  }
}

TEST_F(DriverTest, WhatHasBegunIsNotTriedAgain) {
  Run(1, {.retries = 5}, [](const auto& sent) {
    sent.listener->OnDelta(Token("x"));
    sent.listener->OnEnd({.reason = "truncated", .http_status = 200});
  });
  EXPECT_EQ(backend_->starts(), 1u);
  EXPECT_EQ(records_[0].status, RequestStatus::kFailed);
  EXPECT_EQ(records_[0].reason, "truncated");
  EXPECT_EQ(records_[0].output_tokens, 1);
}

TEST_F(DriverTest, SilenceEndsAtTheTimeout) {
  Run(4, {.request_timeout_s = 0.02}, [](const auto&) {});
  EXPECT_EQ(Counts()[RequestStatus::kFailed], 4);
  EXPECT_THAT(records_[0].reason, HasSubstr("--request-timeout"));
  EXPECT_EQ(backend_->open(), 0);
}

TEST_F(DriverTest, AnAbortedRunStillHasOneStatusForEach) {
  Driver* running = nullptr;
  Run(
      40, {.max_concurrency = 5, .closed_loop = true},
      [&](const auto& sent) {
        if (sent.number != 4) return;
        loop_.Post([&] { running->Abort("interrupted"); });
      },
      {}, [&](Driver* driver) { running = driver; });
  // Five were in flight; the server never saw the others.
  EXPECT_EQ(Counts()[RequestStatus::kCancelled], 5);
  EXPECT_EQ(Counts()[RequestStatus::kNotSent], 35);
  EXPECT_EQ(backend_->open(), 0);
}

// Conversations of so many turns each; the questions are "Q0 " and so on.
std::vector<WorkItem> Talks(const std::vector<int>& turns) {
  std::vector<WorkItem> out;
  for (size_t c = 0; c < turns.size(); ++c) {
    for (int t = 0; t < turns[c]; ++t) {
      WorkItem item;
      item.conversation = static_cast<int64_t>(c);
      item.turn = t;
      item.text = "Q" + std::to_string(t) + " ";
      out.push_back(item);
    }
  }
  return out;
}

TEST_F(DriverTest, EachTurnAsksWithWhatWasReallyAnsweredBefore) {
  items_ = Talks({3, 1, 2});
  Run(6, {.max_concurrency = 1, .closed_loop = true}, [](const auto& sent) {
    sent.listener->OnDelta(Token("A" + std::to_string(sent.number) + " "));
    sent.listener->OnDelta(Last());
    sent.listener->OnEnd({.completed = true, .http_status = 200});
  });
  EXPECT_THAT(backend_->asked(),
              ElementsAre("Q0 ", "Q0 A0 Q1 ", "Q0 A0 Q1 A1 Q2 ", "Q0 ", "Q0 ", "Q0 A4 Q1 "));
  EXPECT_EQ(Counts()[RequestStatus::kCompleted], 6);
  for (size_t i : {1u, 2u, 5u}) {
    EXPECT_GE(records_[i].intended_s, records_[i - 1].end_s);
    EXPECT_EQ(records_[i].turn, items_[i].turn);
  }
}

TEST_F(DriverTest, AConversationKeepsItsSlotAndItsPauses) {
  items_ = Talks({4, 4, 4, 4, 4});
  Run(20, {.max_concurrency = 2, .closed_loop = true, .turn_delay_s = 0.01},
      [](const auto& sent) { Answer(sent.listener, 1); });
  EXPECT_LE(backend_->most_open(), 2);
  EXPECT_EQ(Counts()[RequestStatus::kCompleted], 20);
  // While the first two conversations pause, no other one begins.
  EXPECT_GE(records_[8].intended_s, std::min(records_[3].end_s, records_[7].end_s));
  EXPECT_GE(records_[1].intended_s, records_[0].end_s + 0.0099);
}

TEST_F(DriverTest, AFailedTurnEndsItsConversationAndNoOther) {
  items_ = Talks({3, 3});
  Run(6, {.max_concurrency = 1, .closed_loop = true}, [](const auto& sent) {
    if (sent.number == 1) {
      sent.listener->OnEnd({.reason = "HTTP 500", .http_status = 500});
    } else {
      Answer(sent.listener, 1);
    }
  });
  EXPECT_EQ(Counts()[RequestStatus::kCompleted], 4);
  EXPECT_EQ(records_[1].status, RequestStatus::kFailed);
  EXPECT_EQ(records_[2].status, RequestStatus::kNotSent);
  EXPECT_THAT(records_[2].reason, HasSubstr("turn 2 of its conversation"));
}

TEST_F(DriverTest, AnAnswerWithoutTheTokenIdsThatTheNextTurnNeedsIsAFailure) {
  items_ = Talks({3});
  Run(3, {.needs_ids = true}, [](const auto& sent) { Answer(sent.listener, 2); });
  EXPECT_EQ(records_[1].status, RequestStatus::kFailed);
  EXPECT_THAT(records_[1].reason, HasSubstr("return_token_ids"));
  EXPECT_EQ(records_[2].status, RequestStatus::kNotSent);
}

TEST_F(DriverTest, AnAbortInAPauseEndsTheRun) {
  items_ = Talks({3, 3});
  Driver* running = nullptr;
  Run(
      6, {.turn_delay_s = 3600},
      [&](const auto& sent) {
        Answer(sent.listener, 1);
        if (sent.number == 1)
          loop_.Post([&] { loop_.Post([&] { running->Abort("interrupted"); }); });
      },
      {}, [&](Driver* driver) { running = driver; });
  EXPECT_EQ(Counts()[RequestStatus::kCompleted], 2);
  EXPECT_EQ(Counts()[RequestStatus::kNotSent], 4);
}

TEST_F(DriverTest, WithoutUsageTokensAreChunks) {
  Run(1, {}, [](const auto& sent) {
    sent.listener->OnDelta(Token("a"));
    sent.listener->OnDelta(Token("b"));
    sent.listener->OnDelta(Last());
    sent.listener->OnEnd({.completed = true, .http_status = 200});
  });
  EXPECT_FALSE(records_[0].tokens_from_usage);
  EXPECT_EQ(records_[0].output_tokens, 2);
}

}  // namespace
}  // namespace aisp::loadgen
