#include "tests/kvcache/model/pull_model.h"

#include <gtest/gtest.h>

namespace aisp {
namespace {

std::string Shown(const Exploration& e) {
  std::string text = e.violation;
  for (const std::string& step : e.path) text += "\n  " + step;
  return text;
}

void ExpectAllGood(const char* what, const PullConfig& config, uint64_t max_states) {
  const Exploration e = Explore(config, max_states);
  std::printf("%s: %lu states, %lu transitions, %d deep%s\n", what, e.states, e.transitions,
              e.depth, e.complete ? ", complete" : "");
  EXPECT_EQ(e.violation, "") << what << Shown(e);
  EXPECT_TRUE(e.complete) << what;
  EXPECT_GT(e.states, 100u) << what;
}

TEST(PullModel, TwoPullTheSamePrefixWhileItsOwnerEvictsIt) {
  for (const bool owner_copies : {false, true}) {
    for (const bool grant_apart : {false, true}) {
      PullConfig config;
      config.owner_copies = owner_copies;
      config.grant_apart = grant_apart;
      config.notes = !owner_copies;
      config.computes = 0;
      ExpectAllGood(grant_apart ? "two pullers, grants apart" : "two pullers", config, 100'000);
    }
  }
}

TEST(PullModel, OnePullsTwoBlocksOfWhichOneMayBeGone) {
  for (const bool owner_copies : {false, true}) {
    PullConfig config;
    config.pullers = 1;
    config.prefix_blocks = 2;
    config.pulls = 2;
    config.evictions = 2;
    config.owner_copies = owner_copies;
    config.notes = !owner_copies;
    ExpectAllGood("two blocks", config, 100'000);
  }
}

TEST(PullModel, DeathsAndLostLinks) {
  PullConfig config;
  config.pullers = 1;
  config.pulls = 2;
  config.link_breaks = 1;
  config.holder_ends = 1;
  config.puller_ends = 1;
  config.notes = true;
  ExpectAllGood("deaths", config, 200'000);
  config.notes = false;
  config.grant_apart = true;
  ExpectAllGood("deaths, grants apart", config, 200'000);
}

TEST(PullModel, WhatComesUpFromATier) {
  for (const bool owner_copies : {false, true}) {
    PullConfig config;
    config.tier = true;
    config.tier_faults = 1;
    config.evictions = 1;
    config.computes = 0;
    config.owner_copies = owner_copies;
    ExpectAllGood("two pullers and a tier", config, 400'000);
    config.pullers = 1;
    config.prefix_blocks = 2;
    config.pulls = 2;
    config.evictions = 2;
    ExpectAllGood("two blocks and a tier", config, 400'000);
  }
}

TEST(PullModel, DeathsWhileSomethingComesUp) {
  PullConfig config;
  config.pullers = 1;
  config.pulls = 2;
  config.tier = true;
  config.tier_faults = 1;
  config.link_breaks = 1;
  config.holder_ends = 1;
  config.puller_ends = 1;
  ExpectAllGood("deaths and a tier", config, 400'000);
}

// Two blocks of one side are one of the other's; conversions use memory shared by all pushes.
TEST(PullModel, PoolsOfOtherFormats) {
  for (const int holder_units : {1, 2}) {
    for (const bool converts : {false, true}) {
      PullConfig config;
      config.holder_units = holder_units;
      config.puller_units = 3 - holder_units;
      config.converts = converts;
      config.computes = 0;
      ExpectAllGood("two pullers with other blocks", config, 200'000);
      config.pullers = 1;
      config.pulls = 2;
      config.tier = true;
      config.tier_faults = 1;
      config.evictions = 2;
      config.owner_copies = true;
      ExpectAllGood("other blocks and a tier", config, 200'000);
    }
  }
}

TEST(PullModel, DeathsWhileSomethingIsConverted) {
  PullConfig config;
  config.pullers = 1;
  config.puller_units = 2;
  config.converts = true;
  config.pulls = 2;
  config.link_breaks = 1;
  config.holder_ends = 1;
  config.puller_ends = 1;
  ExpectAllGood("deaths and conversions", config, 400'000);
}

TEST(PullModel, FindsEverySeededBug) {
  for (const PullBug bug : kAllPullBugs) {
    PullConfig config;
    config.bug = bug;
    if (bug == PullBug::kHeldIgnored) config.prefix_blocks = 2;
    if (bug == PullBug::kLostLinkIsDeath) config.link_breaks = 1;
    config.owner_copies = bug == PullBug::kEpochUnchecked;
    config.tier = bug >= PullBug::kPublishedBeforeLoad && bug < PullBug::kPartOfABlock;
    if (bug == PullBug::kPartOfABlock) config.puller_units = 2;
    if (bug == PullBug::kStagingReused) {
      config.converts = true;
      config.prefix_blocks = 2;
    }
    config.tier_faults = config.tier ? 1 : 0;
    const Exploration e = Explore(config, 100'000);
    std::printf("%s: %lu states, %s\n", BugName(bug), e.states, Shown(e).c_str());
    EXPECT_NE(e.violation, "") << BugName(bug);
  }
}

}  // namespace
}  // namespace aisp
