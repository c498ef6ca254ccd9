// Whole answers and large events: their memory counts before they are built, and large ones are not
// built on the loop's thread.
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
  void BeginStream(int status, HttpHeaders) override { code = status; }
  void Write(std::string_view bytes) override { text += bytes; }
  void End() override { ++answers; }
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

  // An answer of two choices with so many tokens each, when both have ended.
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

// Streams: a choice sends its prompt's logprobs with its first event.
class LargeEvents : public WholeAnswers {
 protected:
  LargeEvents() {
    prepared_.options.stream = true;
    prepared_.options.n = 1;
    prepared_.prompts = {SharedTokens(std::vector<TokenId>(kPrompt, 7))};
    prepared_.echoes = {"prompt"};
    answer_ = std::make_unique<HttpTextAnswer>(&context_, exchange_, TenantShare{});
    answer_->OnPrepared(prepared_);
    ChoiceStream::Options options;
    options.num_logprobs = 20;
    options.prompt = prepared_.prompts[0];
    options.prompt_logprobs = 20;
    choices_.push_back(std::make_unique<ChoiceStream>(nullptr, std::move(options), &listener_));
    for (int i = 0; i < 20; ++i) {
      values_.add_top_ids(i);
      values_.add_top_logprobs(-1.5F);
    }
    v1::PromptLogprobs prompt;
    for (int i = 0; i < kPrompt - 1; ++i) *prompt.add_logprobs() = values_;
    choices_.back()->OnPromptLogprobs(prompt);
  }
  // Also from a worker that repeats the prompt's logprobs after another one had begun to send them.
  void Token(TokenId token) {
    v1::PromptLogprobs again;
    *again.add_logprobs() = values_;
    choices_.back()->OnPromptLogprobs(again);
    v1::TokenEvent event;
    event.add_tokens(token);
    *event.add_logprobs() = values_;
    choices_.back()->OnTokens(event);
    answer_->OnProgress(*choices_.back());
  }
  void Finish() {
    choices_.back()->OnFinish(v1::FINISH_LENGTH, {}, {});
    answer_->OnProgress(*choices_.back());
    answer_->OnDone(choices_, {});
    // The request has ended, whatever is still to be written.
    answer_.reset();
    choices_.clear();
  }
  // The choices of the events.
  std::vector<nlohmann::json> Events() const {
    std::vector<nlohmann::json> all;
    constexpr std::string_view kBegin = "data: ";
    for (size_t at = 0; (at = exchange_->text.find(kBegin, at)) != std::string::npos; ++at) {
      const size_t begin = at + kBegin.size();
      const std::string text =
          exchange_->text.substr(begin, exchange_->text.find('\n', at) - begin);
      if (text != "[DONE]") all.push_back(nlohmann::json::parse(text)["choices"].at(0));
    }
    return all;
  }
  void ExpectAllInOrder() {
    EXPECT_EQ(exchange_->answers, 1);
    EXPECT_EQ(context_.answers_bytes, 0u);
    EXPECT_TRUE(exchange_->text.ends_with("data: [DONE]\n\n"));
    const auto events = Events();
    ASSERT_EQ(events.size(), 5u);
    EXPECT_EQ(events[0]["logprobs"]["tokens"].size(), size_t{kPrompt});
    for (int i = 1; i <= 3; ++i)
      EXPECT_EQ(events[i]["logprobs"]["tokens"].at(0), "token_id:" + std::to_string(i));
    EXPECT_EQ(events[4]["finish_reason"], "length");
  }

  static constexpr int kPrompt = 2000;
  std::unique_ptr<HttpTextAnswer> answer_;
  std::vector<std::unique_ptr<ChoiceStream>> choices_;
  v1::TokenLogprobs values_;
};

TEST_F(LargeEvents, AreWrittenByThePoolAndTheOthersWaitBehindThem) {
  Token(1);
  ASSERT_EQ(jobs_.waiting.size(), 1u);
  EXPECT_EQ(exchange_->text, "");
  EXPECT_EQ(context_.answers_bytes, jobs_.waiting.front().first);
  Token(2);
  jobs_.waiting.front().second();
  Token(3);
  EXPECT_EQ(exchange_->text, "") << "the loop has not heard of it";
  Finish();
  EXPECT_EQ(jobs_.waiting.size(), 1u) << "small ones are not for the pool";
  loop_.Run();
  ExpectAllInOrder();
}

TEST_F(LargeEvents, AreNotLostToAFullPool) {
  jobs_.full = true;
  for (int i = 1; i <= 3; ++i) Token(i);
  EXPECT_NE(exchange_->text, "");
  Finish();
  ExpectAllInOrder();
}

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
  // Its memory counts until it is passed on.
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
