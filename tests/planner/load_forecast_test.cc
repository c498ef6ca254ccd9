#include "planner/load_forecast.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/random.h"

namespace aisp::planner {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Counters of a router whose requests end at once, read four times a second.
class Counters {
 public:
  // `each` draws the tokens of one prompt and of one answer.
  template <typename Each>
  void Run(LoadForecast* forecast, double rate, Duration time, Each each) {
    for (Duration t{}; t < time; t += milliseconds(250)) {
      now_ = now_ + milliseconds(250);
      for (due_ += rate / 4; due_ >= 1; due_ -= 1) {
        const auto [prompt, answer] = each();
        ++totals_.requests;
        ++totals_.finished;
        totals_.prompt_tokens += prompt;
        totals_.placed_tokens += prompt;
        totals_.uncached_tokens += prompt;
        totals_.new_tokens += answer;
      }
      forecast->Remember(now_, totals_);
      load = forecast->Next();
      restless = restless || forecast->Restless();
    }
  }
  Load load;
  bool restless = false;  // at any time

 private:
  Instant now_{1'000'000'000};
  RouterTotals totals_;
  double due_ = 0;
};

struct Size {
  uint64_t prompt, answer;
};
constexpr Size kLongAnswer{24, 150}, kLongPrompt{280, 8};

TEST(LoadForecast, AStepOfTheMixIsKnownWithinTwoSeconds) {
  LoadForecast forecast(seconds(8), seconds(4));
  Counters counters;
  for (const Size& size : {kLongAnswer, kLongPrompt, kLongAnswer}) {
    counters.Run(&forecast, 20, milliseconds(2250), [&] { return size; });
    EXPECT_NEAR(counters.load.prompt_tokens, static_cast<double>(size.prompt), 1);
    EXPECT_NEAR(counters.load.new_tokens, static_cast<double>(size.answer), 1);
    EXPECT_NEAR(counters.load.requests_per_s, 20, 2);
    counters.Run(&forecast, 20, seconds(28), [&] { return size; });
  }
  EXPECT_FALSE(counters.restless);
}

TEST(LoadForecast, RequestsOfAllSizesAreNoSteps) {
  LoadForecast forecast(seconds(8), seconds(4));
  Counters counters;
  SplitMix64 random(5);
  // Lognormal, the largest of a minute fifty times the median.
  const auto draw = [&](double median) {
    const double normal = std::sqrt(-2 * std::log(1 - random.Uniform())) *
                          std::cos(2 * 3.14159265 * random.Uniform());
    return static_cast<uint64_t>(1 + median * std::exp(1.2 * normal));
  };
  counters.Run(&forecast, 20, seconds(1200), [&] { return Size{draw(200), draw(40)}; });
  EXPECT_FALSE(counters.restless);
}

TEST(LoadForecast, AMixThatAlternatesIsItsMean) {
  LoadForecast forecast(seconds(8), seconds(4));
  Counters counters;
  const auto alternate = [&] {
    for (const Size& size : {kLongAnswer, kLongPrompt})
      counters.Run(&forecast, 20, seconds(6), [&] { return size; });
  };
  for (int i = 0; i < 6; ++i) alternate();
  EXPECT_TRUE(forecast.Restless());
  counters.Run(&forecast, 20, seconds(2), [] { return kLongAnswer; });
  EXPECT_LT(counters.load.new_tokens, 100) << "of a window with both";
  counters.Run(&forecast, 20, seconds(60), [] { return kLongAnswer; });
  EXPECT_FALSE(forecast.Restless());
}

}  // namespace
}  // namespace aisp::planner
