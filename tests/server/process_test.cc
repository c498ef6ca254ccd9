// Generated worker names: they must be unique to one process on any host.
#include "server/process.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <set>

namespace aisp {
namespace {

using ::testing::MatchesRegex;
using ::testing::StartsWith;

TEST(UniqueName, SaysTheRoleAndTheHostAndIsNobodyElses) {
  // Containers from one image have the same host id, role and process id.
  std::set<std::string> names;
  for (int i = 0; i < 2000; ++i) names.insert(UniqueName("decode", "0123456789abcdef"));
  // 32 random bits: two of 2,000 names agree once in two thousand runs.
  EXPECT_GE(names.size(), 1999u);
  for (const std::string& name : names)
    ASSERT_THAT(name, MatchesRegex("decode-01234567-[0-9a-f]{8}"));
}

TEST(UniqueName, AHostWithAShortNameOrNoneHasOneToo) {
  EXPECT_THAT(UniqueName("prefill", "a"), StartsWith("prefill-a-"));
  EXPECT_THAT(UniqueName("prefill", ""), StartsWith("prefill-"));
  EXPECT_NE(UniqueName("prefill", ""), UniqueName("prefill", ""));
}

// As `timeout` does: to the process, and to its group.
TEST(StopSignals, OneThatIsSentTwiceIsOne) {
  BlockSignals();
  ManualClock clock;
  StopSignals signals(-1, /*reload=*/false, &clock);
  StopThisProcess();
  EXPECT_EQ(signals.WaitFor(1000), "SIGTERM");
  clock.Advance(StopSignals::kOnce / 2);
  StopThisProcess();
  EXPECT_EQ(signals.WaitFor(0), "");
  kill(getpid(), SIGINT);
  EXPECT_EQ(signals.WaitFor(0), "");
  clock.Advance(StopSignals::kOnce);
  StopThisProcess();
  EXPECT_EQ(signals.WaitFor(1000), "SIGTERM") << "somebody who asks again";
}

}  // namespace
}  // namespace aisp
