// The TPOT that is told: two predictions joined, corrected by measured values.
#include "router/tpot_forecast.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/random.h"

namespace aisp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr double kBeside = 10;

// Answers that take `factor` times as long as predicted, scattered by a tenth.
void Play(int answers, double factor, SplitMix64* random, Instant* now, TpotForecast* forecast) {
  for (int i = 0; i < answers; ++i) {
    const double predicted = 5 + random->Uniform();
    const double chance = 0.9 + 0.2 * random->Uniform();
    forecast->Learn(predicted, factor * predicted * chance, kBeside,
                    *now = *now + milliseconds(20));
  }
}

TEST(TpotForecast, LearnsByHowMuchAnswersTakeLonger) {
  SplitMix64 random(4);
  TpotForecast forecast;
  Instant now{};
  EXPECT_EQ(forecast.Median(6, now), 6);
  Play(1000, 1.15, &random, &now, &forecast);
  EXPECT_NEAR(forecast.Median(6, now), 1.15 * 6, 0.02 * 6);
  EXPECT_NEAR(forecast.Median(12, now), 1.15 * 12, 0.02 * 12) << "also where more runs";
  EXPECT_NEAR(forecast.Median(6, now + seconds(120)), 6, 0.01) << "of long ago nothing is known";
}

// Answers that run at the same time are all slow, or all fast, by the same chance.
TEST(TpotForecast, FewAnswersMoveItLittle) {
  SplitMix64 random(5);
  TpotForecast forecast;
  Instant now{};
  Play(1000, 1, &random, &now, &forecast);
  Play(30, 1.3, &random, &now, &forecast);
  EXPECT_NEAR(forecast.Median(6, now), 6, 0.05 * 6);
}

TEST(TpotForecast, FollowsWorkersThatHaveChanged) {
  SplitMix64 random(6);
  TpotForecast forecast;
  Instant now{};
  Play(2000, 1, &random, &now, &forecast);
  Play(200, 2, &random, &now, &forecast);
  EXPECT_NEAR(forecast.Median(6, now), 12, 0.12 * 12);
  Play(300, 1, &random, &now, &forecast);
  EXPECT_NEAR(forecast.Median(6, now), 6, 0.12 * 6);
}

// Most streams have no prefill rows in their steps, a few have one: the mean fits neither.
TEST(TpotForecast, TellsTheMiddleNotTheMean) {
  SplitMix64 random(5);
  TpotForecast forecast;
  Instant now{};
  for (int i = 0; i < 3000; ++i) {
    const double came = random.Uniform() < 0.2 ? 5 : 2.5 + 0.05 * random.Uniform();
    forecast.Learn(2.5, came, kBeside, now = now + milliseconds(20));
  }
  EXPECT_NEAR(forecast.Median(2.5, now), 2.5, 0.15);
}

TEST(TpotForecast, AStoppedProcessMovesItLittle) {
  SplitMix64 random(7);
  TpotForecast forecast;
  Instant now{};
  Play(500, 1, &random, &now, &forecast);
  for (int i = 0; i < 5; ++i) forecast.Learn(5, 500, kBeside, now = now + milliseconds(20));
  EXPECT_NEAR(forecast.Median(5, now), 5, 0.35);
}

TEST(TpotForecast, JoinsTwoPredictions) {
  EXPECT_DOUBLE_EQ(TpotForecast::Join(5, 5), 5);
  EXPECT_GT(TpotForecast::Join(4, 8), 4);
  EXPECT_LT(TpotForecast::Join(4, 8), 8);
  EXPECT_DOUBLE_EQ(TpotForecast::Join(4, 0), 4);
}

// The noise of recent answers is not learnt: under steady load the error is hardly larger than it.
TEST(TpotForecast, ASteadyLoadIsToldAboutAsWellAsItsMiddle) {
  SplitMix64 random(8);
  TpotForecast forecast;
  Instant now{};
  double error = 0, least = 0, drift = 0;
  for (int i = 0; i < 6000; ++i) {
    now = now + milliseconds(20);
    // Consecutive answers see nearly the same load.
    drift = 0.95 * drift + 0.05 * (random.Uniform() - 0.5);
    const double came = 5 * (1 + drift + 0.1 * (random.Uniform() - 0.5));
    if (i >= 1000) {
      error += std::abs(forecast.Median(5, now) - came);
      least += std::abs(5 - came);
    }
    forecast.Learn(5, came, kBeside, now);
  }
  EXPECT_LT(error, 1.1 * least);
}

}  // namespace
}  // namespace aisp
