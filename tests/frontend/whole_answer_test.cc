// Whole answers: what one takes counts before it is made, and a large one is not written on the
// loop's thread.
#include <gtest/gtest.h>

#include <deque>
#include <nlohmann/json.hpp>

#include "frontend/http_answer.h"

namespace aisp {
namespace {

class Jobs final : public WorkQueue {
 public:
  bool TrySubmit(size_t bytes, std::function<void()> job, const TenantShare&) override {
    if (full) return false;
    waiting.emplace_back(bytes, std::move(job));
    return true;
  }
  bool full = false;
  std::deque<std::pair<size_t, std::function<void()>>> waiting;
};

class Loop final : public EventLoop {
 public:
  void Post(std::function<void()> fn) override { posted.push_back(std::move(fn)); }
  std::shared_ptr<Timer> RunAt(Instant, std::function<void()>) override { return nullptr; }
  void Run() {
    for (; !posted.empty(); posted.pop_front()) posted.front()();
  }
  std::deque<std::function<void()>> posted;
};

class Exchange final : public HttpExchange {
 public:
  const HttpRequest& request() const override { return request_; }
  void Respond(int status, HttpHeaders, std::string body) override {
    ++answers;
    code = status;
    text = std::move(body);
  }
  void BeginStream(int, HttpHeaders) override {}
  void Write(std::string_view) override {}
  void End() override {}
  size_t unsent_bytes() const override { return 0; }
  bool alive() const override { return answers == 0; }
  void OnDisconnect(std::function<void(Gone)>) override {}

  int answers = 0;
  int code = 0;
  std::string text;

 private:
  HttpRequest request_;
};

struct Ignored final : ChoiceStream::Listener {
  void OnChoiceRouted(ChoiceStream&, const RouteDecision&) override {}
  void OnChoiceAdvanced(ChoiceStream&) override {}
  void OnChoiceStopped(ChoiceStream&) override {}
};

class WholeAnswers : public ::testing::Test {
 protected:
  WholeAnswers() {
    context_.pool = &jobs_;
    context_.loop = &loop_;
    context_.clock = &clock_;
    prepared_.endpoint = Endpoint::kCompletions;
    prepared_.options.n = 2;
    prepared_.options.sampling.set_num_logprobs(20);
    prepared_.prompt_logprobs = 20;
    prepared_.prompts = {SharedTokens(std::vector<TokenId>(100, 7))};
  }

  // An answer of two choices with so many tokens each, as it is when both have ended.
  void Answer(int tokens) {
    HttpTextAnswer answer(&context_, exchange_, {});
    answer.OnPrepared(prepared_);
    v1::TokenLogprobs values;
    for (int i = 0; i < 20; ++i) {
      values.add_top_ids(i);
      values.add_top_logprobs(-1.5F);
    }
    std::vector<std::unique_ptr<ChoiceStream>> choices;
    for (uint32_t i = 0; i < 2; ++i) {
      ChoiceStream::Options options;
      options.index = i;
      options.num_logprobs = 20;
      if (prepared_.ScoresPrompt(i)) {
        options.prompt = prepared_.prompts[0];
        options.prompt_logprobs = 20;
      }
      choices.push_back(std::make_unique<ChoiceStream>(nullptr, std::move(options), &listener_));
      v1::PromptLogprobs prompt;
      for (int token = 0; token < 100; ++token) *prompt.add_logprobs() = values;
      choices.back()->OnPromptLogprobs(prompt);
      v1::TokenEvent event;
      for (int token = 0; token < tokens; ++token) {
        event.add_tokens(token);
        *event.add_logprobs() = values;
      }
      choices.back()->OnTokens(event);
      choices.back()->OnFinish(v1::FINISH_LENGTH, {}, {});
    }
    answer.OnDone(choices, {});
  }

  Jobs jobs_;
  Loop loop_;
  ManualClock clock_;
  FrontendContext context_;
  PreparedRequest prepared_;
  Ignored listener_;
  const std::shared_ptr<Exchange> exchange_ = std::make_shared<Exchange>();
};

TEST_F(WholeAnswers, ASmallOneIsAnsweredAtOnce) {
  prepared_.prompt_logprobs = -1;
  Answer(10);
  EXPECT_EQ(exchange_->answers, 1);
  EXPECT_TRUE(jobs_.waiting.empty());
}

TEST_F(WholeAnswers, ALargeOneIsWrittenByThePool) {
  Answer(2000);
  EXPECT_EQ(exchange_->answers, 0);
  ASSERT_EQ(jobs_.waiting.size(), 1u);
  // It counts as long as it is not handed on.
  EXPECT_EQ(context_.answers_bytes, jobs_.waiting.front().first);
  EXPECT_GT(context_.answers_bytes, size_t{2} * 2000 * 20 * sizeof(TopLogprob));
  jobs_.waiting.front().second();
  EXPECT_EQ(exchange_->answers, 0);
  loop_.Run();
  ASSERT_EQ(exchange_->answers, 1);
  EXPECT_EQ(exchange_->code, 200);
  EXPECT_EQ(context_.answers_bytes, 0u);
  const auto body = nlohmann::json::parse(exchange_->text);
  for (const auto& choice : body["choices"]) {
    EXPECT_EQ(choice["prompt_logprobs"].size(), 100u);
    EXPECT_EQ(choice["logprobs"]["tokens"].size(), 2000u);
  }
}

TEST_F(WholeAnswers, ALargeOneIsNotLostToAFullPool) {
  jobs_.full = true;
  Answer(2000);
  loop_.Run();
  EXPECT_EQ(exchange_->answers, 1);
  EXPECT_EQ(context_.answers_bytes, 0u);
}

TEST_F(WholeAnswers, WhatIsSaidOfAPromptCountsOnceForEachChoiceThatSaysIt) {
  EXPECT_EQ(prepared_.PromptCopies(), 2u);
  prepared_.endpoint = Endpoint::kChat;
  EXPECT_EQ(prepared_.PromptCopies(), 1u);
  prepared_.endpoint = Endpoint::kCompletions;
  prepared_.prompt_logprobs = -1;
  EXPECT_EQ(prepared_.PromptCopies(), 1u);
}

}  // namespace
}  // namespace aisp
