// Predictions told to clients, and how they hold: under steady load, and for requests with limits
// far beyond capacity.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "common/log.h"
#include "common/random.h"
#include "simulate/cluster.h"
#include "simulate/report.h"

namespace aisp::simulate {
namespace {

using loadgen::WorkItem;

struct Shape {
  int64_t input, output;
};

struct Load {
  std::string workers;
  std::vector<Shape> shapes;  // equally frequent
  Objective limits;
  size_t requests;
  double slower = 1;  // factor of step times over the profile
};

void SlowDown(double factor, WorkerProfile* profile) {
  StepCost& c = profile->cost;
  for (double* ms : {&c.decode.base_ms, &c.decode.per_row_ms, &c.decode.per_context_ms,
                     &c.prefill.base_ms, &c.prefill.per_token_ms, &c.prefill.per_row_ms,
                     &c.prefill.per_prefill_context_ms, &c.prefill.per_context_ms})
    *ms *= factor;
}

class Promises : public testing::Test {
 protected:
  static Outcome Play(const Load& load, double rate, bool objectives, uint64_t seed) {
    ClusterOptions options;
    const auto fleets =
        ParseFleets("h200-llama-3.1-8b-fp8:" + load.workers, AISP_SOURCE_DIR "/config/workers");
    EXPECT_TRUE(fleets) << fleets.error().message;
    options.fleets = *fleets;
    for (Fleet& fleet : options.fleets) SlowDown(load.slower, &fleet.profile);
    options.router.max_inflight = 100'000;
    options.router.slo_ttft = FromMs(load.limits.ttft_ms);
    options.router.slo_tpot = FromMs(load.limits.tpot_ms);
    options.objectives = objectives;
    options.seed = seed;
    SplitMix64 random(seed * 7919);
    std::vector<WorkItem> items(load.requests);
    std::vector<double> at_s;
    double at = 0;
    for (WorkItem& item : items) {
      const Shape& shape = load.shapes[random.Below(load.shapes.size())];
      item.parts = {{random.Next(), shape.input}};
      item.input_tokens = shape.input;
      item.output_tokens = shape.output;
      at_s.push_back(at);
      at -= std::log(1 - random.Uniform()) / rate;
    }
    auto outcome = simulate::Run(options, items, at_s, load.limits, /*hopeless=*/1);
    EXPECT_TRUE(outcome) << outcome.error().message;
    return outcome ? std::move(*outcome) : Outcome{};
  }

  // The router's log would have two lines per request.
  LogSession log_{{.level = LogLevel::kError}};
};

// Ascending relative errors of the predicted TPOT, without the first fifth.
std::vector<double> Errors(const Outcome& o) {
  std::vector<double> errors;
  for (size_t i = o.requests.size() / 5; i < o.requests.size(); ++i) {
    const Served& r = o.requests[i];
    if (r.predicted_tpot_ms <= 0 || r.tpot_ms <= 0) continue;
    errors.push_back(std::abs(r.predicted_tpot_ms / r.tpot_ms - 1));
  }
  std::sort(errors.begin(), errors.end());
  return errors;
}

// Prefill meets an answer at random: no prediction can do better than about 3.5 and 10, 7 and 20, 4
// and 44 % (the spread when the same state continues with other arrivals).
TEST_F(Promises, PredictionsOfTpotInSteadyLoad) {
  const struct {
    Load load;
    double rate, median, p90;
  } cases[] = {
      {{"4D", {{1024, 256}}, {500, 50}, 2500}, 60, 0.07, 0.16},
      {{"4D", {{6000, 512}}, {500, 50}, 1500}, 12, 0.125, 0.30},
      {{"2P2D", {{8000, 64}}, {500, 50}, 1500}, 12, 0.14, 0.48},
  };
  for (const auto& c : cases) {
    double median = 0, p90 = 0;
    for (const uint64_t seed : {1, 2, 3}) {
      const std::vector<double> errors = Errors(Play(c.load, c.rate, false, seed));
      ASSERT_GT(errors.size(), 1000u);
      median += errors[errors.size() / 2] / 3;
      p90 += errors[errors.size() * 9 / 10] / 3;
    }
    const std::string name = c.load.workers + " " + std::to_string(c.load.shapes[0].input);
    EXPECT_LT(median, c.median) << name;
    EXPECT_LT(p90, c.p90) << name;
    RecordProperty(name, std::to_string(median) + " " + std::to_string(p90));
  }
}

// Goodput in requests per second, from the first request on, when the router knows nothing of its
// workers.
double GoodPerS(const Outcome& o, const Objective& limits) {
  const auto good = std::count_if(o.requests.begin(), o.requests.end(),
                                  [&](const Served& r) { return r.Within(limits); });
  return static_cast<double>(good) / o.requests.back().arrived_s;
}

// At about capacity, and at three times that. The last ones are far slower and faster than the
// router's prior.
TEST_F(Promises, ThreeTimesTheLoadKeepsTheGoodputOfOtherShapes) {
  const struct {
    Load load;
    double rate;
  } cases[] = {
      {{"1D", {{1024, 256}}, {300, 12}, 1200}, 29},
      {{"1D", {{512, 128}}, {300, 12}, 3000}, 64},
      {{"4D", {{512, 128}}, {300, 12}, 4000}, 260},
      {{"1D", {{3000, 300}}, {500, 15}, 800}, 12},
      {{"4D", {{512, 128}, {512, 128}, {3000, 300}}, {400, 12}, 2500}, 115},
      {{"1D", {{512, 128}}, {6000, 240}, 900, /*slower=*/20}, 3.25},
      {{"2D", {{512, 128}}, {75, 3}, 6000, /*slower=*/0.25}, 500},
  };
  for (const auto& c : cases) {
    double peak = 0, thrice = 0;
    for (const uint64_t seed : {1, 2, 3, 4}) {
      const auto good = [&](double factor) {
        return GoodPerS(Play(c.load, factor * c.rate, true, seed), c.load.limits);
      };
      const double at_most = good(3);
      thrice += at_most;
      peak += std::max({good(0.9), good(1.1), at_most});
    }
    const std::string name = c.load.workers + " " + std::to_string(c.load.shapes[0].input) + " " +
                             std::to_string(c.load.slower);
    EXPECT_GE(thrice, 0.95 * peak) << name;
    RecordProperty(name, std::to_string(thrice / peak));
  }
}

// Near capacity nobody is refused for errors that do not happen.
TEST_F(Promises, LittleIsRefusedWhereNearlyAllCanBeServed) {
  const Load load{"1D", {{1024, 256}}, {300, 12}, 1200};
  int64_t refused = 0, all = 0;
  for (const uint64_t seed : {1, 2, 3}) {
    const Outcome o = Play(load, 24, true, seed);
    all += static_cast<int64_t>(o.requests.size());
    refused += std::count_if(o.requests.begin(), o.requests.end(),
                             [](const Served& r) { return r.end == Served::End::kRefused; });
  }
  EXPECT_LE(refused, all * 3 / 100);
}

}  // namespace
}  // namespace aisp::simulate
