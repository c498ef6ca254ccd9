#include "bench/speculation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace aisp {
namespace {

TEST(SpeculationBench, BreaksEvenWhereAcceptedTokensPayForTheStep) {
  EXPECT_NEAR(BreakEven(1.5, 1), 0.5, 1e-9);
  EXPECT_NEAR(BreakEven(1.75, 2), 0.5, 1e-9);  // 1 + 1/2 + 1/4
  EXPECT_NEAR(BreakEven(5.0, 4), 1.0, 1e-9);
  EXPECT_NEAR(BreakEven(0.9, 4), 0.0, 1e-9);  // noise: no step costs less than a plain one
  EXPECT_TRUE(std::isinf(BreakEven(5.01, 4)));
}

TEST(SpeculationBench, TablesAndJsonSayWhatNeverPays) {
  SpeculationBenchRow all, dear, chosen;
  all.break_even = 0.25;
  dear.break_even = std::numeric_limits<double>::infinity();
  chosen.adaptive = true;
  const std::string table = ToTable({all, dear, chosen});
  EXPECT_NE(table.find("break-even"), std::string::npos);
  EXPECT_NE(table.find("0.250"), std::string::npos);
  EXPECT_NE(table.find("never"), std::string::npos);
  const std::string json = ToJson({all, dear});
  EXPECT_NE(json.find("\"break_even\": 0.2500"), std::string::npos);
  EXPECT_NE(json.find("\"break_even\": null"), std::string::npos);
}

}  // namespace
}  // namespace aisp
