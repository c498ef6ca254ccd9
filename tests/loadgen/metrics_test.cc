#include "loadgen/metrics.h"

#include <gmock/gmock.h>

#include "common/random.h"

namespace aisp::loadgen {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

RequestRecord Completed(double intended_s, double sent_s, double first_s,
                        const std::vector<float>& gaps_ms, int64_t output_tokens) {
  RequestRecord r;
  r.status = RequestStatus::kCompleted;
  r.intended_s = intended_s;
  r.sent_s = sent_s;
  r.first_s = first_s;
  r.last_s = first_s;
  r.gaps_ms = gaps_ms;
  for (const float gap : gaps_ms) r.last_s += 1e-3 * static_cast<double>(gap);
  r.end_s = r.last_s;
  r.input_tokens = 10;
  r.output_tokens = output_tokens;
  r.tokens_from_usage = true;
  r.chunks = static_cast<int64_t>(gaps_ms.size()) + 1;
  r.finish_reason = "length";
  return r;
}

MetricOptions Lasting(double seconds) {
  MetricOptions options;
  options.duration_s = seconds;
  return options;
}

TEST(Percentile, IsLinearBetweenRanksAsNumPys) {
  EXPECT_DOUBLE_EQ(Percentile({1, 2, 3, 4}, 50), 2.5);
  EXPECT_DOUBLE_EQ(Percentile({1, 2, 3, 4}, 25), 1.75);
  EXPECT_DOUBLE_EQ(Percentile({1, 2, 3, 4}, 100), 4);
  EXPECT_DOUBLE_EQ(Percentile({1, 2, 3, 4}, 0), 1);
  EXPECT_DOUBLE_EQ(Percentile({7}, 99), 7);
  EXPECT_DOUBLE_EQ(Percentile({}, 99), 0);
}

TEST(Describe, GivesMeanMedianAndDeviationOfThePopulation) {
  const Distribution d = Describe({4, 2, 6, 8}, {90});
  EXPECT_EQ(d.count, 4u);
  EXPECT_DOUBLE_EQ(d.mean, 5);
  EXPECT_DOUBLE_EQ(d.median, 5);
  EXPECT_NEAR(d.std, 2.23606797749979, 1e-12);
  EXPECT_NEAR(d.percentiles[0], 7.4, 1e-12);
  EXPECT_DOUBLE_EQ(d.min, 2);
  EXPECT_DOUBLE_EQ(d.max, 8);
}

// By hand: due at 1.0, sent at 1.1, first token at 1.3, then 50, 150 and 100 ms: TTFT 300, E2EL
// 600, TPOT 300 / 3.
TEST(Summarize, LatenciesStartWhenTheRequestWasDue) {
  const std::vector<RequestRecord> records = {Completed(1.0, 1.1, 1.3, {50, 150, 100}, 4)};
  MetricOptions options;
  options.duration_s = 2;
  const Summary s = Summarize(records, options);
  EXPECT_NEAR(s.ttft_ms.mean, 300, 1e-6);
  EXPECT_NEAR(s.e2el_ms.mean, 600, 1e-3);
  EXPECT_NEAR(s.tpot_ms.mean, 100, 1e-3);
  EXPECT_NEAR(s.itl_ms.mean, 100, 1e-6);
  EXPECT_NEAR(s.itl_ms.median, 100, 1e-6);
  EXPECT_NEAR(s.lag_ms.mean, 100, 1e-6);
  EXPECT_NEAR(s.per_user_tps.mean, 10, 1e-3);
  EXPECT_DOUBLE_EQ(s.request_throughput, 0.5);
  EXPECT_DOUBLE_EQ(s.output_throughput, 2);
  EXPECT_DOUBLE_EQ(s.total_token_throughput, 7);
  EXPECT_DOUBLE_EQ(s.request_goodput, -1);
  options.latency_from_sent = true;
  EXPECT_NEAR(Summarize(records, options).ttft_ms.mean, 200, 1e-6);
}

TEST(Summarize, AChunkMayHoldManyTokens) {
  // Eight tokens in two chunks 70 ms apart: TPOT is per token, ITL per chunk.
  const Summary s = Summarize({Completed(0, 0, 0.1, {70}, 8)}, Lasting(1));
  EXPECT_NEAR(s.tpot_ms.mean, 10, 1e-3);
  EXPECT_NEAR(s.itl_ms.mean, 70, 1e-6);
}

TEST(Summarize, ARequestOfOneTokenHasNoTpot) {
  const Summary s = Summarize({Completed(0, 0, 0.1, {}, 1)}, Lasting(1));
  EXPECT_EQ(s.tpot_ms.count, 0u);
  EXPECT_EQ(s.ttft_ms.count, 1u);
}

TEST(Summarize, EveryStatusIsCountedOnceAndOnlyCompletedOnesInTheLatencies) {
  std::vector<RequestRecord> records = {Completed(0, 0, 0.1, {10}, 2), Completed(0, 0, 9, {10}, 2),
                                        Completed(0, 0, 0.1, {10}, 2)};
  records[1].status = RequestStatus::kCancelled;
  records[2].status = RequestStatus::kFailed;
  records[2].reason = "HTTP 503";
  records[2].http_status = 503;
  records[2].retries = 2;
  const Summary s = Summarize(records, Lasting(1));
  EXPECT_EQ(s.completed, 1);
  EXPECT_EQ(s.cancelled, 1);
  EXPECT_EQ(s.failed, 1);
  EXPECT_TRUE(s.adds_up());
  EXPECT_EQ(s.total_output_tokens, 2);
  EXPECT_EQ(s.cancelled_output_tokens, 4);
  EXPECT_NEAR(s.ttft_ms.max, 100, 1e-9);
  EXPECT_EQ(s.retries, 2);
  EXPECT_THAT(s.failures, ElementsAre(Pair("HTTP 503", 1)));
  EXPECT_THAT(s.failed_by_status, ElementsAre(Pair(503, 1)));
  records[0].status = RequestStatus::kPending;
  EXPECT_FALSE(Summarize(records, Lasting(1)).adds_up());
}

TEST(Goodput, CountsRequestsThatKeepAllLimits) {
  const std::vector<RequestRecord> records = {
      Completed(0, 0, 0.1, {10, 10}, 3),  // TTFT 100, TPOT 10, E2EL 120
      Completed(0, 0, 0.6, {10, 10}, 3),  // TTFT 600
      Completed(0, 0, 0.1, {90, 90}, 3),  // TPOT 90
  };
  MetricOptions options;
  options.duration_s = 2;
  options.goodput = *ParseGoodput({"ttft:500", "tpot:50"});
  EXPECT_DOUBLE_EQ(Summarize(records, options).request_goodput, 0.5);
  options.goodput = *ParseGoodput({"ttft:500"});
  EXPECT_DOUBLE_EQ(Summarize(records, options).request_goodput, 1);
  options.goodput = *ParseGoodput({"e2el:119"});
  EXPECT_DOUBLE_EQ(Summarize(records, options).request_goodput, 0);
}

TEST(Goodput, SaysWhichLimitWasNotKept) {
  MetricOptions options = Lasting(1);
  options.goodput = *ParseGoodput({"ttft:500", "tpot:50"});
  const Summary s = Summarize({Completed(0, 0, 0.6, {90, 90}, 3), Completed(0, 0, 0.1, {90}, 2),
                               Completed(0, 0, 0.1, {10}, 2)},
                              options);
  EXPECT_THAT(s.missed_limits, ElementsAre(Pair("tpot", 2), Pair("ttft", 1)));
  EXPECT_EQ(s.good_requests, 1);
}

TEST(Summarize, GivesTheLatenciesFromBothStarts) {
  // Due at 1.0 and sent at 3.0, because the client was stuck: the server was quick, but the user
  // waited.
  const Summary s = Summarize({Completed(1, 3, 3.1, {100}, 2)}, Lasting(4));
  EXPECT_NEAR(s.ttft_from_intended_ms.p99, 2100, 1e-6);
  EXPECT_NEAR(s.ttft_from_sent_ms.p99, 100, 1e-6);
  EXPECT_NEAR(s.e2el_from_intended_ms.median, 2200, 1e-3);
  EXPECT_NEAR(s.e2el_from_sent_ms.median, 200, 1e-3);
  EXPECT_NEAR(s.ttft_ms.mean, 2100, 1e-6);
}

TEST(Summarize, WhatWasNeverSentIsNotCancelled) {
  std::vector<RequestRecord> records(3, Completed(0, 0, 0.1, {10}, 2));
  records[1].status = RequestStatus::kNotSent;
  records[2].status = RequestStatus::kCancelled;
  const Summary s = Summarize(records, Lasting(1));
  EXPECT_EQ(s.not_sent, 1);
  EXPECT_EQ(s.cancelled, 1);
  EXPECT_TRUE(s.adds_up());
}

TEST(Summarize, WhatTheServerSaysIsGatheredByName) {
  auto a = Completed(0, 0, 0.1, {10}, 2), b = a;
  a.server = {{"queue_ms", 2}, {"spec.accepted", 30}};
  b.server = {{"queue_ms", 4}};
  const Summary s = Summarize({a, b}, Lasting(1));
  EXPECT_NEAR(s.server.at("queue_ms").values.mean, 3, 1e-9);
  EXPECT_EQ(s.server.at("spec.accepted").values.count, 1u);
  EXPECT_NEAR(s.server.at("spec.accepted").total, 30, 1e-9);
}

TEST(Summarize, AcceptanceIsThatOfAllDraftsTogether) {
  auto a = Completed(0, 0, 0.1, {10}, 2), b = a, old = a, without = a;
  a.server = {{"speculation.drafts", 10},
              {"speculation.drafted", 40},
              {"speculation.accepted", 30},
              {"speculation.mean_acceptance_length", 4}};
  b.server = {{"speculation.drafts", 2},
              {"speculation.drafted", 8},
              {"speculation.accepted", 0},
              {"speculation.mean_acceptance_length", 1}};
  const Summary s = Summarize({a, b, without}, Lasting(1));
  EXPECT_NEAR(s.speculation.acceptance(), 30.0 / 48, 1e-9);
  EXPECT_NEAR(s.speculation.acceptance_length(), 1 + 30.0 / 12, 1e-9);
  // A server that does not report draft tokens.
  old.server = {{"speculation.drafted", 40},
                {"speculation.accepted", 30},
                {"speculation.mean_acceptance_length", 4}};
  EXPECT_NEAR(Summarize({old}, Lasting(1)).speculation.acceptance_length(), 4, 1e-9);
  EXPECT_EQ(Summarize({without}, Lasting(1)).speculation.acceptance_length(), 0);
}

TEST(PeakOutputThroughput, IsNeverBelowTheAverage) {
  // 100 tokens at the start and 100 at the end of 1.5 s: each single second has 100, the run 133 a
  // second.
  const std::vector<RequestRecord> ends = {Completed(0, 0, 0.0, {}, 100),
                                           Completed(0, 0, 1.5, {}, 100)};
  EXPECT_NEAR(PeakOutputThroughput(ends, 1.5), 200 / 1.5, 1e-9);
  // A run of a tenth of a second.
  EXPECT_NEAR(PeakOutputThroughput({Completed(0, 0, 0.0, {50, 50}, 3)}, 0.1), 30, 1e-6);
  SplitMix64 random(1);
  for (int run = 0; run < 200; ++run) {
    const double duration_s = 0.01 + 5 * random.Uniform();
    std::vector<RequestRecord> records;
    double tokens = 0;
    for (int i = 0; i < 20; ++i) {
      const auto count = static_cast<int64_t>(1 + random.Below(30));
      records.push_back(Completed(0, 0, duration_s * random.Uniform(), {}, count));
      tokens += static_cast<double>(count);
    }
    EXPECT_GE(PeakOutputThroughput(records, duration_s), tokens / duration_s * (1 - 1e-9)) << run;
  }
}

TEST(PeakOutputThroughput, FindsTheBestSecondWhereverItBegins) {
  // Ten tokens a tenth of a second apart from 2.55 s on, in a run of ten seconds.
  std::vector<RequestRecord> burst;
  for (int i = 0; i < 10; ++i) burst.push_back(Completed(0, 0, 2.55 + 0.1 * i, {}, 1));
  EXPECT_NEAR(PeakOutputThroughput(burst, 10), 10, 1e-9);
}

TEST(PeakConcurrency, CountsOverlapsAndNotNeighbours) {
  std::vector<RequestRecord> records(4);
  const double spans[4][2] = {{0, 2}, {1, 3}, {2, 4}, {5, 6}};
  for (size_t i = 0; i < 4; ++i) {
    records[i].sent_s = spans[i][0];
    records[i].end_s = spans[i][1];
  }
  EXPECT_EQ(PeakConcurrency(records), 2);
  EXPECT_EQ(PeakConcurrency({RequestRecord()}), 0);
}

TEST(TokensPerSecond, SpreadsTokensOverTheChunksOfTheirSecond) {
  // Chunks at 0.5, 0.9 and 1.4 s with two tokens each.
  EXPECT_THAT(TokensPerSecond({Completed(0, 0, 0.5, {400, 500}, 6)}), ElementsAre(4, 2));
}

}  // namespace
}  // namespace aisp::loadgen
