// The HTML report: what it shows, and that it loads nothing from outside.
#include "loadgen/html_report.h"

#include <gmock/gmock.h>

#include <regex>

#include "loadgen/svg_chart.h"
#include "tests/loadgen/replay_fixture.h"

namespace aisp::loadgen {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Every element is closed by its own end tag, as an XML parser would require.
void ExpectBalanced(const std::string& html) {
  const std::regex tag("<(/?)([a-z0-9]+)[^>]*?(/?)>");
  std::vector<std::string> open;
  for (std::sregex_iterator it(html.begin(), html.end(), tag), end; it != end; ++it) {
    const std::string name = (*it)[2];
    if (name == "meta" || name == "br" || (*it)[3] == "/") continue;
    if ((*it)[1] != "/") {
      open.push_back(name);
    } else {
      ASSERT_FALSE(open.empty()) << name;
      ASSERT_EQ(open.back(), name);
      open.pop_back();
    }
  }
  EXPECT_TRUE(open.empty()) << open.back();
}

TEST(Charts, TicksAreRoundNumbersThatCoverTheRange) {
  EXPECT_THAT(Ticks(0, 10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(Ticks(0, 1400, 7), ElementsAre(0, 200, 400, 600, 800, 1000, 1200, 1400));
  EXPECT_TRUE(Ticks(3, 3, 5).empty());
}

TEST(Charts, ADistributionRisesToAHundredAtItsLargestValue) {
  const auto points = CumulativePoints({5, 1, 3});
  EXPECT_EQ(points.front(), std::pair(1.0, 0.0));
  EXPECT_EQ(points.back().first, 5);
  EXPECT_NEAR(points.back().second, 100, 1e-9);
  EXPECT_TRUE(CumulativePoints({}).empty());
}

TEST(Charts, NothingToShowIsSaid) {
  EXPECT_THAT(ChartFigure({.title = "Empty"}), HasSubstr("No request gave a value"));
}

TEST(Charts, NamesCannotBreakThePage) {
  const std::string figure = ChartFigure({.title = "<b>\"x\"",
                                          .x_label = "a&b",
                                          .series = {{"<script>", {{1, 2}, {3, 4}}, 0, false}}});
  EXPECT_THAT(figure,
              AllOf(HasSubstr("&lt;script&gt;"), Not(HasSubstr("<script>")), HasSubstr("a&amp;b")));
  ExpectBalanced(figure);
}

TEST_F(ReplayTest, APageOfARunStandsAlone) {
  Serve({.ttft_ms = 5, .tpot_ms = 1});
  const Outcome run = Run({"--num-prompts", "20", "--input-len", "8", "--output-len", "6",
                           "--goodput", "ttft:500", "tpot:100", "--cancel-rate", "0.2"});
  const std::string page = RunPage(run);
  ExpectBalanced(page);
  EXPECT_THAT(page, AllOf(HasSubstr("TTFT"), HasSubstr("Output over time"), HasSubstr("polyline"),
                          HasSubstr("ttft &lt;= 500 ms"), HasSubstr("prefers-color-scheme:dark")));
  for (const char* fetch : {"src=", "href=", "url(", "@import", "<script", "<link"}) {
    EXPECT_THAT(page, Not(HasSubstr(fetch)));
  }
}

TEST_F(ReplayTest, APageOfARunWithoutAnyAnswerIsAPageToo) {
  Serve({.cut_after = 1});
  const Outcome run = Run({"--num-prompts", "3", "--input-len", "8", "--output-len", "6"});
  const std::string page = RunPage(run);
  ExpectBalanced(page);
  EXPECT_THAT(page, AllOf(HasSubstr("Failures"), HasSubstr("No request gave a value")));
}

}  // namespace
}  // namespace aisp::loadgen
