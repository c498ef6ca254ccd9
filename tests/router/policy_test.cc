#include "router/policy.h"

#include <gtest/gtest.h>

namespace aisp {
namespace {

WorkerView Decode(std::string_view id) {
  WorkerView w;
  w.worker_id = id;
  w.host_id = "host";
  w.available = true;
  w.max_rows = 16;
  w.free_blocks = 1000;
  w.total_blocks = 1000;
  return w;
}

WorkerView Prefill(std::string_view id) {
  WorkerView w = Decode(id);
  w.prefill = true;
  return w;
}

RequestSummary Request(int32_t tokens) {
  RequestSummary r;
  r.tokens = tokens;
  r.kv_bytes_per_token = 128 * 1024;
  r.num_layers = 32;
  return r;
}

TEST(CostPolicy, WithoutADecodeWorkerThePlacementIsUnavailable) {
  const WorkerView workers[] = {Prefill("p")};
  auto placement = CostPolicy().Pick(Request(100), workers);
  ASSERT_FALSE(placement);
  EXPECT_EQ(placement.error().code, Code::kUnavailable);
}

TEST(CostPolicy, UnavailableWorkersAreNotChosen) {
  WorkerView workers[] = {Decode("d0"), Decode("d1")};
  workers[0].available = false;
  EXPECT_EQ(CostPolicy().Pick(Request(100), workers)->decode, 1);
}

TEST(CostPolicy, WithoutAPrefillWorkerDecodePrefillsItselfAndSaysWhy) {
  const WorkerView workers[] = {Decode("d")};
  auto placement = CostPolicy().Pick(Request(1000), workers);
  EXPECT_EQ(placement->prefill, -1);
  EXPECT_EQ(placement->reason, RouteReason::kLocalNoPrefillWorker);
}

TEST(CostPolicy, ABusyDecodeWorkerSendsALongPromptToAnIdlePrefillWorker) {
  WorkerView workers[] = {Decode("d"), Prefill("p")};
  workers[0].rows = 12;
  workers[0].queued_prefill_tokens = 4000;
  auto placement = CostPolicy().Pick(Request(2000), workers);
  EXPECT_EQ(placement->prefill, 1);
  EXPECT_EQ(placement->reason, RouteReason::kRemotePrefill);
}

TEST(CostPolicy, AShortPromptStaysOnAnIdleDecodeWorker) {
  WorkerView workers[] = {Decode("d"), Prefill("p")};
  auto placement = CostPolicy().Pick(Request(20), workers);
  EXPECT_EQ(placement->prefill, -1);
  EXPECT_EQ(placement->reason, RouteReason::kLocalCheaper);
}

TEST(CostPolicy, ABusyPrefillWorkerMakesLocalPrefillCheaper) {
  WorkerView workers[] = {Decode("d"), Prefill("p")};
  workers[0].rows = 4;
  workers[1].queued_prefill_tokens = 100000;
  auto placement = CostPolicy().Pick(Request(2000), workers);
  EXPECT_EQ(placement->reason, RouteReason::kLocalCheaper);
}

TEST(CostPolicy, ASlowLinkMakesLocalPrefillCheaper) {
  WorkerView workers[] = {Decode("d"), Prefill("p")};
  workers[0].rows = 8;
  EXPECT_EQ(CostPolicy().Pick(Request(2000), workers)->prefill, 1);
  workers[1].transfer_bytes_per_s = 50e6;  // 2000 tokens of 128 KiB take five seconds
  EXPECT_EQ(CostPolicy().Pick(Request(2000), workers)->prefill, -1);
}

TEST(CostPolicy, APromptCachedOnDecodeNeedsNoPrefillWorker) {
  WorkerView workers[] = {Decode("d"), Prefill("p")};
  workers[0].rows = 12;
  workers[0].cached_tokens = 1984;
  auto placement = CostPolicy().Pick(Request(1995), workers);
  EXPECT_EQ(placement->prefill, -1);
  EXPECT_EQ(placement->reason, RouteReason::kLocalCached);
}

TEST(CostPolicy, TheDecodeWorkerWithTheLongerCachedPrefixWins) {
  WorkerView workers[] = {Decode("d0"), Decode("d1")};
  workers[1].cached_tokens = 1024;
  for (uint64_t tie = 0; tie < 4; ++tie) {
    RequestSummary request = Request(1500);
    request.tie_break = tie;
    EXPECT_EQ(CostPolicy().Pick(request, workers)->decode, 1);
  }
}

TEST(CostPolicy, ThePrefillWorkerWithTheLongerCachedPrefixWins) {
  WorkerView workers[] = {Decode("d"), Prefill("p0"), Prefill("p1")};
  workers[0].rows = 12;
  workers[0].queued_prefill_tokens = 8000;
  workers[2].cached_tokens = 1600;
  auto placement = CostPolicy().Pick(Request(2000), workers);
  EXPECT_EQ(placement->prefill, 2);
  EXPECT_EQ(placement->fallbacks, std::vector<int>{1});
}

TEST(CostPolicy, AFullDecodeWorkerIsAvoided) {
  WorkerView workers[] = {Decode("d0"), Decode("d1")};
  workers[0].rows = 16;
  workers[1].rows = 10;
  EXPECT_EQ(CostPolicy().Pick(Request(100), workers)->decode, 1);
}

TEST(CostPolicy, ADecodeWorkerWithoutBlocksIsAvoided) {
  WorkerView workers[] = {Decode("d0"), Decode("d1")};
  workers[0].free_blocks = 2;
  EXPECT_EQ(CostPolicy().Pick(Request(1000), workers)->decode, 1);
}

TEST(CostPolicy, EqualWorkersAreChosenByTheTieBreakAlone) {
  const WorkerView workers[] = {Decode("d0"), Decode("d1"), Decode("d2")};
  int chosen[3] = {};
  for (uint64_t tie = 0; tie < 30; ++tie) {
    RequestSummary request = Request(100);
    request.tie_break = tie;
    const int first = CostPolicy().Pick(request, workers)->decode;
    EXPECT_EQ(CostPolicy().Pick(request, workers)->decode, first) << "Pick is pure";
    ++chosen[first];
  }
  for (int count : chosen) EXPECT_EQ(count, 10);
}

TEST(CostPolicy, PredictionsAddUpForAnIdleDecodeWorker) {
  WorkerView d = Decode("d");
  d.cost = {.base_ms = 10,
            .per_prefill_token_ms = 0.1,
            .per_decode_row_ms = 1,
            .per_context_token_ms = 0};
  const WorkerView workers[] = {d};
  auto placement = CostPolicy().Pick(Request(1000), workers);
  // Two chunks of 512: two bases and a thousand tokens.
  EXPECT_NEAR(placement->ttft_ms, 2 * 10 + 1000 * 0.1, 1e-9);
  EXPECT_NEAR(placement->tpot_ms, 10 + 1, 1e-9);
}

TEST(CostPolicy, AClientsWishDecidesWhereThePromptIsComputed) {
  const WorkerView workers[] = {Decode("d"), Prefill("p")};
  RequestSummary request = Request(40);
  ASSERT_EQ(CostPolicy().Pick(request, workers)->prefill, -1);
  request.preference = PrefillPreference::kRemote;
  EXPECT_EQ(CostPolicy().Pick(request, workers)->prefill, 1);
  EXPECT_EQ(CostPolicy().Pick(request, workers)->reason, RouteReason::kForcedRemote);
  request = Request(100000);
  request.preference = PrefillPreference::kLocal;
  EXPECT_EQ(CostPolicy().Pick(request, workers)->prefill, -1);
  EXPECT_EQ(CostPolicy().Pick(request, workers)->reason, RouteReason::kForcedLocal);
}

TEST(CostPolicy, AWishForAPrefillWorkerThatIsNotThereFallsBackToLocal) {
  const WorkerView workers[] = {Decode("d")};
  RequestSummary request = Request(100);
  request.preference = PrefillPreference::kRemote;
  EXPECT_EQ(CostPolicy().Pick(request, workers)->reason, RouteReason::kLocalNoPrefillWorker);
}

TEST(CostPolicy, ATakeoverIsNamedAsOne) {
  const WorkerView workers[] = {Decode("d")};
  RequestSummary request = Request(100);
  request.takeover = true;
  EXPECT_EQ(CostPolicy().Pick(request, workers)->reason, RouteReason::kTakeover);
}

}  // namespace
}  // namespace aisp
