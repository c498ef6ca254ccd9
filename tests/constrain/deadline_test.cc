#include "constrain/deadline.h"

#include <gtest/gtest.h>

namespace aisp {
namespace {

using std::chrono::milliseconds;

TEST(Deadline, CountsWhatTheThreadComputes) {
  const Deadline::Times start{milliseconds(500), milliseconds(9000)};
  const Deadline deadline(milliseconds(100), start);
  const auto passed = [&](int cpu, int wall) {
    return deadline.Passed({start.cpu + milliseconds(cpu), start.wall + milliseconds(wall)});
  };
  EXPECT_FALSE(passed(0, 0));
  EXPECT_FALSE(passed(100, 100));
  EXPECT_TRUE(passed(101, 101));
  // On a machine that gives the thread a fifth of the CPU time.
  EXPECT_FALSE(passed(100, 500));
  EXPECT_FALSE(passed(99, 800));
  EXPECT_TRUE(passed(10, 801));
}

TEST(Deadline, ThereMayBeNone) {
  EXPECT_FALSE(Deadline().set());
  EXPECT_FALSE(Deadline().Passed());
  EXPECT_FALSE(Deadline().Passed({std::chrono::hours(9), std::chrono::hours(9)}));
}

TEST(Deadline, PassesAsTheThreadWorks) {
  const Deadline deadline(milliseconds(5));
  const auto before = Deadline::Now();
  volatile uint64_t sum = 0;
  while (!deadline.Passed()) sum = sum + 1;
  EXPECT_GE(Deadline::Now().wall - before.wall, milliseconds(4));
}

}  // namespace
}  // namespace aisp
