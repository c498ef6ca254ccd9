// Corrections of TPOT predictions by measured values.
#include "router/tpot_forecast.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/random.h"

namespace aisp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// An answer that ends before the next placement.
void Learn(double predicted_ms, double measured_ms, Instant now, TpotForecast* forecast) {
  const uint64_t changes = forecast->Placed(predicted_ms);
  forecast->Learn(predicted_ms, measured_ms, changes, now);
}

TEST(TpotForecast, TellsOnWhatOfDeviationsComesTrue) {
  const auto learn = [](double part) {
    SplitMix64 random(4);
    TpotForecast forecast;
    Instant now{};
    for (int i = 0; i < 1000; ++i) {
      now = now + milliseconds(20);
      const double off = 2 * random.Uniform() - 1;
      Learn(6 + off, 7 + part * off, now, &forecast);
    }
    return std::pair(forecast.Median(7, now), forecast.Median(7, now + seconds(60)));
  };
  EXPECT_NEAR(learn(0.3).first, 7.3, 0.15);
  EXPECT_NEAR(learn(1).first, 8, 0.1);
  EXPECT_NEAR(learn(0.3).second, 7, 0.01) << "of what was a minute ago nothing is known";
}

TEST(TpotForecast, WhereAllPredictionsWereAlikeNothingIsKnownOfDeviations) {
  TpotForecast forecast;
  Instant now{};
  for (int i = 0; i < 400; ++i) Learn(6, 7, now = now + milliseconds(20), &forecast);
  EXPECT_NEAR(forecast.Median(9, now), 10, 1e-6);
}

// Most streams have no prefill rows in their steps, a few have one: the mean fits neither.
TEST(TpotForecast, TellsTheMiddleNotTheMean) {
  SplitMix64 random(5);
  TpotForecast forecast;
  Instant now{};
  for (int i = 0; i < 3000; ++i) {
    const double came = random.Uniform() < 0.2 ? 5 : 2.5 + 0.05 * random.Uniform();
    Learn(2.5, came, now = now + milliseconds(20), &forecast);
  }
  EXPECT_NEAR(forecast.Median(2.5, now), 2.5, 0.15);
}

TEST(TpotForecast, FollowsAChangeWithinAFewDozenAnswers) {
  SplitMix64 random(6);
  TpotForecast forecast;
  Instant now{};
  const auto play = [&](int answers, double factor) {
    for (int i = 0; i < answers; ++i) {
      const double step = 5 + random.Uniform();
      const double chance = 0.9 + 0.2 * random.Uniform();
      Learn(step, factor * step * chance, now = now + milliseconds(20), &forecast);
    }
  };
  play(2000, 1.0);
  EXPECT_NEAR(forecast.Median(5.5, now), 5.5, 0.2);
  play(80, 1.5);
  EXPECT_NEAR(forecast.Median(5.5, now), 1.5 * 5.5, 0.08 * 1.5 * 5.5);
  play(80, 1.0);
  EXPECT_NEAR(forecast.Median(5.5, now), 5.5, 0.08 * 5.5);
}

// Only a small part of deviations comes true, but all of a change of the load.
TEST(TpotForecast, FollowsAnotherLoadBeforeItsFirstAnswerHasEnded) {
  SplitMix64 random(9);
  TpotForecast forecast;
  Instant now{};
  for (int i = 0; i < 1000; ++i) {
    const double off = random.Uniform() - 0.5;
    Learn(3 + off, 3.3 + 0.2 * off, now = now + milliseconds(20), &forecast);
  }
  EXPECT_NEAR(forecast.Median(3.5, now), 3.4, 0.07);
  for (int i = 0; i < 40; ++i) forecast.Placed(5 + random.Uniform() - 0.5);
  EXPECT_NEAR(forecast.Median(5, now), 5.5, 0.45);
  for (int i = 0; i < 40; ++i) forecast.Placed(5 + random.Uniform() - 0.5);
  EXPECT_NEAR(forecast.Median(5, now), 5.5, 0.35);
}

TEST(TpotForecast, AStoppedProcessMovesItLittle) {
  SplitMix64 random(7);
  TpotForecast forecast;
  Instant now{};
  for (int i = 0; i < 500; ++i)
    Learn(5, 5 * (0.95 + 0.1 * random.Uniform()), now = now + milliseconds(20), &forecast);
  for (int i = 0; i < 5; ++i) Learn(5, 500, now = now + milliseconds(20), &forecast);
  EXPECT_NEAR(forecast.Median(5, now), 5, 0.35);
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
    Learn(5, came, now, &forecast);
  }
  EXPECT_LT(error, 1.1 * least);
}

}  // namespace
}  // namespace aisp
