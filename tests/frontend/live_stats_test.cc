#include "frontend/live_stats.h"

#include <gtest/gtest.h>

namespace aisp {
namespace {

class LiveStatsTest : public ::testing::Test {
 protected:
  void NextSecond() { clock_.Advance(std::chrono::seconds(1)); }
  ManualClock clock_;
  LiveStats stats_{&clock_};
};

TEST_F(LiveStatsTest, RatesAreThoseOfTheLastWholeSeconds) {
  for (int second = 0; second < 4; ++second) {
    stats_.Tokens(100);
    stats_.Started();
    stats_.Finished({.ok = true});
    NextSecond();
  }
  stats_.Tokens(1000);  // this second has not ended yet
  EXPECT_DOUBLE_EQ(stats_.Over(4).tokens_per_s, 100);
  EXPECT_DOUBLE_EQ(stats_.Over(8).tokens_per_s, 50);
  EXPECT_DOUBLE_EQ(stats_.Over(4).requests_per_s, 1);
  EXPECT_EQ(stats_.Series(4).size(), 4u);
  EXPECT_DOUBLE_EQ(stats_.Series(4)[0].tokens_per_s, 100);
}

TEST_F(LiveStatsTest, WhatIsOlderThanTwoMinutesIsForgottenAlsoAfterAPause) {
  stats_.Tokens(100);
  for (int64_t i = 0; i < LiveStats::kSeconds + 1; ++i) NextSecond();
  EXPECT_DOUBLE_EQ(stats_.Over(LiveStats::kSeconds).tokens_per_s, 0);
  stats_.Tokens(7);
  NextSecond();
  EXPECT_DOUBLE_EQ(stats_.Over(1).tokens_per_s, 7);
}

TEST_F(LiveStatsTest, PercentilesAreWithinTwelvePercent) {
  for (int i = 1; i <= 1000; ++i) stats_.Finished({.ok = true, .ttft_ms = static_cast<double>(i)});
  NextSecond();
  const LatencyCounts ttft = stats_.Over(1).ttft;
  EXPECT_EQ(ttft.total(), 1000u);
  EXPECT_NEAR(ttft.PercentileMs(0.5), 500, 60);
  EXPECT_NEAR(ttft.PercentileMs(0.9), 900, 108);
  EXPECT_NEAR(ttft.PercentileMs(0.99), 990, 119);
}

TEST_F(LiveStatsTest, ExtremesStayInTheOuterBuckets) {
  LatencyCounts counts;
  counts.Add(0);
  EXPECT_LE(counts.PercentileMs(0.5), 0.1);
  LatencyCounts late;
  late.Add(1e12);
  EXPECT_GT(late.PercentileMs(0.5), 60'000);
  EXPECT_EQ(LatencyCounts().PercentileMs(0.5), 0);
}

TEST_F(LiveStatsTest, ACancelledRequestIsNoError) {
  stats_.Started();
  stats_.Started();
  stats_.Started();
  EXPECT_EQ(stats_.active(), 3u);
  stats_.Finished({.ok = true});
  stats_.Finished({.ok = false, .cancelled = true});
  stats_.Finished({.ok = false});
  EXPECT_EQ(stats_.active(), 0u);
  NextSecond();
  EXPECT_DOUBLE_EQ(stats_.Over(1).requests_per_s, 3);
  EXPECT_DOUBLE_EQ(stats_.Over(1).errors_per_s, 1);
}

TEST_F(LiveStatsTest, MovesAreSummedByPathAndThePathsAreBounded) {
  stats_.Moved("p", "d", "shm", 3);
  stats_.Moved("p", "d", "shm", 4);
  stats_.Moved("p", "d", "tcp", 1);
  ASSERT_EQ(stats_.paths().size(), 2u);
  EXPECT_EQ(stats_.paths().begin()->second.blocks, 7u);
  EXPECT_EQ(stats_.paths().begin()->second.requests, 2u);
  for (int i = 0; i < 1000; ++i) stats_.Moved("p" + std::to_string(i), "d", "shm", 1);
  EXPECT_LE(stats_.paths().size(), LiveStats::kMaxPaths);
}

}  // namespace
}  // namespace aisp
