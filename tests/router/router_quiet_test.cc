// Quiet workers: silent, but not long enough to be forgotten.
#include <gtest/gtest.h>

#include "tests/router/router_harness.h"

namespace aisp {
namespace {

using Kind = v1::RouterMessage;

class Quiet : public testing::Test {
 protected:
  // Advances the time while `heard` send signs of life.
  void PassWith(const std::vector<LinkId>& heard, Duration time) {
    const Duration turn = options_.quiet_limit / 5;
    for (Duration passed{}; passed < time; passed += turn) {
      for (const LinkId link : heard) h_.Report(link, h_.ReadyTelemetry());
      h_.Advance(turn);
    }
  }

  const RouterOptions options_;
  const Duration a_while_ = options_.quiet_limit + options_.quiet_limit / 2;
  RouterHarness h_;
};

TEST_F(Quiet, WhatWaitsForItsFirstTokenGoesToAnotherOneAndStreamsStay) {
  const LinkId d0 = h_.AddDecode("d0");
  RecordingObserver streams, waits;
  ASSERT_TRUE(h_.Submit(h_.Request(10), &streams));
  ASSERT_TRUE(h_.Submit(h_.Request(12), &waits));
  const auto sent = h_.Generates(d0);
  h_.Tokens(d0, sent[0].request_id(), 10, {7});
  const LinkId d1 = h_.AddDecode("d1");
  PassWith({d1}, a_while_);
  const auto moved = h_.Generates(d1);
  ASSERT_EQ(moved.size(), 1u);
  EXPECT_EQ(moved[0].tokens_size(), 12);
  EXPECT_EQ(h_.Count(d0, Kind::kCancel), 1);
  h_.Tokens(d1, moved[0].request_id(), 12, {2}, v1::FINISH_STOP);
  EXPECT_EQ(waits.finish, v1::FINISH_STOP);
  // It continues, with its stream; its result for the moved request is ignored.
  h_.Tokens(d0, sent[1].request_id(), 12, {66});
  h_.Tokens(d0, sent[0].request_id(), 11, {8}, v1::FINISH_STOP);
  EXPECT_EQ(streams.tokens, (std::vector<TokenId>{7, 8}));
  EXPECT_EQ(waits.tokens, (std::vector<TokenId>{2}));
  EXPECT_TRUE(h_.HasMetric("aisp_router_quiet_workers_total", "1"));
  EXPECT_TRUE(h_.HasMetric("aisp_request_moves_total", "1"));
  EXPECT_TRUE(h_.HasMetric("aisp_takeovers_total", "0"));
}

TEST_F(Quiet, ItGetsNothingNewUntilItSpeaks) {
  const LinkId d0 = h_.AddDecode("d0");
  const LinkId d1 = h_.AddDecode("d1");
  PassWith({d1}, a_while_);
  RecordingObserver seen;
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(h_.Submit(h_.Request(10), &seen));
  EXPECT_EQ(h_.Generates(d0).size(), 0u);
  EXPECT_EQ(h_.Generates(d1).size(), 6u);
  h_.Report(d0, h_.ReadyTelemetry());
  ASSERT_TRUE(h_.Submit(h_.Request(10), &seen));
  EXPECT_EQ(h_.Generates(d0).size(), 1u);
}

TEST_F(Quiet, WhereNobodyElseIsItGetsRequestsAndKeepsThem) {
  const LinkId d0 = h_.AddDecode("d0");
  RecordingObserver before, after;
  ASSERT_TRUE(h_.Submit(h_.Request(10), &before));
  PassWith({}, a_while_);
  ASSERT_TRUE(h_.Submit(h_.Request(11), &after));
  const auto sent = h_.Generates(d0);
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(h_.Count(d0, Kind::kCancel), 0);
  h_.Tokens(d0, sent[0].request_id(), 10, {1}, v1::FINISH_STOP);
  h_.Tokens(d0, sent[1].request_id(), 11, {1}, v1::FINISH_STOP);
  EXPECT_EQ(before.finish, v1::FINISH_STOP);
  EXPECT_EQ(after.finish, v1::FINISH_STOP);
}

TEST_F(Quiet, PromptsThatAPrefillWorkerIsAskedForGoElsewhere) {
  const LinkId d0 = h_.AddDecode("d0");
  h_.AddPrefill("p0");
  RecordingObserver seen;
  RouterRequest request = h_.Request(2000);
  request.prefill = PrefillPreference::kRemote;
  ASSERT_TRUE(h_.Submit(std::move(request), &seen));
  ASSERT_EQ(h_.Generates(d0).size(), 1u);
  ASSERT_TRUE(h_.Generates(d0)[0].has_prefill());
  PassWith({d0}, a_while_);
  const auto sent = h_.Generates(d0);
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_FALSE(sent[1].has_prefill()) << "the only one of them is quiet";
  EXPECT_EQ(h_.Count(d0, Kind::kCancel), 1);
}

// If every worker stutters, moving on makes it worse.
TEST_F(Quiet, ARequestMovesTwiceAtTheMost) {
  std::vector<LinkId> workers;
  for (int i = 0; i < 2; ++i) workers.push_back(h_.AddDecode("d" + std::to_string(i)));
  RecordingObserver seen;
  ASSERT_TRUE(h_.Submit(h_.Request(10), &seen));
  const auto generates = [&] {
    return h_.Generates(workers[0]).size() + h_.Generates(workers[1]).size();
  };
  for (int turn = 0; turn < 6; ++turn) {
    // The worker that has it is quiet, the other one is not.
    const bool first = h_.Generates(workers[0]).size() > h_.Generates(workers[1]).size();
    PassWith({workers[first ? 1 : 0]}, a_while_);
    h_.Report(workers[first ? 0 : 1], h_.ReadyTelemetry());
  }
  EXPECT_EQ(generates(), 3u);
}

// The router's own thread was paused: messages sent meanwhile are not read yet.
TEST_F(Quiet, ARouterThatWasStalledItselfTakesNobodyForQuiet) {
  const LinkId d0 = h_.AddDecode("d0");
  RecordingObserver seen;
  ASSERT_TRUE(h_.Submit(h_.Request(10), &seen));
  const LinkId d1 = h_.AddDecode("d1");
  h_.Report(d0, h_.ReadyTelemetry());
  h_.clock.Advance(2 * options_.quiet_limit);
  h_.Advance(Duration{});
  EXPECT_EQ(h_.Generates(d1).size(), 0u);
  EXPECT_TRUE(h_.HasMetric("aisp_router_quiet_workers_total", "0"));
}

}  // namespace
}  // namespace aisp
