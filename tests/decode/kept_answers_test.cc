// Answers that are requested again with their key.
#include "decode/kept_answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "proto/answer_key.h"
#include "proto/hash_wire.h"
#include "tests/worker/role_rig.h"

namespace aisp {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using testing::HasSubstr;

v1::GenerateRequest Keyed(const RoleRig& rig, uint64_t id, const std::string& key = "k",
                          const std::string& body = "0123456789abcdef", uint32_t tokens = 12) {
  v1::GenerateRequest request = rig.MakeRequest(id, MakePrompt(100, 1), tokens);
  request.mutable_answer_key()->set_key(key);
  request.mutable_answer_key()->set_body(body);
  return request;
}

// A decode worker that computes prompts itself.
RigOptions Alone() {
  RigOptions options;
  options.prefill_workers = 0;
  return options;
}

std::vector<TokenId> TokensOf(const RoleRig& rig, uint64_t id) {
  const auto it = rig.router->answers.find(id);
  return it == rig.router->answers.end() ? std::vector<TokenId>{} : it->second.tokens;
}

bool Metric(const RoleRig& rig, const std::string& line) {
  return rig.metrics.Render().find(line) != std::string::npos;
}

TEST(KeptAnswers, OneThatHasEndedIsSaidAgainAndComputedOnce) {
  RoleRig rig(Alone());
  rig.Attach();
  rig.router->Generate("d", Keyed(rig, 1));
  ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(1); }));
  const uint64_t steps = rig.router->telemetry["d"].steps_total();
  rig.router->Generate("d", Keyed(rig, 2));
  rig.RunFor(milliseconds(200));
  EXPECT_TRUE(rig.Finished(2));
  EXPECT_EQ(TokensOf(rig, 2), TokensOf(rig, 1));
  EXPECT_EQ(TokensOf(rig, 2).size(), 12u);
  EXPECT_EQ(rig.router->answers[2].finish, v1::FINISH_LENGTH);
  EXPECT_EQ(rig.router->answers[2].timings.size(), 1u);
  EXPECT_EQ(rig.decode->decode->num_requests(), 0u);
  EXPECT_TRUE(Metric(rig, "state=\"ended\",worker=\"d\"} 1"));
  EXPECT_GE(rig.router->telemetry["d"].steps_total(), steps);
  EXPECT_TRUE(Metric(rig, "aisp_tokens_generated_total{role=\"decode\",worker=\"d\"} 12"))
      << rig.metrics.Render();
  rig.ExpectAllBlocksBack();
}

// After every possible number of turns the first answer is still there when it is requested again.
TEST(KeptAnswers, OneThatRunsIsHeardByEverybodyWhoAsksForIt) {
  bool ended = false;
  for (int turns = 0; !ended; ++turns) {
    ASSERT_LT(turns, 500);
    RoleRig rig(Alone());
    rig.Attach();
    rig.router->Generate("d", Keyed(rig, 1));
    for (int i = 0; i < turns; ++i) {
      rig.Turn();
      rig.clock.Advance(rig.tick);
    }
    ended = rig.Finished(1);
    rig.router->Generate("d", Keyed(rig, 2));
    ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(1) && rig.Finished(2); })) << turns;
    EXPECT_EQ(TokensOf(rig, 1).size(), 12u);
    EXPECT_EQ(TokensOf(rig, 2), TokensOf(rig, 1)) << turns;
    EXPECT_TRUE(Metric(rig, "aisp_tokens_generated_total{role=\"decode\",worker=\"d\"} 12"));
    rig.ExpectAllBlocksBack();
  }
}

TEST(KeptAnswers, AReaderThatLeavesTakesNothingFromTheOther) {
  RoleRig rig(Alone());
  rig.Attach();
  rig.router->Generate("d", Keyed(rig, 1));
  ASSERT_TRUE(rig.RunUntil([&] { return TokensOf(rig, 1).size() >= 3; }));
  rig.router->Generate("d", Keyed(rig, 2));
  ASSERT_TRUE(rig.RunUntil([&] { return TokensOf(rig, 2).size() >= 3; }));
  rig.router->Cancel("d", 1);
  ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(2); }));
  EXPECT_EQ(TokensOf(rig, 2).size(), 12u);
  EXPECT_EQ(rig.router->answers[1].finishes, 0);
  rig.ExpectAllBlocksBack();
}

// The first request has a short deadline, or its client waits less long.
TEST(KeptAnswers, WhoAsksForOneThatRunsHasItsOwnTime) {
  RoleRig rig(Alone());
  rig.Attach();
  v1::GenerateRequest first = Keyed(rig, 1, "k", "0123456789abcdef", 100);
  first.set_timeout_ms(20);
  rig.router->Generate("d", first);
  ASSERT_TRUE(rig.RunUntil([&] { return TokensOf(rig, 1).size() >= 3; }));
  v1::GenerateRequest again = Keyed(rig, 2, "k", "0123456789abcdef", 100);
  again.set_timeout_ms(60000);
  rig.router->Generate("d", again);
  ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(2); }));
  EXPECT_GT(rig.clock.Now() - Instant{}, milliseconds(20)) << "it has to take longer than that";
  EXPECT_EQ(rig.router->answers[2].finish, v1::FINISH_LENGTH);
  EXPECT_EQ(TokensOf(rig, 2).size(), 100u);
  rig.ExpectAllBlocksBack();
}

// The connection to its router ends at every point of an answer.
TEST(KeptAnswers, OneThatLostItsRouterGoesOnFromWhereItWas) {
  bool ended = false;
  int resumed = 0;
  for (int turns = 1; !ended; ++turns) {
    ASSERT_LT(turns, 500);
    RoleRig rig(Alone());
    rig.Attach();
    rig.router->Generate("d", Keyed(rig, 1));
    for (int i = 0; i < turns; ++i) {
      rig.Turn();
      rig.clock.Advance(rig.tick);
    }
    ended = rig.Finished(1);
    const std::vector<TokenId> heard = TokensOf(rig, 1);
    rig.router_links.BreakAll();
    rig.RunFor(milliseconds(2));
    EXPECT_EQ(rig.decode->decode->num_requests(), 0u) << "nobody reads it";
    rig.Attach();
    v1::GenerateRequest again = Keyed(rig, 2);
    // If it were computed again its text would differ.
    if (!heard.empty()) again.mutable_sampling()->set_seed(99);
    rig.router->Generate("d", again);
    ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(2); })) << turns;
    const std::vector<TokenId> whole = TokensOf(rig, 2);
    EXPECT_EQ(whole.size(), 12u);
    ASSERT_LE(heard.size(), whole.size());
    EXPECT_TRUE(std::equal(heard.begin(), heard.end(), whole.begin())) << turns;
    resumed += !heard.empty() && heard.size() < 12 ? 1 : 0;
    rig.router->Generate("d", Keyed(rig, 3));
    ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(3); }));
    EXPECT_EQ(TokensOf(rig, 3), whole);
    rig.ExpectAllBlocksBack();
  }
  EXPECT_GT(resumed, 3);
}

TEST(KeptAnswers, AnotherRequestUnderTheSameKeyIsRefused) {
  RoleRig rig(Alone());
  rig.Attach();
  rig.router->Generate("d", Keyed(rig, 1));
  ASSERT_TRUE(rig.RunUntil([&] { return TokensOf(rig, 1).size() >= 2; }));
  const auto expect_refused = [&](uint64_t id) {
    rig.router->Generate("d", Keyed(rig, id, "k", "fedcba9876543210"));
    ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(id); }));
    const RouterStandIn::Answer& answer = rig.router->answers[id];
    EXPECT_EQ(answer.finish, v1::FINISH_ERROR);
    EXPECT_EQ(answer.error.code(), static_cast<int>(Code::kAlreadyExists));
    EXPECT_THAT(answer.error.message(), HasSubstr("idempotency-key"));
    EXPECT_FALSE(answer.error.retryable());
    EXPECT_TRUE(answer.tokens.empty());
  };
  expect_refused(2);
  ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(1); }));
  expect_refused(3);
  // Another tenant, another answer of the same request and another key are different answers.
  v1::GenerateRequest tenant = Keyed(rig, 4, "k", "fedcba9876543210");
  tenant.mutable_tenant()->set_name("b");
  rig.router->Generate("d", tenant);
  v1::GenerateRequest second = Keyed(rig, 5, "k", "fedcba9876543210");
  second.mutable_answer_key()->set_index(1);
  rig.router->Generate("d", second);
  rig.router->Generate("d", Keyed(rig, 6, "l", "fedcba9876543210"));
  for (const uint64_t id : {4, 5, 6}) {
    ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(id); }));
    EXPECT_EQ(rig.router->answers[id].finish, v1::FINISH_LENGTH);
  }
}

TEST(KeptAnswers, RoutersHearOfThemBeforeTheFirstTokenAndWhenTheyAttach) {
  RigOptions options = Alone();
  options.decode.answers.window = seconds(1);
  RoleRig rig(options);
  rig.Attach();
  std::string order;
  rig.router_links.on_up = [&](v1::WorkerMessage& message) {
    if (message.has_kept_answers()) order += 'k';
    if (message.has_tokens()) order += 't';
    return true;
  };
  rig.router->Generate("d", Keyed(rig, 1));
  ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(1); }));
  EXPECT_EQ(order.substr(0, 2), "kt") << order;
  const std::string name = HashToWire(AnswerDigest("", "k", 0));
  ASSERT_EQ(rig.router->kept_answers.size(), 1u);
  EXPECT_THAT(rig.router->kept_answers[0].kept(), testing::ElementsAre(name));
  rig.router->kept_answers.clear();
  rig.router_links.BreakAll();
  rig.RunFor(milliseconds(2));
  rig.Attach();
  rig.RunFor(milliseconds(2));
  ASSERT_EQ(rig.router->kept_answers.size(), 1u);
  EXPECT_TRUE(rig.router->kept_answers[0].whole());
  EXPECT_THAT(rig.router->kept_answers[0].kept(), testing::ElementsAre(name));
  rig.RunFor(seconds(2));
  ASSERT_EQ(rig.router->kept_answers.size(), 2u);
  EXPECT_THAT(rig.router->kept_answers[1].dropped(), testing::ElementsAre(name));
  EXPECT_TRUE(Metric(rig, "aisp_answers_kept{role=\"decode\",worker=\"d\"} 0"));
}

TEST(KeptAnswers, AWorkerThatDrainsSaysWhatItHasAndGivesTheRestAway) {
  RoleRig rig(Alone());
  rig.Attach();
  rig.router->Generate("d", Keyed(rig, 1));
  ASSERT_TRUE(rig.RunUntil([&] { return TokensOf(rig, 1).size() >= 4; }));
  rig.router->Cancel("d", 1);
  v1::RouterMessage drain;
  drain.mutable_drain();
  rig.router->Send("d", drain);
  rig.RunFor(milliseconds(2));
  const std::vector<TokenId> heard = TokensOf(rig, 1);
  rig.router->Generate("d", Keyed(rig, 2));
  ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(2); }));
  EXPECT_TRUE(rig.router->answers[2].events.back().handed_back());
  ASSERT_GE(TokensOf(rig, 2).size(), heard.size());
  const std::vector<TokenId> again = TokensOf(rig, 2);
  EXPECT_TRUE(std::equal(heard.begin(), heard.end(), again.begin()));
}

// --- the store alone ---

v1::GenerateRequest Wire(const std::string& key) {
  v1::GenerateRequest wire;
  wire.set_prompt_tokens(4);
  wire.mutable_tokens()->Resize(4, 7);
  wire.mutable_sampling()->set_num_logprobs(-1);
  wire.mutable_answer_key()->set_key(key);
  return wire;
}

v1::TokenEvent Said(uint32_t at, int tokens, v1::FinishReason finish = v1::FINISH_NONE) {
  v1::TokenEvent event;
  event.set_first_position(at);
  event.mutable_tokens()->Resize(tokens, 9);
  event.set_finish(finish);
  return event;
}

TEST(KeptAnswers, TheOldestMakeRoomAndRunningOnesStay) {
  KeptAnswers answers({.window = minutes(5), .max_bytes = 1 << 20, .max_answers = 3});
  const auto running = answers.Start(Wire("running"), RequestKey(1));
  ASSERT_TRUE(running);
  answers.Append(*running, RequestKey(1), Said(4, 1));
  for (uint64_t i = 0; i < 10; ++i) {
    const RequestKey request(i + 2);
    const auto name = answers.Start(Wire(std::to_string(i)), request);
    ASSERT_TRUE(name);
    answers.Append(*name, request, Said(4, 3, v1::FINISH_LENGTH));
    answers.Stop(*name, request, Instant{} + seconds(i));
    EXPECT_LE(answers.size(), 3u);
  }
  EXPECT_NE(answers.Find(Wire("running")), nullptr);
  EXPECT_NE(answers.Find(Wire("9")), nullptr);
  EXPECT_NE(answers.Find(Wire("8")), nullptr);
  EXPECT_EQ(answers.Find(Wire("7")), nullptr);
  EXPECT_EQ(answers.dropped(), 8u);
  answers.Expire(Instant{} + minutes(5) + seconds(8));
  EXPECT_EQ(answers.Find(Wire("8")), nullptr);
  EXPECT_NE(answers.Find(Wire("9")), nullptr);
}

TEST(KeptAnswers, NobodysPushOutThoseOfWhoHasLess) {
  const auto of = [](const std::string& tenant, const std::string& key) {
    v1::GenerateRequest wire = Wire(key);
    wire.mutable_tenant()->set_name(tenant);
    return wire;
  };
  KeptAnswers answers({.window = minutes(5), .max_bytes = 64 << 10, .max_answers = 8});
  uint64_t next = 1;
  const auto keep = [&](const std::string& tenant, const std::string& key, uint32_t tokens) {
    const RequestKey request(next++);
    const auto name = answers.Start(of(tenant, key), request);
    if (!name) return;
    answers.Append(*name, request, Said(4, tokens, v1::FINISH_LENGTH));
    answers.Stop(*name, request, Instant{} + seconds(next));
  };
  keep("victim", "v", 3);
  // By their number, by their bytes, and by one answer that runs forever.
  for (int i = 0; i < 20; ++i) keep("hostile", std::to_string(i), 3);
  EXPECT_NE(answers.Find(of("victim", "v")), nullptr);
  EXPECT_NE(answers.Find(of("hostile", "19")), nullptr);
  for (int i = 20; i < 40; ++i) keep("hostile", std::to_string(i), 4000);
  EXPECT_NE(answers.Find(of("victim", "v")), nullptr);
  const RequestKey endless(next++);
  const auto name = answers.Start(of("hostile", "endless"), endless);
  ASSERT_TRUE(name);
  for (uint32_t at = 4; at < 40'000; at += 100) answers.Append(*name, endless, Said(at, 100));
  EXPECT_NE(answers.Find(of("victim", "v")), nullptr);
  EXPECT_LE(answers.bytes(), size_t{64} << 10);
}

TEST(KeptAnswers, OneThatIsTooLargeGoesOnUnkept) {
  KeptAnswers answers({.window = minutes(5), .max_bytes = 4096, .max_answers = 100});
  const auto large = answers.Start(Wire("large"), RequestKey(1));
  ASSERT_TRUE(large);
  for (uint32_t at = 4; at < 4000; at += 100) {
    answers.Append(*large, RequestKey(1), Said(at, 100));
    EXPECT_LE(answers.bytes(), 4096u);
  }
  EXPECT_EQ(answers.Find(Wire("large")), nullptr);
  EXPECT_EQ(answers.bytes(), 0u);
  // A later request starts again and does not get what the first one produced.
  ASSERT_EQ(answers.Start(Wire("large"), RequestKey(2)), large);
  answers.Append(*large, RequestKey(1), Said(4000, 1));
  answers.Stop(*large, RequestKey(1), Instant{});
  ASSERT_NE(answers.Find(Wire("large")), nullptr);
  EXPECT_TRUE(answers.Find(Wire("large"))->said.empty());
}

TEST(KeptAnswers, WhatSaidNothingOrFailedIsNoAnswer) {
  KeptAnswers answers(KeptAnswers::Options{});
  const auto silent = answers.Start(Wire("silent"), RequestKey(1));
  answers.Append(*silent, RequestKey(1), Said(4, 0, v1::FINISH_ERROR));
  answers.Stop(*silent, RequestKey(1), Instant{});
  EXPECT_EQ(answers.Find(Wire("silent")), nullptr);
  const auto failed = answers.Start(Wire("failed"), RequestKey(2));
  answers.Append(*failed, RequestKey(2), Said(4, 2));
  answers.Append(*failed, RequestKey(2), Said(6, 0, v1::FINISH_ERROR));
  answers.Stop(*failed, RequestKey(2), Instant{});
  ASSERT_NE(answers.Find(Wire("failed")), nullptr);
  EXPECT_FALSE(answers.Find(Wire("failed"))->ended);
}

TEST(KeptAnswers, OneThatIsTakenOverBeginsWithWhatItSaidElsewhere) {
  KeptAnswers answers(KeptAnswers::Options{});
  v1::GenerateRequest wire = Wire("moved");
  wire.mutable_tokens()->Add(5);
  wire.mutable_tokens()->Add(6);
  ASSERT_TRUE(answers.Start(wire, RequestKey(1)));
  const KeptAnswers::Answer* moved = answers.Find(wire);
  ASSERT_EQ(moved->said.size(), 1u);
  EXPECT_EQ(moved->said[0].first_position(), 4u);
  EXPECT_THAT(moved->said[0].tokens(), testing::ElementsAre(5, 6));
  // Their logprobs are lost with the worker that computed them.
  v1::GenerateRequest scored = Wire("scored");
  scored.mutable_tokens()->Add(5);
  scored.mutable_sampling()->set_num_logprobs(0);
  EXPECT_FALSE(answers.Start(scored, RequestKey(2)));
}

}  // namespace
}  // namespace aisp
