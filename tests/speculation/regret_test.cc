// How close the chooser comes to the best fixed length, and that it never costs more than it gains.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <functional>

#include "tests/speculation/chooser_simulation.h"

namespace aisp {
namespace {

struct Machine {
  const char* name;
  double (*us)(int32_t rows);  // step time
};

// A row costs half a plain step, as with a small model on two cores.
double DearRows(int32_t rows) { return 670 + 366.0 * (rows - 1); }
// Rows are nearly free up to the next size of a captured graph; a single row has its own kernels.
double Graphs(int32_t rows) {
  if (rows == 1) return 3540;
  int32_t size = 2;
  while (size < rows) size *= 2;
  return 4000 + 30.0 * size;
}
double Convex(int32_t rows) { return 1000 + 5.0 * rows + 0.3 * rows * rows; }
// Tiles of eight rows.
double Stairs(int32_t rows) {
  const int32_t tiles = (rows + 7) / 8;
  return 1000 + 150.0 * tiles;
}

constexpr Machine kMachines[] = {
    {"dear rows", DearRows}, {"graphs", Graphs}, {"convex", Convex}, {"stairs", Stairs}};

constexpr int kWarmUp = 500;
constexpr int kSteps = 2000;

double RateOf(const World& world, uint64_t seed) {
  Simulation simulation(world, seed);
  simulation.Run(kWarmUp);
  return simulation.Run(kSteps);
}

const std::vector<double> kPublished{0.8, 0.77, 0.75, 0.72, 0.7};

std::vector<World> AllWorlds() {
  std::vector<World> all;
  for (const Machine& machine : kMachines) {
    for (const int32_t batch : {1, 8, 32}) {
      for (const double token : {0.0, 0.03}) {
        for (const double confidence : {-1.0, 0.6}) {
          for (const auto& acceptance : {kPublished, {0.2}, {0.5}, {0.95}}) {
            World w{
                .name = machine.name, .us = machine.us, .batch = batch, .acceptance = acceptance};
            w.token_us = token * machine.us(batch);
            w.confidence = confidence;
            all.push_back(w);
          }
        }
      }
    }
  }
  return all;
}

std::string Name(const World& w) {
  return fmt::format("{}, batch {}, {} us a token, sure {}, acceptance {}", w.name, w.batch,
                     w.token_us, w.confidence, w.acceptance[0]);
}

TEST(Regret, IsAFewPercentAgainstTheBestFixedLength) {
  double sum = 0;
  const std::vector<World> worlds = AllWorlds();
  for (const World& w : worlds) {
    const double regret = 1 - RateOf(w, 1) / w.BestFixed();
    EXPECT_LE(regret, 0.04) << Name(w);
    sum += regret;
  }
  EXPECT_LE(sum / static_cast<double>(worlds.size()), 0.01);
}

// Mean over all worlds: single ones are worse, because no single step tells much.
double MeanRegret(const std::function<void(World*)>& change) {
  double sum = 0;
  std::vector<World> worlds = AllWorlds();
  for (World& w : worlds) {
    change(&w);
    sum += 1 - RateOf(w, 1) / w.BestFixed();
  }
  return sum / static_cast<double>(worlds.size());
}

TEST(Regret, OfNoisyStepsGrowsSlowerThanTheirNoise) {
  const double noisy = MeanRegret([](World* w) { w->noise = 0.3, w->spikes = 0.05; });
  const double shared = MeanRegret([](World* w) { w->shared = true; });
  EXPECT_LE(noisy, 0.036);
  EXPECT_LE(shared, 0.085);
  std::printf("short of the best: %.4f and %.4f\n", noisy, shared);
}

TEST(Regret, WhatIsSeldomAcceptedCostsNearlyNothing) {
  for (World w : AllWorlds()) {
    if (w.acceptance[0] > 0.2) continue;
    for (const uint64_t seed : {2, 3}) EXPECT_GE(RateOf(w, seed) / w.FixedRate(0), 0.97) << Name(w);
  }
}

// Other load comes and goes: what one step size shows counts for all.
TEST(Regret, StaysSmallWhileTheMachineBecomesSlowerAndFaster) {
  for (World w : AllWorlds()) {
    if (w.confidence < 0 || w.batch == 32) continue;
    w.load = [](int step) {
      return std::array{1.0, 1.5, 0.7, 2.0, 1.2}[static_cast<size_t>(step) / 500 % 5];
    };
    EXPECT_LE(1 - RateOf(w, 4) / w.BestFixed(), 0.06) << Name(w);
  }
}

TEST(Regret, StaysSmallWhereTheFirstTokenOfADraftIsTheDearOne) {
  for (World w : AllWorlds()) {
    if (w.confidence < 0 || w.token_us == 0) continue;
    w.first_us = 3 * w.token_us;
    EXPECT_LE(1 - RateOf(w, 5) / w.BestFixed(), 0.06) << Name(w);
  }
}

}  // namespace
}  // namespace aisp
