#include "router/policy.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/random.h"
#include "router/prediction.h"
#include "tests/router/worker_views.h"

namespace aisp {
namespace {

TEST(RoutingPolicy, EveryNameMakesAPolicyThatPlacesAndGivesAReasonOfItsOwnList) {
  const WorkerView workers[] = {Decode("d0"), Prefill("p0"), Decode("d1"), Prefill("p1")};
  for (const std::string_view name : kRoutingPolicies) {
    PolicyOptions options;
    options.name = name;
    const auto policy = MakeRoutingPolicy(options);
    ASSERT_TRUE(policy) << name;
    for (const int32_t tokens : {1, 100, 5000}) {
      for (const auto preference :
           {PrefillPreference::kAuto, PrefillPreference::kRemote, PrefillPreference::kLocal}) {
        RequestSummary request = Request(tokens);
        request.preference = preference;
        const auto placement = (*policy)->Pick(request, workers);
        ASSERT_TRUE(placement) << name;
        EXPECT_FALSE(workers[placement->decode].prefill) << name;
        EXPECT_TRUE(placement->prefill < 0 || workers[placement->prefill].prefill) << name;
        const auto reasons = (*policy)->Reasons();
        EXPECT_NE(std::find(reasons.begin(), reasons.end(), placement->reason), reasons.end())
            << name << ": " << placement->reason;
        if (preference == PrefillPreference::kLocal) {
          EXPECT_EQ(placement->prefill, -1) << name;
        }
      }
    }
    EXPECT_EQ((*policy)->Pick(Request(100), {}).error().code, Code::kUnavailable) << name;
  }
}

TEST(RoutingPolicy, AnUnknownNameIsRefusedWithTheKnownOnes) {
  PolicyOptions options;
  options.name = "dice";
  const std::string message = MakeRoutingPolicy(options).error().message;
  EXPECT_NE(message.find("'dice'"), std::string::npos) << message;
  EXPECT_NE(message.find("cost, least-loaded, round-robin, power-of-two, prefix"),
            std::string::npos)
      << message;
}

TEST(RoutingPolicy, LeastLoadedTakesTheFreestWorkersOfBothRoles) {
  WorkerView workers[] = {Decode("d0"), Decode("d1"), Prefill("p0"), Prefill("p1")};
  workers[0].rows = 5;
  workers[2].queued_prefill.tokens = 100;
  const auto placement = Pick("least-loaded", Request(1000), workers);
  EXPECT_EQ(placement->decode, 1);
  EXPECT_EQ(placement->prefill, 3);
  EXPECT_EQ(placement->reason, "least-loaded");
  ASSERT_EQ(placement->fallbacks.size(), 1u);
  EXPECT_EQ(placement->fallbacks[0], 2);
}

TEST(RoutingPolicy, RoundRobinGivesEachDecodeWorkerTheSameNumber) {
  const WorkerView workers[] = {Decode("d0"), Decode("d1"), Decode("d2")};
  int counts[3] = {};
  for (uint64_t i = 0; i < 9; ++i) {
    RequestSummary request = Request(100);
    request.ordinal = i;
    request.tie_break = i * 7;
    ++counts[Pick("round-robin", request, workers)->decode];
  }
  for (const int count : counts) EXPECT_EQ(count, 3);
}

TEST(RoutingPolicy, PowerOfTwoTakesTheLessLoadedOfTwoAndReachesAll) {
  WorkerView workers[] = {Decode("d0"), Decode("d1"), Decode("d2"), Decode("d3")};
  workers[3].rows = 15;
  int counts[4] = {};
  for (uint64_t i = 0; i < 4096; ++i) {
    RequestSummary request = Request(100);
    request.tie_break = SplitMix64(i).Next();
    ++counts[Pick("power-of-two", request, workers)->decode];
  }
  // The busy one never wins; the others share the rest.
  EXPECT_EQ(counts[3], 0);
  for (int i = 0; i < 3; ++i) EXPECT_GT(counts[i], 1000);
}

TEST(RoutingPolicy, PrefixGoesWhereMostOfThePromptIsCachedWhateverTheLoad) {
  WorkerView workers[] = {Decode("d0"), Decode("d1"), Prefill("p0"), Prefill("p1")};
  workers[1].cached_tokens = 160;
  workers[1].rows = 15;
  workers[3].cached_tokens = 320;
  workers[3].queued_prefill.tokens = 9000;
  const auto placement = Pick("prefix", Request(1000), workers);
  EXPECT_EQ(placement->decode, 1);
  EXPECT_EQ(placement->prefill, 3);
}

TEST(CostPolicy, AWorkersOwnChunkSizeDecidesHowManyStepsItsPrefillTakes) {
  WorkerView workers[] = {Decode("d0"), Decode("d1")};
  for (WorkerView& w : workers) w.chunk_tokens = 256;
  workers[1].chunk_tokens = 8192;
  const auto placement = Pick("cost", Request(8000), workers);
  EXPECT_EQ(placement->decode, 1);
}

TEST(CostPolicy, InALargeClusterItFindsTheWorkersThatAreBest) {
  std::vector<std::string> names;
  for (int i = 0; i < 128; ++i) names.push_back("w" + std::to_string(i));
  std::vector<WorkerView> workers;
  for (int i = 0; i < 64; ++i) {
    workers.push_back(Decode(names[static_cast<size_t>(i)]));
    workers.back().rows = 8;
    workers.back().context_tokens = 8000;
  }
  for (int i = 64; i < 128; ++i) {
    workers.push_back(Prefill(names[static_cast<size_t>(i)]));
    workers.back().backlog_ms = 50;
  }
  workers[37].rows = 1;
  workers[37].context_tokens = 1000;
  workers[99].backlog_ms = 0;
  RequestSummary request = Request(4000);
  request.preference = PrefillPreference::kRemote;
  auto placement = Pick("cost", request, workers);
  ASSERT_TRUE(placement);
  EXPECT_EQ(placement->decode, 37);
  EXPECT_EQ(placement->prefill, 99);
  EXPECT_EQ(placement->fallbacks.size(), kMaxFallbacks);
  // A prefill worker that has nearly all of the prompt cached.
  workers[70].cached_tokens = 3984;
  EXPECT_EQ(Pick("cost", request, workers)->prefill, 70);
  // And one that is not available.
  workers[70].available = false;
  EXPECT_EQ(Pick("cost", request, workers)->prefill, 99);
}

TEST(CostPolicy, WithoutADecodeWorkerThePlacementIsUnavailable) {
  const WorkerView workers[] = {Prefill("p")};
  auto placement = Pick("cost", Request(100), workers);
  ASSERT_FALSE(placement);
  EXPECT_EQ(placement.error().code, Code::kUnavailable);
}

TEST(CostPolicy, UnavailableWorkersAreNotChosen) {
  WorkerView workers[] = {Decode("d0"), Decode("d1")};
  workers[0].available = false;
  EXPECT_EQ(Pick("cost", Request(100), workers)->decode, 1);
}

TEST(CostPolicy, WithoutAPrefillWorkerDecodePrefillsItselfAndSaysWhy) {
  const WorkerView workers[] = {Decode("d")};
  auto placement = Pick("cost", Request(1000), workers);
  EXPECT_EQ(placement->prefill, -1);
  EXPECT_EQ(placement->reason, "local-no-prefill-worker");
}

TEST(CostPolicy, ABusyDecodeWorkerSendsALongPromptToAnIdlePrefillWorker) {
  WorkerView workers[] = {Decode("d"), Prefill("p")};
  workers[0].rows = 12;
  workers[0].backlog_ms = 216;
  auto placement = Pick("cost", Request(2000), workers);
  EXPECT_EQ(placement->prefill, 1);
  EXPECT_EQ(placement->reason, "remote-prefill");
}

TEST(CostPolicy, TheLongStepThatAWorkerIsInComputesWhatIsQueuedThere) {
  WorkerView workers[] = {Decode("d")};
  workers[0].backlog_ms = 80;
  const double queued_ms = Pick("cost", Request(200), workers)->ttft_wait_ms;
  workers[0].busy_ms = 60;
  EXPECT_DOUBLE_EQ(Pick("cost", Request(200), workers)->ttft_wait_ms, queued_ms);
  workers[0].busy_ms = 200;
  EXPECT_DOUBLE_EQ(Pick("cost", Request(200), workers)->ttft_wait_ms, 200);
}

TEST(CostPolicy, AShortPromptStaysOnAnIdleDecodeWorker) {
  WorkerView workers[] = {Decode("d"), Prefill("p")};
  auto placement = Pick("cost", Request(20), workers);
  EXPECT_EQ(placement->prefill, -1);
  EXPECT_EQ(placement->reason, "local-cheaper");
}

TEST(CostPolicy, ABusyPrefillWorkerMakesLocalPrefillCheaper) {
  WorkerView workers[] = {Decode("d"), Prefill("p")};
  workers[0].rows = 4;
  workers[1].backlog_ms = 5400;
  auto placement = Pick("cost", Request(2000), workers);
  EXPECT_EQ(placement->reason, "local-cheaper");
}

TEST(CostPolicy, ASlowLinkMakesLocalPrefillCheaper) {
  WorkerView workers[] = {Decode("d"), Prefill("p")};
  workers[0].rows = 8;
  EXPECT_EQ(Pick("cost", Request(2000), workers)->prefill, 1);
  workers[1].transfer_bytes_per_s = 50e6;  // 2000 tokens of 128 KiB take five seconds
  EXPECT_EQ(Pick("cost", Request(2000), workers)->prefill, -1);
}

TEST(CostPolicy, APromptCachedOnDecodeNeedsNoPrefillWorker) {
  WorkerView workers[] = {Decode("d"), Prefill("p")};
  workers[0].rows = 12;
  workers[0].cached_tokens = 1984;
  auto placement = Pick("cost", Request(1995), workers);
  EXPECT_EQ(placement->prefill, -1);
  EXPECT_EQ(placement->reason, "local-cached");
}

TEST(CostPolicy, AShortPromptIsNotCalledCached) {
  const WorkerView workers[] = {Decode("d"), Prefill("p")};
  auto placement = Pick("cost", Request(12), workers);
  EXPECT_EQ(placement->prefill, -1);
  EXPECT_EQ(placement->reason, "local-short-prompt");
}

TEST(CostPolicy, TheDecodeWorkerWithTheLongerCachedPrefixWins) {
  WorkerView workers[] = {Decode("d0"), Decode("d1")};
  workers[1].cached_tokens = 1024;
  for (uint64_t tie = 0; tie < 4; ++tie) {
    RequestSummary request = Request(1500);
    request.tie_break = tie;
    EXPECT_EQ(Pick("cost", request, workers)->decode, 1);
  }
}

TEST(CostPolicy, ThePrefillWorkerWithTheLongerCachedPrefixWins) {
  WorkerView workers[] = {Decode("d"), Prefill("p0"), Prefill("p1")};
  workers[0].rows = 12;
  workers[0].backlog_ms = 432;
  workers[2].cached_tokens = 1600;
  auto placement = Pick("cost", Request(2000), workers);
  EXPECT_EQ(placement->prefill, 2);
  EXPECT_EQ(placement->fallbacks, std::vector<int>{1});
}

TEST(CostPolicy, AFullDecodeWorkerIsAvoided) {
  WorkerView workers[] = {Decode("d0"), Decode("d1")};
  workers[0].rows = 16;
  workers[1].rows = 10;
  EXPECT_EQ(Pick("cost", Request(100), workers)->decode, 1);
}

TEST(CostPolicy, ADecodeWorkerWithoutBlocksIsAvoided) {
  WorkerView workers[] = {Decode("d0"), Decode("d1")};
  workers[0].free_blocks = 2;
  EXPECT_EQ(Pick("cost", Request(1000), workers)->decode, 1);
}

TEST(CostPolicy, EqualWorkersAreChosenByTheTieBreakAlone) {
  const WorkerView workers[] = {Decode("d0"), Decode("d1"), Decode("d2")};
  int chosen[3] = {};
  for (uint64_t tie = 0; tie < 30; ++tie) {
    RequestSummary request = Request(100);
    request.tie_break = tie;
    const int first = Pick("cost", request, workers)->decode;
    EXPECT_EQ(Pick("cost", request, workers)->decode, first) << "Pick is pure";
    ++chosen[first];
  }
  for (int count : chosen) EXPECT_EQ(count, 10);
}

TEST(CostPolicy, PredictionsAddUpForAnIdleDecodeWorker) {
  WorkerView d = Decode("d");
  d.cost.decode = {.base_ms = 10, .per_row_ms = 1, .per_context_ms = 0};
  d.cost.prefill = {.base_ms = 10,
                    .per_token_ms = 0.1,
                    .per_prefill_context_ms = 0,
                    .per_row_ms = 1,
                    .per_context_ms = 0};
  const WorkerView workers[] = {d};
  auto placement = Pick("cost", Request(1000), workers);
  // Two chunks of 512: two base costs and a thousand tokens.
  EXPECT_NEAR(placement->ttft_ms, 2 * 10 + 1000 * 0.1, 1e-9);
  EXPECT_NEAR(placement->tpot_ms, 10 + 1, 1e-9);
}

TEST(CostPolicy, AClientsWishDecidesWhereThePromptIsComputed) {
  const WorkerView workers[] = {Decode("d"), Prefill("p")};
  RequestSummary request = Request(40);
  ASSERT_EQ(Pick("cost", request, workers)->prefill, -1);
  request.preference = PrefillPreference::kRemote;
  EXPECT_EQ(Pick("cost", request, workers)->prefill, 1);
  EXPECT_EQ(Pick("cost", request, workers)->reason, "forced-remote");
  request = Request(100000);
  request.preference = PrefillPreference::kLocal;
  EXPECT_EQ(Pick("cost", request, workers)->prefill, -1);
  EXPECT_EQ(Pick("cost", request, workers)->reason, "forced-local");
}

TEST(CostPolicy, WhatMeetsTheObjectiveComesBeforeWhatIsCheaper) {
  // The remote placement is slower overall, because its prefill worker has a queue, but the local
  // one would delay streams with a TPOT limit of 20 ms.
  WorkerView workers[] = {Decode("d"), Prefill("p")};
  workers[0].rows = 2;
  workers[0].known = true;
  workers[1].backlog_ms = 108;
  RequestSummary request = Request(2000);
  ASSERT_EQ(Pick("cost", request, workers)->prefill, -1);
  request.objective = request.others = {.ttft_ms = 1000, .tpot_ms = 3};
  EXPECT_EQ(Pick("cost", request, workers)->prefill, 1);
  // A TTFT limit that the queue would miss: then the streams are delayed.
  request.objective.ttft_ms = 200;
  const auto placement = Pick("cost", request, workers);
  EXPECT_EQ(placement->prefill, -1);
  EXPECT_TRUE(placement->meets);
}

// Only one worker meets the TTFT limit, but it would compute all again. The other one has the
// prefix and is a little late.
TEST(CostPolicy, ALimitIsNotKeptAtAnyPriceUnlessTheRequestWouldBeRefused) {
  WorkerView workers[] = {Decode("d0"), Decode("d1")};
  for (WorkerView& worker : workers) worker.known = true;
  RequestSummary request = Request(8300);
  request.arrivals_per_s = 10;
  request.prompts_part = 0.9;
  request.aggregated = true;
  const double again_ms = workers[1].cost.PromptMs(PromptWork::Of(0, 8300), 512, {});
  request.objective.ttft_ms = 1.5 * again_ms;
  workers[0].cached_tokens = 8192;
  workers[0].backlog_ms = 1.5 * again_ms;
  EXPECT_EQ(Pick("cost", request, workers)->decode, 0);
  request.refusable = true;
  EXPECT_EQ(Pick("cost", request, workers)->decode, 1);
}

// Work behind a queue delays all that arrive until the queue has caught up.
TEST(CostPolicy, ComputingCostsMoreBehindAQueueButNotMoreThanLateRequestsCanLose) {
  RequestSummary request = Request(4200);
  request.arrivals_per_s = 2;
  request.aggregated = true;
  request.objective.ttft_ms = 500;
  WorkerView worker = Decode("d");
  EXPECT_NEAR(ComputeCostMs(request, worker, 100), 0.002 * 100 * 50, 1e-9);
  worker.backlog_ms = 200;
  EXPECT_NEAR(ComputeCostMs(request, worker, 100), 0.002 * 100 * 250, 1e-9);
  worker.backlog_ms = 5000;
  EXPECT_NEAR(ComputeCostMs(request, worker, 100), 0.002 * 100 * 550, 1e-9);
}

TEST(CostPolicy, AnObjectiveThatNobodyMeetsIsSaidToBeMissedWhereThatIsKnown) {
  WorkerView workers[] = {Decode("d")};
  RequestSummary request = Request(10000);
  request.objective.ttft_ms = 50;
  EXPECT_TRUE(Pick("cost", request, workers)->meets) << "nothing has been measured yet";
  workers[0].known = true;
  EXPECT_FALSE(Pick("cost", request, workers)->meets);
  request.objective.ttft_ms = 5000;
  EXPECT_TRUE(Pick("cost", request, workers)->meets);
}

TEST(CostPolicy, WhereAPrefillWorkerDrawsTheFirstTokenNoStepOfTheDecodeWorkerIsWaitedFor) {
  auto workers = std::vector<WorkerView>{Decode("d"), Prefill("p")};
  RequestSummary request = Request(2000);
  request.preference = PrefillPreference::kRemote;
  workers[0].kv_bytes_per_token = 0;
  const double before_ms = Pick("cost", request, workers)->ttft_ms;
  request.first_token_anywhere = true;
  EXPECT_DOUBLE_EQ(Pick("cost", request, workers)->ttft_ms, before_ms) << "nobody said so";
  workers[1].first_tokens = true;
  EXPECT_DOUBLE_EQ(Pick("cost", request, workers)->ttft_ms, before_ms) << "it is not asked to";
  workers[0].first_tokens = true;
  const auto prompt_ms = [&](int32_t tokens) {
    return workers[1].cost.PromptMs(PromptWork::Of(0, tokens), workers[1].chunk_tokens, {});
  };
  const double row_ms = prompt_ms(2000) - prompt_ms(1999);
  const double step_ms = workers[0].cost.StepMs({0, 0, 1, 2000});
  EXPECT_NEAR(Pick("cost", request, workers)->ttft_ms, before_ms - step_ms + row_ms, 1e-6);
  request.first_token_anywhere = false;
  EXPECT_DOUBLE_EQ(Pick("cost", request, workers)->ttft_ms, before_ms)
      << "its draw depends on what is on the decode worker alone";
}

TEST(CostPolicy, ARemotePromptsFirstStepWaitsForPromptsThatItsDecodeWorkerStillComputes) {
  WorkerView workers[] = {Decode("d"), Prefill("p")};
  workers[0].rows = 4;
  RequestSummary request = Request(1000);
  request.preference = PrefillPreference::kRemote;
  const double free_ms = Pick("cost", request, workers)->ttft_ms;
  workers[0].backlog_ms = 10;  // done before the KV arrives
  EXPECT_DOUBLE_EQ(Pick("cost", request, workers)->ttft_ms, free_ms);
  workers[0].backlog_ms = 500;
  // A step with 512 prefill tokens takes at least 2 + 512 * 0.05 ms, a decode step 2.3 ms.
  EXPECT_GT(Pick("cost", request, workers)->ttft_ms, free_ms + 25);
  EXPECT_LT(Pick("cost", request, workers)->ttft_ms, free_ms + 60);
}

TEST(CostPolicy, WhatPredictionsWereWrongByIsAddedToThem) {
  WorkerView workers[] = {Decode("d"), Prefill("p")};
  RequestSummary request = Request(1000);
  const double before_ms = Pick("cost", request, workers)->ttft_ms;
  const double tpot_ms = Pick("cost", request, workers)->tpot_ms;
  request.preference = PrefillPreference::kLocal;
  workers[0].local_ttft.offset.value = 7;
  workers[0].tpot_extra.value = 3;
  const auto placement = Pick("cost", request, workers);
  EXPECT_NEAR(placement->ttft_ms, before_ms + 7, 1e-9);
  EXPECT_NEAR(placement->ttft_own_ms, before_ms, 1e-9);
  EXPECT_NEAR(placement->tpot_ms, tpot_ms + 3, 1e-9);
  workers[0].local_ttft.offset.value = -1e9;
  EXPECT_NEAR(Pick("cost", request, workers)->ttft_ms, 0.5 * before_ms, 1e-9)
      << "what has to be computed takes its time";
}

TEST(CostPolicy, TheWaitForOthersIsCorrectedByAFactor) {
  WorkerView workers[] = {Decode("d")};
  const RequestSummary request = Request(1000);
  const double alone_ms = Pick("cost", request, workers)->ttft_ms;
  workers[0].backlog_ms = 100;
  EXPECT_NEAR(Pick("cost", request, workers)->ttft_ms, alone_ms + 100, 1e-9);
  workers[0].local_ttft.wait_factor.value = 0.4;
  const auto placement = Pick("cost", request, workers);
  EXPECT_NEAR(placement->ttft_ms, alone_ms + 40, 1e-9);
  EXPECT_NEAR(placement->ttft_wait_ms, 100, 1e-9);
}

TEST(CostPolicy, AShortPromptDoesNotWaitForAllTheLongOnesAhead) {
  WorkerView workers[] = {Decode("d")};
  workers[0].backlog_ms = 1000;
  workers[0].queued_prompts = 2;
  // A quarter of each step of 512 tokens is for the third prompt: its 128 tokens take one step.
  const double step_ms = workers[0].cost.PromptMs(PromptWork::Of(0, 512), 512, {});
  EXPECT_LT(Pick("cost", Request(120), workers)->ttft_ms, 1.01 * step_ms);
  EXPECT_GT(Pick("cost", Request(5000), workers)->ttft_ms, 1000);
  // Deep in a prompt of 100,000 tokens a step is long, and the short prompt is part of it.
  workers[0].queued_prefill = PromptWork::Of(90'000, 10'000);
  workers[0].cost.prefill.per_prefill_context_ms = 1e-5;
  EXPECT_GT(Pick("cost", Request(120), workers)->ttft_ms, 450);
}

// A worker may report any number; the product with a step's tokens exceeds 64 bits.
TEST(CostPolicy, AQueueOfImpossibleDepthIsALongWait) {
  WorkerView workers[] = {Decode("d")};
  workers[0].backlog_ms = 1e6;
  workers[0].queued_prompts = 1;
  workers[0].chunk_tokens = 1 << 14;
  workers[0].queued_prefill = {.tokens = 1, .context = int64_t{1} << 50};
  workers[0].cost.prefill.per_prefill_context_ms = 1e-5;
  EXPECT_GT(Pick("cost", Request(120), workers)->ttft_ms, 1e6);
}

TEST(CostPolicy, ARequestFollowsThePromptThatWillLeaveItsPrefix) {
  WorkerView workers[] = {Decode("d0"), Decode("d1")};
  workers[0].promised_tokens = 4096;
  workers[0].backlog_ms = 150;
  workers[0].queued_prompts = 1;
  EXPECT_EQ(Pick("cost", Request(4200), workers)->decode, 0);
  EXPECT_EQ(Pick("prefix", Request(4200), workers)->decode, 0);
  workers[0].backlog_ms = 2000;
  workers[0].queued_prompts = 8;
  EXPECT_EQ(Pick("cost", Request(4200), workers)->decode, 1) << "not at any price";
}

TEST(CostPolicy, WhatComputingCostsTheRequestsThatComeMeanwhileCounts) {
  // For the request itself, computing the prompt again with fewer rows is slightly faster.
  WorkerView workers[] = {Decode("d0"), Decode("d1")};
  workers[0].cached_tokens = 4096;
  workers[0].rows = 12;
  workers[0].context_tokens = 12 * 4096;
  RequestSummary request = Request(4200);
  request.expected_new_tokens = 400;
  ASSERT_EQ(Pick("cost", request, workers)->decode, 1);
  request.arrivals_per_s = 20;
  EXPECT_EQ(Pick("cost", request, workers)->decode, 0);
}

TEST(CostPolicy, ComputingAnewCostsMoreWhereOtherPromptsLeaveLittleTimeForIt) {
  // As above; few requests arrive while it is computed, but many until the queue has caught up.
  WorkerView workers[] = {Decode("d0"), Decode("d1")};
  workers[0].cached_tokens = 4096;
  workers[0].rows = 12;
  workers[0].context_tokens = 12 * 4096;
  RequestSummary request = Request(4200);
  request.expected_new_tokens = 400;
  request.arrivals_per_s = 2;
  ASSERT_EQ(Pick("cost", request, workers)->decode, 1);
  request.prompts_part = 0.9;
  EXPECT_EQ(Pick("cost", request, workers)->decode, 0);
}

TEST(CostPolicy, AWishForAPrefillWorkerThatIsNotThereFallsBackToLocal) {
  const WorkerView workers[] = {Decode("d")};
  RequestSummary request = Request(100);
  request.preference = PrefillPreference::kRemote;
  EXPECT_EQ(Pick("cost", request, workers)->reason, "local-no-prefill-worker");
}

TEST(CostPolicy, ATakeoverIsNamedAsOne) {
  const WorkerView workers[] = {Decode("d")};
  RequestSummary request = Request(100);
  request.takeover = true;
  EXPECT_EQ(Pick("cost", request, workers)->reason, "takeover");
}

}  // namespace
}  // namespace aisp
