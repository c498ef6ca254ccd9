// `aisp bench route`: its counts are right, and the same seed gives the same placements.
#include "bench/route.h"

#include <gtest/gtest.h>

#include "common/log.h"

namespace aisp {
namespace {

class ABenchOfTheRouter : public ::testing::Test {
 protected:
  static RouteBenchOptions Small(uint64_t seed) {
    RouteBenchOptions options;
    options.prefill = 4;
    options.decode = 12;
    options.rate = 500;
    options.requests = 400;
    options.prefixes = 20;
    options.seed = seed;
    return options;
  }
  static RouteBench Run(const RouteBenchOptions& options) {
    const auto bench = BenchRoute(options);
    EXPECT_TRUE(bench) << bench.error().message;
    return bench ? *bench : RouteBench{};
  }

  // The router's log would have two lines per request.
  LogSession log_{{.level = LogLevel::kError}};
};

TEST_F(ABenchOfTheRouter, CountsEveryRequestAndItsTime) {
  const RouteBench b = Run(Small(1));
  EXPECT_EQ(b.workers, 16);
  EXPECT_EQ(b.requests, 400);
  EXPECT_EQ(b.refused, 0);
  EXPECT_GT(b.place_p50_us, 0);
  EXPECT_LE(b.place_p50_us, b.place_p99_us);
  EXPECT_LE(b.place_p99_us, b.place_max_us);
  EXPECT_LE(b.place_mean_us, b.place_max_us);
  EXPECT_GT(b.heard_us, 0);
  // Twenty prefixes of four fifths of each prompt: the router sends most of them where they are
  // cached.
  EXPECT_GT(b.cached, 0.5);
  EXPECT_LT(b.cached, 0.8);
}

TEST_F(ABenchOfTheRouter, PlacesAlikeWithTheSameSeed) {
  const RouteBench first = Run(Small(1)), again = Run(Small(1)), other = Run(Small(2));
  EXPECT_EQ(first.placements, again.placements);
  EXPECT_EQ(first.cached, again.cached);
  EXPECT_NE(first.placements, other.placements);
}

TEST_F(ABenchOfTheRouter, RefusesWhatNobodyCanRun) {
  RouteBenchOptions options = Small(1);
  options.decode = 0;
  EXPECT_FALSE(BenchRoute(options));
  options = Small(1);
  options.policy = "coin";
  EXPECT_FALSE(BenchRoute(options));
}

}  // namespace
}  // namespace aisp
