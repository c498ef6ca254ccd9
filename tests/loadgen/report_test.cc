#include "loadgen/report.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace aisp::loadgen {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<RequestRecord> Records() {
  std::vector<RequestRecord> records(3);
  for (RequestRecord& r : records) {
    r.status = RequestStatus::kCompleted;
    r.sent_s = 0;
    r.first_s = 0.1;
    r.last_s = r.end_s = 0.2;
    r.gaps_ms = {100};
    r.output_tokens = 2;
    r.tokens_from_usage = true;
    r.texts = {"Once upon a time"};
  }
  return records;
}

std::string Saved(const std::vector<RequestRecord>& records) {
  Options options;
  options.save_detailed = true;
  return ResultJson(options, Summarize(records, {.duration_s = 1}), {}, records);
}

TEST(Report, TheJsonHasTheKeysOfVllmBenchServe) {
  Options options;
  options.percentiles = {50, 99.9};
  const auto records = Records();
  const auto summary = Summarize(records, {.percentiles = {50, 99.9}, .duration_s = 1});
  const auto json = nlohmann::json::parse(ResultJson(options, summary, {}, records));
  for (const char* key :
       {"date", "model_id", "num_prompts", "request_rate", "burstiness", "max_concurrency",
        "duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
        "request_throughput", "request_goodput", "output_throughput", "total_token_throughput"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  for (const std::string metric : {"ttft", "tpot", "itl", "e2el"}) {
    for (const std::string what : {"mean", "median", "std", "p99", "p50", "p99.9"}) {
      EXPECT_TRUE(json.contains(what + "_" + metric + "_ms")) << what << metric;
    }
  }
  EXPECT_FALSE(json.contains("requests"));
  EXPECT_EQ(json["completed"], 3);
  EXPECT_NEAR(json["mean_ttft_ms"].get<double>(), 100, 1e-9);
}

TEST(Report, TheTableSaysWhatTheNumbersAre) {
  Options options;
  options.goodput.ttft_ms = 50;
  auto records = Records();
  records[1].status = RequestStatus::kFailed;
  records[1].reason = "HTTP 503: busy";
  const auto summary = Summarize(records, {.goodput = options.goodput, .duration_s = 1});
  const std::string table = Table(options, summary, {});
  EXPECT_THAT(table, AllOf(HasSubstr("Successful requests:"), HasSubstr("Mean TTFT (ms):"),
                           HasSubstr("(E2EL-TTFT)/(tokens-1)"), HasSubstr("P99 ITL (ms):"),
                           HasSubstr("1 x HTTP 503: busy"), HasSubstr("Request goodput")));
  EXPECT_THAT(table, AllOf(HasSubstr("within ttft <= 50 ms"), HasSubstr("beyond the limit of ttft"),
                           HasSubstr("The same from the sending")));
  options.percentile_metrics = {"ttft"};
  EXPECT_THAT(Table(options, summary, {}), Not(HasSubstr("E2EL (ms)")));
}

TEST(Report, WhatTheServerSaysStandsInTableAndJson) {
  auto records = Records();
  records[0].server = {{"queue_ms", 12.5}, {"speculation.accepted_tokens", 7}};
  const auto summary = Summarize(records, {.duration_s = 1});
  EXPECT_THAT(Table({}, summary, {}),
              AllOf(HasSubstr("usage.aisp"), HasSubstr("queue_ms"), HasSubstr("12.50"),
                    HasSubstr("speculation.accepted_tokens")));
  const auto json = nlohmann::json::parse(ResultJson({}, summary, {}, records));
  EXPECT_EQ(json["server"]["speculation.accepted_tokens"]["total"], 7);
  EXPECT_THAT(Table({}, Summarize(Records(), {.duration_s = 1}), {}), Not(HasSubstr("usage.aisp")));
}

TEST(Report, ABusyClientIsWarnedAbout) {
  EXPECT_THAT(ClientWarnings({}, {}, {.cpu_share = 0.85}), HasSubstr("85 % of a core"));
  EXPECT_EQ(ClientWarnings({}, {}, {.cpu_share = 0.2}), "");
  EXPECT_THAT(ClientWarnings({}, {}, {.loop_lag_p99_ms = 90}), HasSubstr("90 ms late"));
  Summary late;
  late.lag_ms.p99 = 80;
  EXPECT_THAT(ClientWarnings({}, late, {}), HasSubstr("sent late"));
}

TEST(Report, TheCsvHasOneRowForEachAndQuotesWhatNeedsIt) {
  auto records = Records();
  records[2].status = RequestStatus::kFailed;
  records[2].reason = "a \"b\", c";
  records[2].first_s = -1;
  const std::string csv = RequestsCsv(records, false);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 4);
  EXPECT_THAT(csv, HasSubstr("2,failed,\"a \"\"b\"\", c\",0"));
  EXPECT_THAT(csv, HasSubstr("100.000,100.000,200.000"));
}

TEST(Compare, EqualTextsAreEqualAndCancelledOnesAreLeftOut) {
  auto then = Records();
  then[1].status = RequestStatus::kCancelled;
  then[1].texts = {"Once"};
  const auto verdict = CompareTexts(Saved(then), Records());
  ASSERT_TRUE(verdict) << verdict.error().message;
  EXPECT_THAT(*verdict, HasSubstr("2 of 3 texts"));
  auto now = Records();
  now[0].status = RequestStatus::kCancelled;
  EXPECT_TRUE(CompareTexts(Saved(then), now));
}

TEST(Compare, ADifferenceNamesTheRequestAndThePlace) {
  auto now = Records();
  now[2].texts = {"Once upon a tree"};
  const auto verdict = CompareTexts(Saved(Records()), now);
  ASSERT_FALSE(verdict);
  EXPECT_EQ(verdict.error().code, Code::kDataLoss);
  EXPECT_THAT(verdict.error().message,
              AllOf(HasSubstr("1 of 3"), HasSubstr("request 2"), HasSubstr("byte 13")));
  now[2].status = RequestStatus::kFailed;
  now[2].reason = "truncated";
  EXPECT_THAT(CompareTexts(Saved(Records()), now).error().message, HasSubstr("truncated"));
}

TEST(Compare, WhatCannotBeComparedIsNoSuccess) {
  EXPECT_THAT(CompareTexts("{}", Records()).error().message, HasSubstr("--save-detailed"));
  auto fewer = Records();
  fewer.pop_back();
  EXPECT_THAT(CompareTexts(Saved(fewer), Records()).error().message, HasSubstr("--num-prompts"));
  auto cancelled = Records();
  for (auto& r : cancelled) r.status = RequestStatus::kCancelled;
  EXPECT_FALSE(CompareTexts(Saved(cancelled), Records()));
}

}  // namespace
}  // namespace aisp::loadgen
