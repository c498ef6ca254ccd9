// TPOT over a stream's life, compared with the same worker stepped token by token.
#include "router/stream_ahead.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace aisp {
namespace {

constexpr double kLife = 200;
constexpr double kPrompt = 1000;

StepCost Cost() {
  StepCost cost;
  cost.decode = {2, 0.01, 4e-5};
  return cost;
}

// Time of each step of a worker on which a stream begins every 1/per_s, each delaying the others by
// `delay_ms`, from an idle worker on.
std::vector<double> StepsMs(double per_s, double delay_ms, int steps) {
  std::vector<double> out, tokens;  // of each stream
  double now_ms = 0, next_ms = 0;
  for (int i = 0; i < steps; ++i) {
    double ms = 0;
    while (now_ms >= next_ms) {
      tokens.push_back(0);
      next_ms += 1e3 / per_s;
      ms += delay_ms;
    }
    double context = 0;
    for (double& t : tokens) context += kPrompt + t++;
    ms += Cost().StepMs({0, 0, static_cast<double>(tokens.size()), context});
    std::erase_if(tokens, [](double t) { return t >= kLife; });
    now_ms += ms;
    out.push_back(ms);
  }
  return out;
}

double MeanMs(const std::vector<double>& steps, size_t begin) {
  double sum = 0;
  for (size_t i = begin; i < begin + static_cast<size_t>(kLife); ++i) sum += steps[i];
  return sum / kLife;
}

StreamAhead Ahead(double rows, double age_ms, double per_s, double delay_ms) {
  StreamAhead ahead;
  ahead.cost = Cost();
  ahead.rows = rows;
  ahead.context = rows * (kPrompt + kLife / 2);
  ahead.max_rows = 256;
  ahead.age_ms = age_ms;
  ahead.prompt_tokens = kPrompt;
  ahead.answer_tokens = kLife;
  ahead.load = {per_s, delay_ms, 0, kLife, kPrompt};
  return ahead;
}

TEST(StreamAhead, ALoneStreamTakesItsOwnSteps) {
  const double ms = Ahead(1, 0, 0, 0).TokenMs();
  EXPECT_NEAR(ms, Cost().StepMs({0, 0, 1, kPrompt + kLife / 2}), 0.01);
}

TEST(StreamAhead, ASteadyLoadStaysAsItIs) {
  const std::vector<double> steps = StepsMs(20, 12, 3000);
  const double steady_ms = MeanMs(steps, 2500);
  const double rows = 20 * 1e-3 * steady_ms * kLife;
  EXPECT_NEAR(Ahead(rows, steady_ms * kLife / 2, 20, 12).TokenMs(), steady_ms, 0.04 * steady_ms);
}

// The batch of a load that has just begun is still small.
TEST(StreamAhead, GrowsWithALoadThatHasJustBegun) {
  const std::vector<double> steps = StepsMs(30, 8, 3000);
  const double first_ms = MeanMs(steps, 0);
  ASSERT_GT(first_ms, 1.3 * steps[1]);
  StreamAhead ahead = Ahead(1, 0, 30, 8);
  ahead.context = kPrompt;
  EXPECT_NEAR(ahead.TokenMs(), first_ms, 0.07 * first_ms);
}

TEST(StreamAhead, ShrinksAsTheRowsOfAnEarlierLoadEnd) {
  const StreamAhead ahead = Ahead(60, 700, 1, 0);
  const double now_ms = Cost().StepMs({0, 0, ahead.rows, ahead.context});
  EXPECT_LT(ahead.TokenMs(), 0.75 * now_ms);
  EXPECT_GT(ahead.TokenMs(), 2);
}

TEST(StreamAhead, MoreRequestsThanOnOthersMeansThatTheNextGoElsewhere) {
  StreamAhead even = Ahead(10, 300, 10, 40), full = even;
  full.more = 3;
  EXPECT_LT(full.TokenMs(), 0.95 * even.TokenMs());
  full.load.more = 3;  // as it usually is when a request is placed
  EXPECT_NEAR(full.TokenMs(), even.TokenMs(), 0.1 * even.TokenMs());
}

TEST(StreamAhead, BeyondCapacityItStaysFinite) {
  const double ms = Ahead(300, 100, 1e6, 1e4).TokenMs();
  EXPECT_TRUE(std::isfinite(ms));
  EXPECT_GT(ms, 0);
}

}  // namespace
}  // namespace aisp
