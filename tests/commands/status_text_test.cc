#include "commands/status_text.h"

#include <gmock/gmock.h>

#include "server/overview_json.h"
#include "server/trace_json.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

TEST(StatusText, ShowsWorkersLatencyAndMoves) {
  ManualClock clock;
  LiveStats stats(&clock);
  stats.Tokens(500);
  stats.Finished({.ok = true, .ttft_ms = 20, .tpot_ms = 5});
  stats.Moved("prefill-0", "decode-0", "shm", 12);
  clock.Advance(std::chrono::seconds(1));
  WorkerStatus worker;
  worker.id = "decode-0";
  worker.role = v1::ROLE_DECODE;
  worker.state = WorkerStatus::State::kReady;
  worker.running = 3;
  worker.free_blocks = 25;
  worker.total_blocks = 100;
  worker.pid = 4711;
  const Json overview = Json::parse(OverviewJson("model \"x\"", {}, stats, {worker}));
  EXPECT_EQ(overview["workers"][0]["pid"], 4711);
  EXPECT_EQ(overview["series"]["tokens_per_s"].size(), 120u);
  EXPECT_EQ(overview["series"]["tokens_per_s"][119], 500);
  EXPECT_TRUE(overview["series"]["ttft_p50_ms"][0].is_null());
  const std::string text = OverviewText(overview, 200, false);
  EXPECT_THAT(text, HasSubstr("model \"x\"  ready"));
  EXPECT_THAT(text, HasSubstr("50 tokens/s"));  // average over ten seconds
  EXPECT_THAT(text, HasSubstr("decode-0 decode  ready"));
  EXPECT_THAT(text, HasSubstr("75 %"));
  EXPECT_THAT(text, HasSubstr("4711"));
  EXPECT_THAT(text, HasSubstr("prefill-0 -> decode-0 over shm: 12 blocks of 1 prompts"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(OverviewText(overview, 200, true), HasSubstr("\x1b[32mready"));
}

TEST(StatusText, SaysWhyARouterIsNotReadyAndNeverExceedsTheTerminal) {
  ManualClock clock;
  const LiveStats stats(&clock);
  const Json overview =
      Json::parse(OverviewJson("m", Unavailable("no decode worker is registered"), stats, {}));
  EXPECT_THAT(OverviewText(overview, 200, false),
              HasSubstr("not ready: no decode worker is registered"));
  const std::string narrow = OverviewText(overview, 30, false);
  size_t longest = 0, at = 0;
  for (size_t i = 0; i < narrow.size(); ++i) {
    if (narrow[i] != '\n') continue;
    longest = std::max(longest, i - at);
    at = i + 1;
  }
  EXPECT_LE(longest, 30u);
}

TEST(StatusText, SurvivesAnAnswerThatLacksEverything) {
  EXPECT_FALSE(OverviewText(Json::object(), 80, false).empty());
  EXPECT_FALSE(TraceText(Json::object(), 80).empty());
  EXPECT_FALSE(TraceListText(Json::object()).empty());
}

TEST(TraceText, ShowsChildrenBelowTheirParentInTheOrderOfTime) {
  SplitMix64 random(1);
  RequestTrace trace("req \"1\"", nullptr, Instant{0}, Instant{0}, 0, &random);
  const int late = trace.Begin("late", RequestTrace::kRoot, Instant{20'000'000});
  const int early = trace.Begin("early", RequestTrace::kRoot, Instant{1'000'000});
  const int inner = trace.Begin("inner", early, Instant{2'000'000});
  trace.Set(inner, "aisp.worker", "prefill-0");
  trace.SetError(late, "lost");
  trace.Finish(Instant{40'000'000});
  const std::string text = TraceText(Json::parse(TraceJson(trace, Instant{0})), 200);
  EXPECT_THAT(text, HasSubstr("request req \"1\""));
  EXPECT_LT(text.find("early"), text.find("    inner"));
  EXPECT_LT(text.find("inner"), text.find("late"));
  EXPECT_THAT(text, HasSubstr("worker=prefill-0"));
  EXPECT_THAT(text, HasSubstr("error: lost"));
}

}  // namespace
}  // namespace aisp
