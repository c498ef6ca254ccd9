#include "text/stop_strings.h"

#include <random>

#include <gtest/gtest.h>

namespace aisp {
namespace {

TEST(StopMatcher, FindsAStopStringAcrossTokenBorders) {
  StopMatcher m({"STOP"});
  EXPECT_EQ(m.Push("tell S").text, "tell ");
  EXPECT_EQ(m.Push("T").text, "");
  const auto last = m.Push("OP more");
  EXPECT_TRUE(last.stopped);
  EXPECT_EQ(last.text, "");
  EXPECT_EQ(last.stop, "STOP");
  EXPECT_EQ(m.Push("again").text, "");
  EXPECT_EQ(m.Flush(), "");
}

TEST(StopMatcher, GivesBackWhatTurnedOutToBeNoStopString) {
  StopMatcher m({"\n\nUser:"});
  EXPECT_EQ(m.Push("a\n\nUs").text, "a");
  EXPECT_EQ(m.held_bytes(), 4u);
  EXPECT_EQ(m.Push("e it").text, "\n\nUse it");
  EXPECT_EQ(m.Push("\n").text, "");
  EXPECT_EQ(m.Flush(), "\n");
}

TEST(StopMatcher, IncludesTheStopStringWhenAsked) {
  StopMatcher m({"</s>"}, true);
  const auto out = m.Push("x</s>y");
  EXPECT_TRUE(out.stopped);
  EXPECT_EQ(out.text, "x</s>");
}

TEST(StopMatcher, WithoutStopStringsHoldsNothingBack) {
  StopMatcher m({"", ""});
  EXPECT_EQ(m.Push("anything").text, "anything");
}

TEST(StopMatcher, OfStringsThatEndTogetherTheLongestDecides) {
  StopMatcher m({"b", "ab"});
  const auto out = m.Push("xab");
  EXPECT_EQ(out.text, "x");
  EXPECT_EQ(out.stop, "ab");
}

// Against a search over the whole text.
TEST(StopMatcher, AgreesWithASearchOverTheWholeTextForAnyChunks) {
  std::mt19937 random(7);
  const auto below = [&](uint32_t n) { return random() % n; };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (uint32_t i = 0; i < 1 + below(3); ++i) {
      std::string s;
      for (uint32_t j = 0; j < 1 + below(5); ++j) s.push_back(static_cast<char>('a' + below(2)));
      stops.push_back(s);
    }
    std::string text;
    for (uint32_t i = 0; i < below(30); ++i) text.push_back(static_cast<char>('a' + below(3)));
    size_t end = std::string::npos, begin = 0;
    for (const std::string& stop : stops) {
      const size_t at = text.find(stop);
      if (at == std::string::npos) continue;
      if (at + stop.size() < end || (at + stop.size() == end && at < begin)) {
        end = at + stop.size();
        begin = at;
      }
    }
    const std::string expected = end == std::string::npos ? text : text.substr(0, begin);
    StopMatcher m(stops);
    std::string got;
    for (size_t at = 0; at < text.size() && !m.stopped();) {
      const size_t size = 1 + below(4);
      got += m.Push(text.substr(at, size)).text;
      ASSERT_EQ(expected.substr(0, got.size()), got) << "leaked part of a stop string";
      at += size;
    }
    got += m.Flush();
    EXPECT_EQ(got, expected);
    EXPECT_EQ(m.stopped(), end != std::string::npos);
  }
}

}  // namespace
}  // namespace aisp
