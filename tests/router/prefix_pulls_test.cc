// When a decode worker is told to pull a prefix from another worker's cache.
#include "router/prefix_pulls.h"

#include <gtest/gtest.h>

#include "router/pull_rates.h"
#include "tests/router/router_harness.h"

namespace aisp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

WorkerView Worker(std::string_view id, int32_t cached = 0) {
  WorkerView w;
  w.worker_id = id;
  w.host_id = "host";
  w.available = w.gives = true;
  w.max_rows = 16;
  w.free_blocks = w.total_blocks = 1000;
  w.cached_tokens = cached;
  w.kv_bytes_per_token = 128 * 1024;
  return w;
}

v1::PrefixPull Took(double ms, double mb, v1::PrefixPull::Result result = v1::PrefixPull::FILLED) {
  v1::PrefixPull pull;
  pull.set_result(result);
  pull.set_bytes(static_cast<uint64_t>(mb * 1e6));
  pull.set_duration_ns(static_cast<int64_t>(ms * 1e6));
  return pull;
}

class Pulls : public ::testing::Test {
 protected:
  RequestSummary Request(int32_t tokens) {
    RequestSummary r;
    r.tokens = tokens;
    r.num_layers = 32;
    r.pulls = &rates_;
    r.now = now_;
    return r;
  }
  void Learn(double ms_per_mb) {
    for (int i = 1; i <= 20; ++i) rates_.Learn("d0", "d1", Took(1 + ms_per_mb * i, i), now_);
  }
  Result<Placement> Pick(const RequestSummary& request, std::span<const WorkerView> workers) {
    return (*MakeRoutingPolicy({}))->Pick(request, workers);
  }
  PullRates rates_;
  Instant now_{1'000'000'000};
};

TEST_F(Pulls, WhatABusyWorkerHoldsGoesToAnIdleOne) {
  Learn(0.1);
  WorkerView workers[] = {Worker("d0", 4000), Worker("d1")};
  workers[0].busy_ms = 5000;
  const auto placement = Pick(Request(4010), workers);
  ASSERT_TRUE(placement);
  EXPECT_EQ(placement->decode, 1);
  // The holder itself runs that step, and answers between two of its layers.
  EXPECT_EQ(placement->pull.holder, 0);
  workers[0].busy_ms = 0;
  workers[0].rows = 64;
  const auto pulled = Pick(Request(4010), workers);
  EXPECT_EQ(pulled->decode, 1);
  EXPECT_EQ(pulled->pull.holder, 0);
  EXPECT_EQ(pulled->pull.tokens, 4000);
  EXPECT_EQ(pulled->reason, "local-pull");
}

TEST_F(Pulls, TheLastBlockOfAPromptThatIsHeldAsAWholeIsPulledToo) {
  Learn(0.01);
  WorkerView workers[] = {Worker("d0", 4096), Worker("d1")};
  workers[0].available = false;
  const auto placement = Pick(Request(4096), workers);
  ASSERT_TRUE(placement);
  EXPECT_EQ(placement->decode, 1);
  EXPECT_EQ(placement->pull.tokens, 4096);
}

TEST_F(Pulls, AnIdleWorkerThatHoldsItIsAsGoodWithoutAPull) {
  Learn(0.1);
  const WorkerView workers[] = {Worker("d0", 4000), Worker("d1")};
  const auto placement = Pick(Request(4010), workers);
  EXPECT_EQ(placement->decode, 0);
  EXPECT_EQ(placement->pull.holder, -1);
}

TEST_F(Pulls, APullThatGainsNextToNothingIsNotWorthItsHoldersTime) {
  Learn(0.0001);
  WorkerView workers[] = {Worker("d0", 4000), Worker("d1")};
  // Their answers are so long that a few milliseconds of prefill do not matter.
  RequestSummary request = Request(4010);
  request.expected_new_tokens = 1000;
  workers[0].backlog_ms = 1.5;
  for (request.tie_break = 0; request.tie_break < 16; ++request.tie_break) {
    const auto placement = Pick(request, workers);
    EXPECT_EQ(placement->decode, 0);
    EXPECT_EQ(placement->pull.holder, -1);
  }
  workers[0].backlog_ms = 300;
  request.tie_break = 0;
  EXPECT_EQ(Pick(request, workers)->decode, 1);
  EXPECT_EQ(Pick(request, workers)->pull.holder, 0);
}

TEST_F(Pulls, WhatIsQueuedIsComputedWhileItComes) {
  Learn(0.1);
  WorkerView workers[] = {Worker("d0", 4000), Worker("d1")};
  workers[0].available = false;
  const double idle_ms = Pick(Request(4010), workers)->ttft_ms;
  workers[1].backlog_ms = 10;  // the pull takes five times as long
  EXPECT_NEAR(Pick(Request(4010), workers)->ttft_ms, idle_ms, 0.1);
}

TEST_F(Pulls, WhatCameWaitsForTheStepThatItsPullerIsIn) {
  Learn(0.1);
  WorkerView workers[] = {Worker("d0", 4000), Worker("d1")};
  workers[0].available = false;
  const double idle_ms = Pick(Request(4010), workers)->ttft_ms;
  workers[1].rows = 8;
  RequestSummary request = Request(4010);
  const double beside_decodes_ms = Pick(request, workers)->ttft_ms;
  EXPECT_GT(beside_decodes_ms, idle_ms);
  // Nine tenths of the time in steps of 100 ms.
  request.prompt_steps_per_s = 9;
  request.prompt_ms_per_s = 900;
  EXPECT_NEAR(Pick(request, workers)->ttft_ms - beside_decodes_ms, 45, 3);
}

TEST_F(Pulls, WhatPullsTookLongerIsPutOnPullsAlone) {
  Learn(0.1);
  WorkerView workers[] = {Worker("d0", 4000), Worker("d1")};
  workers[0].available = false;
  const double pulled_ms = Pick(Request(4010), workers)->ttft_ms;
  workers[1].fetch_extra.value = 30;
  EXPECT_DOUBLE_EQ(Pick(Request(4010), workers)->ttft_ms, pulled_ms + 30);
  workers[0].available = true;
  workers[0].fetch_extra.value = 30;
  EXPECT_EQ(Pick(Request(4010), workers)->pull.holder, -1);
}

TEST_F(Pulls, ASlowLaneIsNoLane) {
  Learn(1000);
  WorkerView workers[] = {Worker("d0", 4000), Worker("d1")};
  workers[0].rows = 64;
  EXPECT_EQ(Pick(Request(4010), workers)->pull.holder, -1);
}

TEST_F(Pulls, OffIsOffAndWheneverIsAlways) {
  Learn(1000);
  WorkerView workers[] = {Worker("d0", 4000), Worker("d1")};
  workers[0].available = false;
  RequestSummary request = Request(4010);
  request.pull_whenever = true;
  EXPECT_EQ(Pick(request, workers)->pull.holder, 0);
  request.pulls = nullptr;
  EXPECT_EQ(Pick(request, workers)->pull.holder, -1);
}

TEST_F(Pulls, EveryPolicyPullsWhereItComputesLocally) {
  Learn(0.1);
  WorkerView workers[] = {Worker("d0", 4000), Worker("d1")};
  workers[0].available = false;
  for (const std::string_view name : kRoutingPolicies) {
    PolicyOptions options;
    options.name = name;
    const auto placement = (*MakeRoutingPolicy(options))->Pick(Request(4010), workers);
    ASSERT_TRUE(placement) << name;
    EXPECT_EQ(placement->pull.holder, 0) << name;
    EXPECT_EQ(placement->reason, "local-pull") << name;
  }
}

TEST_F(Pulls, WhatAHolderHasInATierCountsWithTheTimeToBringItUp) {
  Learn(0.1);
  WorkerView workers[] = {Worker("d0", 1008), Worker("d1")};
  workers[0].available = false;
  workers[0].host_tokens = 2000;
  workers[0].host_block_ms = 0.001;
  workers[0].disk_tokens = 4000;
  workers[0].disk_block_ms = 1e6;
  auto placement = Pick(Request(4010), workers);
  ASSERT_TRUE(placement);
  EXPECT_EQ(placement->pull.tokens, 2000);
  const double host_ms = placement->pull.pull_ms;
  workers[0].disk_block_ms = 0.001;
  placement = Pick(Request(4010), workers);
  EXPECT_EQ(placement->pull.tokens, 4000);
  EXPECT_GT(placement->pull.pull_ms, host_ms);
  // If loading from tiers takes longer than computing, only what is in the pool is pulled.
  workers[0].host_block_ms = workers[0].disk_block_ms = 1e6;
  EXPECT_EQ(Pick(Request(4010), workers)->pull.tokens, 1008);
  // The loading time is not known.
  workers[0].host_block_ms = workers[0].disk_block_ms = 0;
  EXPECT_EQ(Pick(Request(4010), workers)->pull.tokens, 1008);
}

TEST_F(Pulls, AWorkersOwnTierIsBetterThanAPull) {
  Learn(0.1);
  WorkerView workers[] = {Worker("d0"), Worker("d1")};
  workers[1].host_tokens = 4000;
  workers[1].host_block_ms = 0.001;
  auto placement = Pick(Request(4010), workers);
  ASSERT_TRUE(placement);
  EXPECT_EQ(placement->decode, 1);
  EXPECT_EQ(placement->pull.holder, -1);
  workers[1].host_block_ms = 1e6;
  EXPECT_DOUBLE_EQ(OwnPrefix(Request(4010), workers[1]).promote_ms, 0);
  EXPECT_EQ(OwnPrefix(Request(4010), workers[1]).tokens, 0);
}

TEST_F(Pulls, WhatWasMadeOfThemIsTold) {
  Learn(1000);
  WorkerView workers[] = {Worker("d0", 4000), Worker("d1")};
  workers[0].available = false;
  EXPECT_EQ(Pick(Request(4010), workers)->pull.verdict, PullVerdict::kSlower);
  rates_.Learn("d0", "d1", Took(0, 0, v1::PrefixPull::FAILED), now_);
  EXPECT_EQ(Pick(Request(4010), workers)->pull.verdict, PullVerdict::kLeftAlone);
  workers[0].cached_tokens = 0;
  EXPECT_EQ(Pick(Request(4010), workers)->pull.verdict, PullVerdict::kNothing);
}

TEST_F(Pulls, AWorkerWithoutAnAddressGivesNothing) {
  Learn(0.1);
  WorkerView workers[] = {Worker("d0", 4000), Worker("d1")};
  workers[0].available = workers[0].gives = false;
  EXPECT_EQ(Pick(Request(4010), workers)->pull.holder, -1);
}

TEST(PullRates, APairThatIsNotKnownIsTriedNowAndThenAndElseTakenForSlow) {
  PullRates rates;
  const WorkerView holder = Worker("d0"), decode = Worker("d1");
  Instant now{1'000'000'000};
  const double hoped = *rates.PredictMs(holder, decode, 1e8, now);
  rates.Started(holder, decode, now);
  const double feared = *rates.PredictMs(holder, decode, 1e8, now);
  EXPECT_GT(feared, 3 * hoped);
  now = now + PullRates::kTrialEvery;
  EXPECT_EQ(*rates.PredictMs(holder, decode, 1e8, now), hoped);
}

TEST(PullRates, APairThatNeverPulledIsTakenForWhatOthersOfItsKindTook) {
  PullRates rates;
  const WorkerView d0 = Worker("d0"), d1 = Worker("d1"), d2 = Worker("d2");
  WorkerView far = Worker("far");
  far.host_id = "another";
  const Instant now{1'000'000'000};
  // A gigabyte between GPUs: predicted faster than computing, so that it is tried.
  EXPECT_LT(*rates.PredictMs(d0, d1, 1e9, now), 100);
  rates.Started(d0, d1, now);
  EXPECT_GT(*rates.PredictMs(d2, d1, 1e9, now), 500) << "one trial at a time";
  for (int i = 1; i <= 20; ++i) rates.Learn("d0", "d1", Took(2 + 10 * i, 1000 * i), now);
  EXPECT_NEAR(*rates.PredictMs(d0, d1, 1e9, now), 12, 2);
  EXPECT_NEAR(*rates.PredictMs(d2, d1, 1e9, now), 18, 3);
  rates.Started(far, d1, now);
  EXPECT_GT(*rates.PredictMs(far, d1, 1e9, now), 500) << "of hosts apart that says nothing";
}

TEST(PullRates, WhatAPairTookIsWhatItTakes) {
  PullRates rates;
  const WorkerView holder = Worker("d0"), decode = Worker("d1");
  const Instant now{1'000'000'000};
  for (int i = 1; i <= 30; ++i) rates.Learn("d0", "d1", Took(2 + 0.5 * (i % 7), i % 7), now);
  EXPECT_NEAR(*rates.PredictMs(holder, decode, 10e6, now), 7, 0.5);
  // The opposite direction is another lane, which is being tried.
  rates.Started(decode, holder, now);
  EXPECT_GT(*rates.PredictMs(decode, holder, 1e9, now), 100);
}

TEST(PullRates, APairThatWasLateIsLeftAloneTwiceAsLongEachTime) {
  PullRates rates;
  const WorkerView holder = Worker("d0"), decode = Worker("d1");
  Instant now{1'000'000'000};
  rates.Learn("d0", "d1", Took(0, 0, v1::PrefixPull::LATE), now);
  EXPECT_FALSE(rates.PredictMs(holder, decode, 1e6, now));
  now = now + milliseconds(501);
  EXPECT_TRUE(rates.PredictMs(holder, decode, 1e6, now));
  rates.Learn("d0", "d1", Took(0, 0, v1::PrefixPull::FAILED), now);
  EXPECT_FALSE(rates.PredictMs(holder, decode, 1e6, now + milliseconds(900)));
  EXPECT_TRUE(rates.PredictMs(holder, decode, 1e6, now + seconds(2)));
  // A wrong directory entry tells nothing about the lane.
  rates.Learn("d0", "d1", Took(0, 0, v1::PrefixPull::MISSED), now + seconds(2));
  EXPECT_TRUE(rates.PredictMs(holder, decode, 1e6, now + seconds(2)));
}

TEST(PullRates, PairsAreBounded) {
  PullRates rates;
  for (size_t i = 0; i < PullRates::kMaxPairs + 10; ++i) {
    const std::string holder = "h" + std::to_string(i);
    rates.Started(Worker(holder), Worker("d"), Instant{static_cast<int64_t>(i)});
  }
  EXPECT_EQ(rates.pairs(), PullRates::kMaxPairs);
}

// The next turn of a conversation: its prefill worker pulls the earlier turns from the decode
// worker.
TEST_F(Pulls, APrefillWorkerHasEarlierTurnsFromTheDecodeWorkerThatHoldsThem) {
  for (int i = 1; i <= 20; ++i) rates_.Learn("d0", "p0", Took(1 + 0.1 * i, i), now_);
  WorkerView workers[] = {Worker("d0", 4000), Worker("p0")};
  workers[1].prefill = true;
  workers[0].rows = 15;
  RequestSummary request = Request(8000);
  request.preference = PrefillPreference::kRemote;
  const auto placement = Pick(request, workers);
  ASSERT_TRUE(placement);
  EXPECT_EQ(placement->decode, 0);
  EXPECT_EQ(placement->prefill, 1);
  EXPECT_EQ(placement->pull.holder, 0);
  EXPECT_EQ(placement->pull.tokens, 4000);
  EXPECT_NE(placement->reason, "local-pull");
  // It does not pull what it has itself.
  workers[1].cached_tokens = 4000;
  EXPECT_EQ(Pick(request, workers)->pull.holder, -1);
  request.pulls = nullptr;
  workers[1].cached_tokens = 0;
  EXPECT_EQ(Pick(request, workers)->pull.holder, -1);
}

// Whole blocks of both block sizes: what arrives fills whole blocks of the puller.
TEST_F(Pulls, WorkersWithOtherBlockSizesPullWholeBlocksOfBoth) {
  Learn(0.1);
  WorkerView workers[] = {Worker("d0", 4000), Worker("d1")};
  workers[0].rows = 64;
  workers[0].block_tokens = 64;
  workers[1].block_tokens = 128;
  const auto pulled = Pick(Request(4010), workers);
  EXPECT_EQ(pulled->pull.holder, 0);
  EXPECT_EQ(pulled->pull.tokens, 3968);
}

TEST(RouterPulls, ADrainingWorkersPrefixGoesToTheOneThatTakesItsRequests) {
  RouterOptions options;
  options.pulls = PrefixPulls::kAlways;
  RouterHarness h(options);
  v1::Register holder = h.Registration("d0", v1::ROLE_DECODE, 1);
  holder.set_kv_address("d0:kv");
  const LinkId d0 = h.Attach(holder);
  h.Report(d0, h.ReadyTelemetry(1));
  const LinkId d1 = h.AddDecode("d1");
  h.Store(d0, h.Request(256).tokens, 16, /*snapshot=*/true);
  v1::Telemetry draining = h.ReadyTelemetry(1);
  draining.set_draining(true);
  h.Report(d0, draining);
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(h.Request(256), &seen));
  const v1::GenerateRequest sent = h.Generates(d1).at(0);
  ASSERT_TRUE(sent.has_pull());
  EXPECT_EQ(sent.pull().holder().kv_address(), "d0:kv");
  EXPECT_EQ(sent.pull().holder().incarnation(), 1u);
  EXPECT_EQ(sent.pull().tokens(), 256u);
  EXPECT_GT(sent.pull().begin_within_us(), 0);
  EXPECT_GT(sent.pull().limit_us(), sent.pull().begin_within_us());
  EXPECT_EQ(seen.routes[0].pull_worker, "d0");
  EXPECT_EQ(seen.routes[0].pull_tokens, 256u);
}

// From a worker's report of its tier to the pull requested from another worker.
TEST(RouterPulls, WhatLiesInATierAloneIsPulled) {
  RouterOptions options;
  options.pulls = PrefixPulls::kAlways;
  RouterHarness h(options);
  v1::Register holder = h.Registration("d0", v1::ROLE_DECODE, 1);
  holder.set_kv_address("d0:kv");
  const LinkId d0 = h.Attach(holder);
  const LinkId d1 = h.AddDecode("d1");
  h.Store(d0, h.Request(256).tokens, 0, /*snapshot=*/true, "", v1::KV_TIER_DISK);
  v1::Telemetry draining = h.ReadyTelemetry(1);
  draining.set_draining(true);
  draining.set_disk_block_ns(1000);
  h.Report(d0, draining);
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(h.Request(256), &seen));
  EXPECT_EQ(h.Generates(d1).at(0).pull().tokens(), 256u);
  EXPECT_TRUE(
      h.HasMetric("aisp_router_pull_decisions_total{decision=\"chosen\",model=\"story\"", "1"));
}

}  // namespace
}  // namespace aisp
