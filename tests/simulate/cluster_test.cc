#include "simulate/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "common/random.h"
#include "simulate/report.h"

namespace aisp::simulate {
namespace {

using loadgen::WorkItem;

// Steps of round numbers without jitter, so that times are known in advance.
WorkerProfile Plain() {
  WorkerProfile p;
  p.name = "plain";
  p.cost.decode = {10, 0, 0};
  p.cost.prefill = {5, 0.1, 0, 0, 0};
  p.chunk_tokens = 512;
  p.max_batch_tokens = 512;
  p.message_ms = 1;
  p.frontend_ms = 2;
  p.handoff_ms = 3;
  p.transfer_bytes_per_s = 131072e3;  // a token of 32 layers, 131,072 bytes, per millisecond
  p.step_jitter = 0;
  return p;
}

ClusterOptions With(int prefill, int decode, std::string_view policy = "cost") {
  ClusterOptions options;
  options.fleets = {{Plain(), prefill, decode}};
  options.router.max_inflight = 100'000;
  options.router.policy.name = policy;
  return options;
}

WorkItem Item(uint64_t seed, int64_t input, int64_t output) {
  WorkItem item;
  item.parts = {{seed, input}};
  item.input_tokens = input;
  item.output_tokens = output;
  return item;
}

Outcome Play(const ClusterOptions& options, const std::vector<WorkItem>& items,
             const std::vector<double>& at_s, const Objective& limits = {}) {
  auto outcome = simulate::Run(options, items, at_s, limits, /*hopeless=*/1);
  EXPECT_TRUE(outcome) << outcome.error().message;
  return outcome ? std::move(*outcome) : Outcome{};
}

TEST(Cluster, ALocalPromptTakesItsStepsAndItsMessages) {
  const Outcome o = Play(With(0, 1), {Item(1, 100, 5)}, {0});
  ASSERT_EQ(o.requests.size(), 1u);
  const Served& r = o.requests[0];
  EXPECT_EQ(r.end, Served::End::kDone);
  EXPECT_EQ(r.output_tokens, 5);
  // Frontend, message, one step of 5 + 100 * 0.1, message.
  EXPECT_NEAR(r.ttft_ms, 2 + 1 + 15 + 1, 1e-3);
  EXPECT_NEAR(r.tpot_ms, 10, 1e-3);
  EXPECT_EQ(o.computed_prompt_tokens, 100);
}

TEST(Cluster, ArrivalsThatNeverEndAreRefusedWithTheLimit) {
  const std::vector<WorkItem> items = {Item(1, 100, 2), Item(2, 100, 2)};
  const auto refused = simulate::Run(With(0, 1), items, {0, 1e9}, {}, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("1e+09"), std::string::npos) << refused.error().message;
  EXPECT_NE(refused.error().message.find("604800"), std::string::npos) << refused.error().message;
  EXPECT_FALSE(simulate::Run(With(0, 1), items, {0, std::nan("")}, {}, 1));
}

TEST(Cluster, APullTakesItsMessagesAndItsBytesAndTheRestIsComputed) {
  ClusterOptions options = With(0, 2, "round-robin");
  options.router.pulls = PrefixPulls::kAlways;
  // Two prompts with 640 common tokens; the second goes to the other worker.
  const Outcome o = Play(options, {Item(1, 641, 2), Item(1, 641, 2)}, {0, 1});
  // Frontend, message; to the holder and back with 640 tokens and the hand-off; one token; message.
  EXPECT_NEAR(o.requests[1].ttft_ms, 2 + 1 + (1 + 640 + 1 + 3) + 5.1 + 1, 1e-2);
  EXPECT_EQ(o.computed_prompt_tokens, 641 + 1);
  EXPECT_EQ(o.reasons.at("local-pull"), 1);
}

TEST(Cluster, PullsOfPrefixesThatPlacementFollowsAnywayCostNothing) {
  // Conversations of six turns, eight at a time, on two workers: few of them gain.
  const auto play = [](PrefixPulls pulls) {
    std::vector<WorkItem> items;
    std::vector<double> at_s;
    SplitMix64 random(9);
    for (uint64_t turn = 0; turn < 6; ++turn) {
      for (uint64_t c = 0; c < 40; ++c) {
        WorkItem item;
        for (uint64_t t = 0; t <= turn; ++t) item.parts.push_back({100 * c + t + 1, 160});
        item.input_tokens = static_cast<int64_t>(160 * (turn + 1));
        item.output_tokens = 24;
        items.push_back(item);
        at_s.push_back(static_cast<double>(40 * turn + c) * 0.05 + 0.02 * random.Uniform());
      }
    }
    ClusterOptions options = With(0, 2);
    options.fleets.front().profile.transfer_bytes_per_s = 2e9;
    options.router.pulls = pulls;
    const Outcome o = Play(options, items, at_s);
    double sum = 0;
    for (const Served& r : o.requests) sum += r.ttft_ms;
    return sum / static_cast<double>(o.requests.size());
  };
  EXPECT_LE(play(PrefixPulls::kAuto), 1.02 * play(PrefixPulls::kOff));
}

TEST(Cluster, WhatArrivesWaitsForTheStepThatWasLaunchedAhead) {
  const std::vector<WorkItem> items = {Item(1, 100, 50), Item(2, 100, 5)};
  ClusterOptions options = With(0, 1);
  const Outcome before = Play(options, items, {0, 0.1});
  options.fleets[0].profile.launched_ahead = 1;
  const Outcome o = Play(options, items, {0, 0.1});
  ASSERT_EQ(o.requests.size(), 2u);
  EXPECT_NEAR(o.requests[0].ttft_ms, before.requests[0].ttft_ms, 1e-3) << "nothing ran then";
  EXPECT_NEAR(o.requests[1].ttft_ms, before.requests[1].ttft_ms + 10, 1e-3) << "a step of decodes";
  EXPECT_EQ(o.requests[1].output_tokens, 5);
}

TEST(Cluster, StepsTakeLongerFromSoManyRowsOn) {
  ClusterOptions options = With(0, 1);
  options.fleets[0].profile.more_from_rows = {{2, 4}, {3, 30}};
  const Outcome two = Play(options, {Item(1, 100, 5), Item(2, 100, 5)}, {0, 0});
  // The other request's prompt in a step with one row, then three steps of two rows.
  EXPECT_NEAR(two.requests[0].tpot_ms, (15 + 3 * (10 + 4)) / 4.0, 1e-3);
  const Outcome one = Play(options, {Item(1, 100, 5)}, {0});
  EXPECT_NEAR(one.requests[0].tpot_ms, 10, 1e-3);
}

TEST(Cluster, RowsBesideAPromptMakeItsStepLonger) {
  const auto first = [](double beside_ms) {
    ClusterOptions options = With(0, 1);
    options.fleets[0].profile.beside_rows_ms = beside_ms;
    return Play(options, {Item(1, 100, 50), Item(2, 100, 2)}, {0, 0.2}).requests[0].e2e_ms;
  };
  EXPECT_NEAR(first(7) - first(0), 7, 1e-3);
}

TEST(Cluster, PromptsBehindPromptsTakeLonger) {
  ClusterOptions options = With(0, 1);
  options.fleets[0].profile.back_to_back = 0.5;
  options.fleets[0].profile.rest_ms = 1e-3;  // warm at once, and rested after a moment
  const std::vector<WorkItem> items = {Item(1, 1024, 2), Item(2, 512, 2)};
  const Outcome o = Play(options, items, {0, 5});
  const double step = 5 + 51.2;
  EXPECT_NEAR(o.requests[0].ttft_ms, 2 + 1 + step + 1.5 * step + 1, 1e-2);
  EXPECT_NEAR(o.requests[1].ttft_ms, 2 + 1 + step + 1, 1e-2);
}

TEST(Cluster, LongPromptsAreCutIntoChunks) {
  const Outcome o = Play(With(0, 1), {Item(1, 1100, 2)}, {0});
  EXPECT_NEAR(o.requests[0].ttft_ms, 2 + 1 + 3 * 5 + 110 + 1, 1e-3);
}

TEST(Cluster, ARemotePromptAlsoTakesItsTransferAndItsFirstTokenComesWithIt) {
  // Least-loaded always uses a prefill worker.
  const Outcome o = Play(With(1, 1, "least-loaded"), {Item(1, 101, 5)}, {0});
  const Served& r = o.requests[0];
  // Frontend, message to D, message to P, a step of 101 tokens; 101 ms of transfer, which overlaps
  // with the step, and the hand-off; message.
  EXPECT_NEAR(r.ttft_ms, 2 + 1 + 1 + 101 + 3 + 1, 1e-2);
  EXPECT_EQ(o.computed_prompt_tokens, 101);
  EXPECT_EQ(o.reasons.at("least-loaded"), 1);
}

TEST(Cluster, ASecondPromptFindsTheFirstOnesBlocks) {
  std::vector<WorkItem> items = {Item(1, 640, 2), Item(1, 640, 2)};
  items[1].parts.push_back({9, 64});
  items[1].input_tokens += 64;
  const Outcome o = Play(With(0, 1), items, {0, 1});
  // Nine whole blocks of 64: the tenth holds the last token of the first prompt.
  EXPECT_EQ(o.computed_prompt_tokens, 640 + 64);
  EXPECT_LT(o.requests[1].ttft_ms, 2 + 1 + 5 + 6.4 + 1 + 1e-3);
}

TEST(Cluster, PromptsGoWhereTheirPrefixIs) {
  // Four prefixes, each used repeatedly: on four workers each is computed once or twice.
  std::vector<WorkItem> items;
  std::vector<double> at_s;
  for (int i = 0; i < 80; ++i) {
    items.push_back(Item(1000 + static_cast<uint64_t>(i % 4), 1280, 2));
    items.back().parts.push_back({static_cast<uint64_t>(i), 16});
    items.back().input_tokens += 16;
    at_s.push_back(i * 0.3);
  }
  const int64_t all = 80 * 1296;
  for (const std::string_view policy : {"cost", "prefix"}) {
    EXPECT_LT(Play(With(0, 4, policy), items, at_s).computed_prompt_tokens, all / 5) << policy;
  }
}

TEST(Cluster, AColdBurstComputesEachPrefixAboutOnce) {
  // Thirty prefixes, each requested four times within its computing time.
  std::vector<WorkItem> items;
  std::vector<double> at_s;
  for (int i = 0; i < 120; ++i) {
    items.push_back(Item(1000 + static_cast<uint64_t>(i % 30), 6400, 2));
    items.back().parts.push_back({static_cast<uint64_t>(i), 16});
    items.back().input_tokens += 16;
    at_s.push_back(i * 0.002);
  }
  for (const std::string_view policy : {"cost", "prefix"}) {
    const Outcome o = Play(With(0, 6, policy), items, at_s);
    EXPECT_LT(o.computed_prompt_tokens, 1.2 * 30 * 6400) << policy;
  }
}

TEST(Cluster, ShortPromptsPassLongOnes) {
  // A step of 128 tokens: half for the first prompt, a quarter for the second, the rest for the
  // third, which ends in its first step.
  const std::vector<WorkItem> items = {Item(1, 6400, 2), Item(2, 6400, 2), Item(3, 24, 2)};
  const Outcome o = Play(With(0, 1), items, {0, 0.001, 0.002});
  EXPECT_LT(o.requests[2].ttft_ms, 0.1 * o.requests[0].ttft_ms);
}

TEST(Cluster, EveryRequestEndsAlsoWhenThePoolIsShort) {
  ClusterOptions options = With(1, 2);
  options.fleets[0].profile.blocks = 24;  // three requests at a time, before they grow
  std::vector<WorkItem> items;
  std::vector<double> at_s;
  for (int i = 0; i < 200; ++i) {
    items.push_back(Item(static_cast<uint64_t>(i), 300 + i, 200));
    at_s.push_back(i * 0.01);
  }
  for (const std::string_view policy : kRoutingPolicies) {
    options.router.policy.name = policy;
    const Outcome o = Play(options, items, at_s);
    for (const Served& r : o.requests) {
      EXPECT_EQ(r.end, Served::End::kDone) << policy;
      EXPECT_EQ(r.output_tokens, 200) << policy;
      EXPECT_GE(r.tpot_ms, 10 - 1e-3) << policy;
    }
    EXPECT_GT(o.preemptions, 0) << policy;
    EXPECT_LE(o.decode_busy, 1) << policy;
  }
}

TEST(Cluster, ARunIsAFunctionOfItsSeed) {
  ClusterOptions options = With(1, 2);
  options.fleets[0].profile.step_jitter = 0.1;
  std::vector<WorkItem> items;
  std::vector<double> at_s;
  for (int i = 0; i < 100; ++i) {
    items.push_back(Item(static_cast<uint64_t>(i % 7), 200, 20));
    at_s.push_back(i * 0.02);
  }
  const auto ttfts = [&](uint64_t seed) {
    options.seed = seed;
    std::vector<double> out;
    for (const Served& r : Play(options, items, at_s).requests) out.push_back(r.ttft_ms);
    return out;
  };
  EXPECT_EQ(ttfts(1), ttfts(1));
  EXPECT_NE(ttfts(1), ttfts(2));
}

TEST(Cluster, WhatCannotBeServedInTimeIsRefusedAtOnce) {
  ClusterOptions options = With(0, 1);
  const Objective limits{500, 0};
  options.router.slo_ttft = FromMs(500);
  std::vector<WorkItem> items;
  std::vector<double> at_s;
  // A prompt of 400 tokens takes 45 ms: they arrive three times as fast.
  for (int i = 0; i < 1200; ++i) {
    items.push_back(Item(static_cast<uint64_t>(i), 400, 2));
    at_s.push_back(i * 0.015);
  }
  EXPECT_LT(Attainment(Play(options, items, at_s, limits), limits), 0.1);
  options.objectives = true;
  const Outcome careful = Play(options, items, at_s, limits);
  int64_t late = 0, good = 0;
  for (const Served& r : careful.requests) {
    // At first the worker's speed is unknown.
    if (r.arrived_s < 9 || r.end != Served::End::kDone) continue;
    ++(r.Within(limits) ? good : late);
  }
  // Nine seconds, nearly all with work.
  EXPECT_GT(good, 0.9 * 9 / 0.045 * 0.9);
  EXPECT_LT(late, 0.05 * static_cast<double>(good));
}

TEST(Cluster, ThreeTimesTheLoadKeepsTheGoodput) {
  // Refusing early what would be late leaves the time to the others, also in the first seconds,
  // when four workers get a burst and streams slow each other down only later.
  const Objective limits{300, 12};
  ClusterOptions options = With(0, 4);
  WorkerProfile& worker = options.fleets[0].profile;
  worker.cost.decode = {2, 0.03, 3e-5};
  worker.cost.prefill = {1.5, 0.012, 6e-7, 0.03, 3e-5};
  worker.chunk_tokens = worker.max_batch_tokens = 2048;
  worker.max_running = 256;
  worker.step_jitter = 0.02;
  options.router.slo_ttft = FromMs(limits.ttft_ms);
  options.router.slo_tpot = FromMs(limits.tpot_ms);
  options.objectives = true;
  const auto good_per_s = [&](double rate) {
    std::vector<WorkItem> items;
    std::vector<double> at_s;
    SplitMix64 random(5);
    double at = 0;
    for (uint64_t i = 0; i < 3000; ++i) {
      items.push_back(Item(i, 1024, 128));
      at += -std::log(1 - random.Uniform()) / rate;
      at_s.push_back(at);
    }
    const Outcome o = Play(options, items, at_s, limits);
    return Attainment(o, limits) * static_cast<double>(items.size()) / o.seconds;
  };
  const double peak = std::max(good_per_s(120), good_per_s(160));
  EXPECT_GT(good_per_s(480), 0.9 * peak);
}

// Each router knows its own placements at once, and the rest from the workers' reports.
TEST(Cluster, ThreeRoutersPlaceAboutAsWellAsOne) {
  ClusterOptions options;
  auto fleets = ParseFleets("h200-llama-3.1-8b-fp8:8D", AISP_SOURCE_DIR "/config/workers");
  ASSERT_TRUE(fleets) << fleets.error().message;
  options.fleets = *fleets;
  const Objective limits{100, 12};
  options.router.slo_ttft = FromMs(limits.ttft_ms);
  options.router.slo_tpot = FromMs(limits.tpot_ms);
  std::vector<WorkItem> items;
  std::vector<double> at_s;
  SplitMix64 random(5);
  double at = 0;
  for (uint64_t i = 0; i < 1500; ++i) {
    items.push_back(Item(i + 1, 1024, 256));
    at_s.push_back(at);
    at -= std::log(1 - random.Uniform()) / 200;
  }
  const auto attained = [&](int routers) {
    options.routers = routers;
    const Outcome o = Play(options, items, at_s, limits);
    EXPECT_TRUE(std::all_of(o.requests.begin(), o.requests.end(), [](const Served& served) {
      return served.end == Served::End::kDone && served.output_tokens == 256;
    }));
    return Attainment(o, limits);
  };
  const double one = attained(1);
  EXPECT_GT(one, 0.99);
  EXPECT_GT(attained(3), 0.97 * one);
}

TEST(Cluster, AHopelessRunEndsEarly) {
  std::vector<WorkItem> items;
  std::vector<double> at_s;
  for (int i = 0; i < 400; ++i) {
    items.push_back(Item(static_cast<uint64_t>(i), 400, 2));
    at_s.push_back(i * 0.001);
  }
  const auto outcome = simulate::Run(With(0, 1), items, at_s, {100, 0}, /*hopeless=*/0.1);
  ASSERT_TRUE(outcome);
  EXPECT_TRUE(outcome->given_up);
  EXPECT_LT(Attainment(*outcome, {100, 0}), 0.9);
}

TEST(Cluster, StreamsKeepTheirTimeForATokenBesideLongPrompts) {
  // Steps of 512 prefill tokens take 56 ms; 30 are allowed. Two answers of four tokens each start
  // while a prompt of 4,000 is computed.
  ClusterOptions options = With(0, 1);
  const Objective limits{0, 30};
  options.router.slo_ttft = std::chrono::seconds(10);
  std::vector<WorkItem> items;
  std::vector<double> at_s;
  for (uint64_t i = 0; i < 40; ++i) {
    items.insert(items.end(),
                 {Item(3 * i, 4000, 1), Item(3 * i + 1, 20, 4), Item(3 * i + 2, 20, 4)});
    const double begin_s = 1.2 * static_cast<double>(i);
    at_s.insert(at_s.end(), {begin_s, begin_s + 0.05, begin_s + 0.2});
  }
  const auto late = [&](double told_ms) {
    options.router.slo_tpot = FromMs(told_ms);
    const Outcome o = Play(options, items, at_s, limits);
    // The first requests meet a router that knows nothing of its workers.
    return std::count_if(o.requests.begin() + 30, o.requests.end(),
                         [&](const Served& r) { return !r.Within(limits); });
  };
  EXPECT_EQ(late(limits.tpot_ms), 0);
  EXPECT_GT(late(0), 50) << "the router has no limit to tell";
}

// Shorter chunks for the streams' sake compute less: prompts then waited for ever.
TEST(Cluster, NearCapacityNeitherPromptsNorStreamsAreSacrificed) {
  ClusterOptions options;
  auto fleets = ParseFleets("h100-llama-3.1-8b-fp8:2D", AISP_SOURCE_DIR "/config/workers");
  ASSERT_TRUE(fleets) << fleets.error().message;
  options.fleets = *fleets;
  const Objective limits{300, 12};
  options.router.slo_ttft = FromMs(limits.ttft_ms);
  options.router.slo_tpot = FromMs(limits.tpot_ms);
  const auto attained = [&](int64_t input, int64_t output, double per_s) {
    std::vector<WorkItem> items;
    std::vector<double> at_s;
    SplitMix64 random(5);
    for (double at = 0; at < 20; at -= std::log(1 - random.Uniform()) / per_s) {
      items.push_back(Item(items.size() + 1, input, output));
      at_s.push_back(at);
    }
    return Attainment(Play(options, items, at_s, limits), limits);
  };
  EXPECT_GT(attained(6000, 128, 9), 0.85);
  EXPECT_GT(attained(1024, 256, 48), 0.85);
}

TEST(Cluster, APromptThatNoPoolHoldsIsAnErrorThatNamesBoth) {
  const auto outcome = simulate::Run(With(0, 1), {Item(1, 300'000, 5)}, {0}, {}, 1);
  ASSERT_FALSE(outcome);
  EXPECT_THAT(outcome.error().message, ::testing::HasSubstr("a prompt of 300000 tokens"));
  EXPECT_THAT(outcome.error().message, ::testing::HasSubstr("262144"));
}

// Interactive requests are served as if alone, and batch ones in the gaps, all in the end.
TEST(Cluster, BatchFillsValleysAndIsNotStarved) {
  ClusterOptions options = With(0, 2);
  const Objective limits{300, 60};
  options.router.slo_ttft = FromMs(limits.ttft_ms);
  options.router.slo_tpot = FromMs(limits.tpot_ms);
  options.router.max_queued = 1000;
  std::vector<WorkItem> items, alone;
  std::vector<double> at_s, alone_at_s;
  SplitMix64 random(5);
  for (int i = 0; i < 300; ++i) {
    const double t = i * 0.1;
    items.push_back(Item(random.Next(), 300, 20));
    at_s.push_back(t);
    alone.push_back(items.back());
    alone_at_s.push_back(t);
    // All batch work arrives in the first second.
    if (i >= 10) continue;
    for (int k = 0; k < 12; ++k) {
      items.push_back(Item(random.Next(), 1500, 60));
      items.back().service_class = k % 4 == 0 ? ServiceClass::kBestEffort : ServiceClass::kBatch;
      at_s.push_back(t);
    }
  }
  const Outcome both = Play(options, items, at_s, limits);
  const Outcome one = Play(options, alone, alone_at_s, limits);
  EXPECT_GE(Attainment(both, limits), Attainment(one, limits) - 0.05);
  for (const Served& r : both.requests) EXPECT_EQ(r.end, Served::End::kDone);
  // Without classes nearly all requests of the first seconds are late.
  for (WorkItem& item : items) item.service_class = ServiceClass::kInteractive;
  const Outcome mixed = Play(options, items, at_s, limits);
  EXPECT_LT(Attainment(mixed, limits), Attainment(both, limits) - 0.1);
  EXPECT_THAT(Table({{"cost", 1, both}}, limits), testing::HasSubstr("batch: 90 of 90 done"));
}

}  // namespace
}  // namespace aisp::simulate
