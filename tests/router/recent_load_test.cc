// Rates and means of what arrives, over the time since the load last changed.
#include "router/recent_load.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/random.h"

namespace aisp {
namespace {

// Arrivals at random, for `seconds`.
void Play(double per_s, double seconds, const MeanRequest& request, SplitMix64* random,
          Instant* now, RecentLoad* load) {
  const Instant end = *now + FromMs(seconds * 1e3);
  while (true) {
    *now = *now + FromMs(-1e3 * std::log(1 - random->Uniform()) / per_s);
    if (*now > end) return;
    load->Add(*now, request);
  }
}

TEST(RecentLoad, AveragesChanceOutWhileTheLoadIsSteady) {
  double squares = 0;
  constexpr int kRuns = 40;
  for (int run = 0; run < kRuns; ++run) {
    SplitMix64 random(static_cast<uint64_t>(run));
    RecentLoad load;
    Instant now{};
    Play(40, 10, {}, &random, &now, &load);
    const double off = load.Of(2).per_s / 40 - 1;
    squares += off * off;
  }
  // 400 arrivals scatter by a twentieth.
  EXPECT_LT(std::sqrt(squares / kRuns), 0.075);
}

TEST(RecentLoad, FollowsAChangeWithinAFewRequests) {
  SplitMix64 random(3);
  RecentLoad load;
  Instant now{};
  Play(10, 20, {.prompt_tokens = 1000}, &random, &now, &load);
  EXPECT_NEAR(load.Of(1).per_s, 10, 2);
  Play(60, 1, {.prompt_tokens = 200}, &random, &now, &load);
  EXPECT_NEAR(load.Of(1).per_s, 60, 15);
  EXPECT_NEAR(load.Of(1).prompt_tokens, 200, 60) << "prompts of the earlier load do not count";
}

TEST(RecentLoad, FollowsAPauseAndALowerRate) {
  SplitMix64 random(4);
  RecentLoad load;
  Instant now{};
  Play(50, 10, {}, &random, &now, &load);
  now = now + FromMs(2000);
  Play(5, 6, {}, &random, &now, &load);
  EXPECT_NEAR(load.Of(1).per_s, 5, 2.5);
}

// Prompts that go where nothing runs delay no stream, however long they are.
TEST(RecentLoad, CountsDelaysByTheStreamsThatFeelThem) {
  SplitMix64 random(5);
  RecentLoad beside_none, evenly;
  Instant now{};
  for (int i = 0; i < 400; ++i) {
    now = now + FromMs(20);
    beside_none.Add(now, {.delay_ms = 90, .beside = 0, .running = 8});
    evenly.Add(now, {.delay_ms = 90, .beside = 4, .running = 8});
  }
  EXPECT_LT(beside_none.Of(2).delay_ms, 1);
  EXPECT_NEAR(evenly.Of(2).delay_ms, 45, 1);
}

TEST(RecentLoad, BeforeTheFirstRequestNothingArrives) {
  RecentLoad load;
  EXPECT_EQ(load.Of(1).per_s, 0);
  load.Add(Instant{}, {.answer_tokens = 7});
  EXPECT_EQ(load.Of(1).answer_tokens, 7);
  EXPECT_LE(load.Of(1).per_s, 10);
}

}  // namespace
}  // namespace aisp
