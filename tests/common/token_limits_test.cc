#include "common/token_limits.h"

#include <gtest/gtest.h>

namespace aisp {
namespace {

// A step of decodes takes 4 ms; a token of prefill prolongs it by 0.01 ms, plus 1 ms.
StepCost Cost() { return {{4, 0, 0}, {5, 0.01, 0, 0, 0}}; }

constexpr StepShape kTwoRows = {0, 0, 2, 2000};
// TTFT of 300 ms, TPOT of 12 ms, answers of 100 tokens.
constexpr TokenLimits kLimits = {300, 12, 100, 0};

class PrefillTurns : public testing::Test {
 protected:
  PrefillTurns() { turn_.Begin(Cost(), kTwoRows, 2048); }
  // A stream with 50 tokens that makes up for `spare_ms` in half of its 50 other steps.
  void Stream(double spare_ms) {
    turn_.AddStream(kLimits, 0.97 * 12 * (49 + 25) - 25 * 4 - spare_ms, 50, 100);
  }
  // A prompt of one step of 2,048 tokens: 25.48 ms, 21.48 more than without it.
  void Prompt(double waited_ms) { turn_.AddPrompt(kLimits, waited_ms, 0, 2048); }
  PrefillTurn turn_;
};

TEST_F(PrefillTurns, APromptRunsAtOnceIfEveryStreamCanWaitForIt) {
  Stream(22);
  Stream(500);
  Prompt(0);
  EXPECT_EQ(turn_.Tokens(), 2048);
}

TEST_F(PrefillTurns, APromptWithTimeWaitsForAStreamWithout) {
  Stream(20);
  Prompt(0);
  EXPECT_EQ(turn_.Tokens(), 0);
}

TEST_F(PrefillTurns, TheFewerAreLost) {
  Stream(20);
  Prompt(250);  // 24.5 ms left after its own step
  EXPECT_EQ(turn_.Tokens(), 2048) << "one against one: it runs";
  Stream(10);
  EXPECT_EQ(turn_.Tokens(), 0) << "two streams against one prompt";
  Prompt(230);  // 19 ms left after both
  EXPECT_EQ(turn_.Tokens(), 2048) << "two against two";
}

TEST_F(PrefillTurns, WhoIsLateAnywayDoesNotCount) {
  Stream(-1);
  Prompt(0);
  EXPECT_EQ(turn_.Tokens(), 2048) << "the stream's TPOT is missed already";
  Stream(10);
  Prompt(280);
  Prompt(400);
  EXPECT_EQ(turn_.Tokens(), 0) << "both prompts are late even if they run now";
}

TEST_F(PrefillTurns, AnAnswerMayEndAfterTheTokensOfAShortOne) {
  const TokenLimits shorter = {300, 12, 5, 0};
  turn_.AddStream(shorter, 5, 3, 1000);  // 3 * 11.64 - 5 - 4: 26 ms
  Prompt(0);
  EXPECT_EQ(turn_.Tokens(), 2048);
  turn_.AddStream(shorter, 20, 3, 1000);  // 11 ms
  EXPECT_EQ(turn_.Tokens(), 0);
  turn_.Begin(Cost(), kTwoRows, 2048);
  turn_.AddStream(shorter, 80, 20, 1000);  // 20 gaps by now: 149 ms
  Prompt(0);
  EXPECT_EQ(turn_.Tokens(), 2048);
}

// A step without prefill takes 6 ms because of its context, the fixed part of one with prefill 4.
TEST_F(PrefillTurns, WhereShortChunksAreCheaperPrefillFillsWhatTheTpotLimitLeaves) {
  const StepCost cost{{4, 0, 0.001}, {3, 0.01, 1e-6, 0, 0.0005}};
  turn_.Begin(cost, kTwoRows, 2048);
  turn_.AddStream(kLimits, 0.97 * 12 * 49, 50, 100);  // just on time
  turn_.AddPrompt(kLimits, 0, 1000, 600);
  turn_.AddPrompt(kLimits, 0, 0, 4000);
  // 0.01 ms a token and a nanosecond for each position: 6.78 of the 7.64 ms for the first prompt.
  EXPECT_NEAR(turn_.Tokens(), 600 + 86, 1);
  turn_.AddStream(kLimits, 0.97 * 12 * 98, 99, 100);  // its last token; just on time
  EXPECT_NEAR(turn_.Tokens(), 600 + 86, 1);
  turn_.AddStream(kLimits, 0.97 * 12 * 98 + 1, 99, 100);
  EXPECT_EQ(turn_.Tokens(), 0);
}

// Streams that are always about to be late, as where other workers' prompts keep coming.
TEST_F(PrefillTurns, APromptThatIsLateWaitsForABoundedTime) {
  int32_t waits = 0;
  for (; waits < 1000; ++waits) {
    turn_.Begin(Cost(), kTwoRows, 2048);
    Stream(10);
    Prompt(400);
    if (turn_.Tokens() > 0) break;
  }
  EXPECT_EQ(waits, 63) << "10 steps of 25.48 ms with prefill, 4 ms each without";
  turn_.Begin(Cost(), kTwoRows, 2048);
  Stream(10);
  Prompt(400);
  EXPECT_EQ(turn_.Tokens(), 0) << "and then it waits again";
}

TEST_F(PrefillTurns, WithoutLimitsNothingWaits) {
  turn_.AddStream({}, 1e6, 3, 100);
  Prompt(0);
  EXPECT_EQ(turn_.Tokens(), 2048);
  turn_.Begin(Cost(), kTwoRows, 2048);
  Stream(10);
  EXPECT_EQ(turn_.Tokens(), 2048) << "no prompt";
}

TEST_F(PrefillTurns, APromptWithoutALimitWaitsForOneStreamOnly) {
  Stream(20);
  turn_.AddPrompt({}, 0, 0, 2048);
  EXPECT_EQ(turn_.Tokens(), 0);
}

}  // namespace
}  // namespace aisp
