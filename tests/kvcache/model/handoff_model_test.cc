#include "tests/kvcache/model/handoff_model.h"

#include <gtest/gtest.h>

namespace aisp {
namespace {

std::string Shown(const Exploration& e) {
  std::string text = e.violation;
  for (const std::string& step : e.path) text += "\n  " + step;
  return text;
}

TEST(HandoffModel, EveryOrderOfEventsKeepsTheInvariants) {
  HandoffConfig config;
  config.requests = 1;
  config.blocks = 1;
  config.link_breaks = 0;
  config.attempts = 1;
  const Exploration e = Explore(config, 200'000);
  std::printf("%lu states, %lu transitions, %d deep\n", e.states, e.transitions, e.depth);
  EXPECT_EQ(e.violation, "") << Shown(e);
  EXPECT_TRUE(e.complete);
  EXPECT_GT(e.states, 1000u);
}

TEST(HandoffModel, TwoRequestsUpToABoundKeepTheInvariants) {
  HandoffConfig config;
  config.link_breaks = 0;
  config.reader_ends = 0;
  const Exploration e = Explore(config, 20'000);
  std::printf("%lu states, %lu transitions, %d deep\n", e.states, e.transitions, e.depth);
  EXPECT_EQ(e.violation, "") << Shown(e);
  EXPECT_GT(e.states, 1000u);
}

TEST(HandoffModel, EveryOrderOfEventsOfConvertedBlocks) {
  HandoffConfig config;
  config.requests = 1;
  config.blocks = 1;
  config.link_breaks = 0;
  config.attempts = 1;
  config.tiers = false;
  config.converts = true;
  const Exploration one = Explore(config, 200'000);
  std::printf("one: %lu states, %lu transitions, %d deep\n", one.states, one.transitions,
              one.depth);
  EXPECT_EQ(one.violation, "") << Shown(one);
  EXPECT_TRUE(one.complete);
  config.requests = config.blocks = 2;
  config.reader_ends = config.writer_ends = 0;
  const Exploration two = Explore(config, 40'000);
  std::printf("two: %lu states, %lu transitions, %d deep, complete %d\n", two.states,
              two.transitions, two.depth, two.complete);
  EXPECT_EQ(two.violation, "") << Shown(two);
}

TEST(HandoffModel, EveryOrderOfEventsOfGrantsInRequestsAndOfNotes) {
  HandoffConfig config;
  config.requests = 1;
  config.blocks = 1;
  config.tiers = false;
  config.early = config.notes = true;
  config.reader_ends = 0;
  const Exploration e = Explore(config, 200'000);
  std::printf("%lu states, %lu transitions, %d deep\n", e.states, e.transitions, e.depth);
  EXPECT_EQ(e.violation, "") << Shown(e);
  EXPECT_TRUE(e.complete);
  EXPECT_GT(e.states, 1000u);
}

TEST(HandoffModel, FindsEverySeededBug) {
  for (const ProtocolBug bug : kAllBugs) {
    HandoffConfig config;
    config.blocks = 1;
    config.bug = bug;
    config.early = bug == ProtocolBug::kGivenBackInUse;
    if (bug == ProtocolBug::kAckToSuccessor) {  // needs one request, but many events
      config.requests = 1;
      config.link_breaks = 0;
    }
    if (bug == ProtocolBug::kHalfConverted || bug == ProtocolBug::kStagingReused) {
      config.converts = true;
      config.tiers = false;
      config.attempts = 1;
      config.writer_ends = config.reader_ends = config.link_breaks = 0;
      config.requests = config.blocks = bug == ProtocolBug::kStagingReused ? 2 : 1;
    }
    const Exploration e = Explore(config, 90'000);
    std::printf("%s: %lu states, %s\n", BugName(bug), e.states, Shown(e).c_str());
    EXPECT_NE(e.violation, "") << BugName(bug);
  }
}

}  // namespace
}  // namespace aisp
