// Compares two servers: which one is better, and whether the rounds agree.
#include "loadgen/versus.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "loadgen/html_report.h"
#include "tests/loadgen/replay_fixture.h"

namespace aisp::loadgen {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Outcome With(double tokens_per_s, double median_ttft_ms) {
  Outcome out;
  out.summary.output_throughput = tokens_per_s;
  out.summary.ttft_ms.median = median_ttft_ms;
  return out;
}

const VersusRow& Row(const std::vector<VersusRow>& rows, std::string_view name) {
  for (const VersusRow& row : rows) {
    if (row.name == name) return row;
  }
  ADD_FAILURE() << name;
  return rows.front();
}

TEST(Versus, RatiosAreOfTheRoundsAndSayWhetherTheyAgree) {
  const auto rows =
      CompareRounds({}, {With(100, 20), With(200, 20)}, {With(200, 10), With(100, 10)});
  const VersusRow& tokens = Row(rows, "Output throughput (tok/s)");
  EXPECT_NEAR(tokens.ratio, 1, 1e-9);
  EXPECT_NEAR(tokens.low, 0.5, 1e-9);
  EXPECT_NEAR(tokens.high, 2, 1e-9);
  EXPECT_EQ(tokens.b_better, 1u);
  const VersusRow& ttft = Row(rows, "Median TTFT (ms)");
  EXPECT_NEAR(ttft.ratio, 0.5, 1e-9);
  EXPECT_EQ(ttft.b_better, 2u);  // lower is better
  EXPECT_EQ(Row(rows, "P99 ITL (ms)").rounds, 0u);
}

TEST(Versus, ThroughputAtUnequalGpusIsComparedByGpu) {
  Options options;
  options.ab_gpus = {2, 8};
  options.ab_unequal = true;
  const auto rows = CompareRounds(options, {With(100, 20)}, {With(300, 10)});
  EXPECT_NEAR(Row(rows, "Output throughput (tok/s)").ratio, 0.75, 1e-9);
  EXPECT_NEAR(Row(rows, "Median TTFT (ms)").ratio, 0.5, 1e-9);
}

TEST_F(ReplayTest, TwoServersAreAskedTheSameByTurns) {
  Serve({.ttft_ms = 20, .tpot_ms = 4});
  std::unique_ptr<ReplayServer> slow;
  loop_.On([&] {
    slow = std::make_unique<ReplayServer>(&loop_.loop(), ReplayOptions{.ttft_ms = 60, .tpot_ms = 9},
                                          std::vector<ReplayTiming>());
    ASSERT_TRUE(slow->Start());
  });
  const Options of_a =
      Asking({"--num-prompts", "30", "--max-concurrency", "10", "--input-len", "4", "--output-len",
              "8", "--ab-rounds", "2", "--ab", "http://127.0.0.1:" + std::to_string(slow->port())});
  Options of_b = of_a;
  of_b.base_url = of_a.ab_url;
  auto a = Session::Open(of_a, {});
  auto b = Session::Open(of_b, {});
  ASSERT_TRUE(a && b);
  const auto versus = RunVersus(&*a, &*b, of_a, of_b);
  ASSERT_TRUE(versus) << versus.error().message;
  ASSERT_EQ(versus->a.size(), 2u);
  ASSERT_EQ(versus->b.size(), 2u);
  EXPECT_EQ(versus->a[0].options.seed, versus->b[0].options.seed);
  EXPECT_NE(versus->a[0].options.seed, versus->a[1].options.seed);
  // How much slower depends on the machine; no server can be faster than its pace.
  for (const Outcome& run : versus->a) EXPECT_GE(run.summary.e2el_ms.min, 20 + 7 * 4);
  for (const Outcome& run : versus->b) EXPECT_GE(run.summary.e2el_ms.min, 60 + 7 * 9);
  EXPECT_EQ(Row(versus->rows, "Median E2EL (ms)").rounds, 2u);
  EXPECT_THAT(VersusTable(of_a, *versus), HasSubstr("2 rounds"));
  const auto json = nlohmann::json::parse(VersusJson(of_a, *versus));
  EXPECT_EQ(json["runs_b"].size(), 2u);
  EXPECT_THAT(VersusPage(of_a, *versus), AllOf(HasSubstr("A against B"), HasSubstr("<svg")));
  // The same server used twice would be warm the second time.
  EXPECT_FALSE(RunVersus(&*a, &*a, of_a, of_a));
  loop_.On([&] { slow.reset(); });
}

}  // namespace
}  // namespace aisp::loadgen
