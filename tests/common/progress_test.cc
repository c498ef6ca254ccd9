// The progress messages of a long operation.
#include "common/progress.h"

#include <gmock/gmock.h>

#include <vector>

namespace aisp {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr uint64_t kMiB = 1 << 20;

TEST(Progress, SaysRateAndTimeLeft) {
  const ProgressState state{"model", 250 * kMiB, 1000 * kMiB, 10.0 * kMiB, ""};
  EXPECT_EQ(ProgressText(state), "model: 25 %, 250 MiB of 1000 MiB, 10 MiB/s, 1 min 15 s left");
  const std::string bar = ProgressBar(state, 100);
  EXPECT_THAT(bar, StartsWith("model  25 % [==="));
  EXPECT_LE(bar.size(), 100u);
}

TEST(Progress, ANarrowTerminalLosesTheBarFirst) {
  const ProgressState state{"model", 250 * kMiB, 1000 * kMiB, 10.0 * kMiB, ""};
  const std::string bar = ProgressBar(state, 50);
  EXPECT_THAT(bar, Not(HasSubstr("[")));
  EXPECT_THAT(bar, StartsWith("model  25 % 250 MiB of 1000 MiB"));
  EXPECT_EQ(ProgressBar(state, 10).size(), 10u);
}

TEST(Progress, WithoutATotalThereIsNeitherPercentNorTime) {
  const ProgressState state{"model", kMiB, 0, 1.0 * kMiB, "1 by another process"};
  EXPECT_EQ(ProgressText(state), "model: 1 MiB, 1 MiB/s, 1 by another process");
}

TEST(Progress, TimesReadAsPeopleSayThem) {
  EXPECT_EQ(HumanSeconds(0.2), "1 s");
  EXPECT_EQ(HumanSeconds(61), "1 min 1 s");
  EXPECT_EQ(HumanSeconds(7500), "2 h 5 min");
}

TEST(Progress, LinesComeEveryFewSecondsAndTheRateIsOfTheLast) {
  ManualClock clock;
  std::vector<ProgressState> lines;
  ProgressMeter meter(&clock, {.terminal = false, .every = std::chrono::seconds(3)},
                      [&](const ProgressState& state) { lines.push_back(state); });
  // 500 MiB were there before; 10 MiB arrive per second, and from the 20th second on twice as much.
  uint64_t done = 500 * kMiB;
  for (int tenth = 0; tenth < 400; ++tenth) {
    meter.Update("model", done, 2000 * kMiB);
    clock.Advance(std::chrono::milliseconds(100));
    done += tenth < 200 ? kMiB : 2 * kMiB;
  }
  ASSERT_EQ(lines.size(), 13u);
  EXPECT_NEAR(lines[0].bytes_per_s, 10.0 * kMiB, 0.1 * kMiB);
  EXPECT_NEAR(lines.back().bytes_per_s, 20.0 * kMiB, 0.5 * kMiB);
}

TEST(Progress, WhatTurnsOutToBeWrongMakesNoRate) {
  ManualClock clock;
  std::vector<ProgressState> lines;
  ProgressMeter meter(&clock, {.terminal = false, .every = std::chrono::seconds(1)},
                      [&](const ProgressState& state) { lines.push_back(state); });
  meter.Update("model", 100, 200);
  clock.Advance(std::chrono::seconds(2));
  meter.Update("model", 10, 200);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].bytes_per_s, 0);
}

}  // namespace
}  // namespace aisp
