#include "common/clock.h"

#include <gtest/gtest.h>

namespace aisp {
namespace {

TEST(ManualClock, StandsStillUntilItIsTold) {
  ManualClock clock;
  const Instant start = clock.Now();
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(FromMs(1.5));
  EXPECT_EQ(clock.Now() - start, Duration(1'500'000));
  clock.Set(Instant{7});
  EXPECT_EQ(clock.Now().ns, 7);
}

TEST(SteadyClock, NeverGoesBack) {
  const SteadyClock clock;
  Instant last = clock.Now();
  for (int i = 0; i < 1000; ++i) {
    const Instant now = clock.Now();
    ASSERT_GE(now, last);
    last = now;
  }
  EXPECT_LT(last, kNever);
}

TEST(Duration, ConvertsBothWays) {
  EXPECT_DOUBLE_EQ(ToMs(FromMs(0.25)), 0.25);
  EXPECT_DOUBLE_EQ(ToSeconds(FromMs(1500)), 1.5);
}

}  // namespace
}  // namespace aisp
