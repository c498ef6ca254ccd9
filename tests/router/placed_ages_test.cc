#include "router/placed_ages.h"

#include <gtest/gtest.h>

namespace aisp {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

TEST(PlacedAges, AreOfTheOthers) {
  PlacedAges ages;
  const Instant now = Instant{} + hours(1);
  ages.Add(now - milliseconds(30));
  ages.Add(now - milliseconds(10));
  ages.Add(now);
  EXPECT_DOUBLE_EQ(ages.MeanOfOthersMs(now, 3), 20);
  ages.Remove(now - milliseconds(30));
  EXPECT_DOUBLE_EQ(ages.MeanOfOthersMs(now, 2), 10);
  ages.Remove(now - milliseconds(10));
  EXPECT_DOUBLE_EQ(ages.MeanOfOthersMs(now, 1), 0);
}

// A machine that has run for three years, and 10,000 requests.
TEST(PlacedAges, DoNotOverflow) {
  PlacedAges ages;
  const Instant now = Instant{} + hours(24 * 365 * 3);
  for (int i = 0; i < 10'000; ++i) ages.Add(now - milliseconds(i));
  EXPECT_NEAR(ages.MeanOfOthersMs(now, 10'000), 5'000, 1);
}

}  // namespace
}  // namespace aisp
