// The chooser with step times measured on a GPU (docs/notes/proposed-tokens.md): how close it comes
// to the best fixed length, at first and later.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "tests/speculation/chooser_simulation.h"

namespace aisp {
namespace {

// Milliseconds of a step by its rows, linear in between.
struct Table {
  std::vector<std::pair<int32_t, double>> ms;

  double Us(int32_t rows) const {
    for (size_t i = 1; i < ms.size(); ++i) {
      if (rows > ms[i].first && i + 1 < ms.size()) continue;
      const auto [a, at_a] = ms[i - 1];
      const auto [b, at_b] = ms[i];
      return 1e3 * (at_a + (at_b - at_a) * (rows - a) / (b - a));
    }
    return 1e3 * ms[0].second;
  }
};

struct Measured {
  const char* name;
  int32_t batch;
  int32_t most;
  double token_us;  // of an EAGLE-3 head, for all sequences
  Table table;
};

// Llama-3.1-8B, 1k tokens of context. Verify steps waited for the previous step's tokens.
const std::vector<Measured>& All() {
  static const std::vector<Measured> all = {
      {"bf16", 1, 6, 136, {{{1, 3.6}, {2, 4.0}, {4, 4.18}, {8, 4.45}, {16, 4.6}}}},
      {"bf16", 8, 7, 190, {{{8, 4.28}, {16, 4.55}, {32, 4.81}, {48, 5.3}, {64, 5.69}}}},
      {"bf16", 32, 7, 340, {{{32, 5.25}, {64, 5.9}, {128, 6.72}, {192, 8.1}, {256, 9.48}}}},
      {"bf16", 128, 3, 780, {{{128, 6.77}, {256, 10.2}, {384, 12.5}, {512, 15.6}}}},
      {"fp8", 1, 6, 136, {{{1, 2.05}, {2, 2.6}, {4, 2.82}, {8, 3.07}, {16, 3.2}}}},
      {"fp8", 8, 7, 180, {{{8, 2.83}, {16, 3.1}, {32, 3.41}, {48, 4.0}, {64, 4.54}}}},
      {"fp8", 32, 7, 300, {{{32, 3.92}, {64, 5.0}, {128, 6.34}, {192, 7.7}, {256, 9.0}}}},
      {"fp8", 128, 3, 580, {{{128, 6.44}, {256, 8.8}, {384, 10.98}, {512, 13.4}}}},
  };
  return all;
}

// As in engine/graph_sizes.h.
const std::vector<int32_t> kSizes{1,   2,   4,   8,   16,  24,  32,  48,  64,  96, 128,
                                  160, 192, 224, 256, 320, 384, 448, 512, 576, 640};

const std::vector<double> kPublished{0.8, 0.77, 0.75, 0.72, 0.7};

World WorldOf(const Measured& m, bool costly) {
  World w;
  w.name = fmt::format("{} batch {} {}", m.name, m.batch, costly ? "eagle3" : "free");
  w.us = [&m](int32_t rows) { return m.table.Us(rows); };
  w.batch = m.batch;
  w.most = m.most;
  w.acceptance = kPublished;
  w.noise = 0.02;
  w.ahead = true;
  w.wait_us = 150;
  w.sizes = kSizes;
  if (costly) w.token_us = m.token_us, w.take_up_us = 10 + 0.3 * m.batch;
  return w;
}

struct Kind {
  const char* name;
  std::vector<double> acceptance, others;
};

const std::vector<Kind>& Kinds() {
  static const std::vector<Kind> kinds = {{"published", kPublished, {}},
                                          {"0.2", {0.2}, {}},
                                          {"0.5", {0.5}, {}},
                                          {"mixed", {0.9}, {0.2}}};
  return kinds;
}

constexpr double kTokensOfABench = 192;
constexpr int kWarmUp = 500, kSteps = 1500;

// Relative to the best fixed length.
struct Outcome {
  double first_steps = 0, later = 0;
};

struct Summary {
  Outcome mean, worst{1, 1};
  double worst_of_plain = 1;
};

Summary RunAll(double noise) {
  Summary all;
  int count = 0;
  for (const Kind& kind : Kinds()) {
    for (const Measured& m : All()) {
      for (const bool costly : {false, true}) {
        World w = WorldOf(m, costly);
        w.acceptance = kind.acceptance, w.others = kind.others;
        w.noise = noise;
        Simulation s(w, 1);
        Outcome o;
        o.first_steps = std::min(1.0, s.RunTokens(kTokensOfABench) / w.BestFixed());
        s.Run(kWarmUp);
        const double rate = s.Run(kSteps);
        o.later = std::min(1.0, rate / w.BestFixed());
        const double of_plain = rate / w.FixedRate(0);
        if (noise < 0.1) {
          EXPECT_GE(o.later, 0.955) << w.name << ", acceptance " << kind.name;
          EXPECT_GE(of_plain, 0.98) << w.name << ", acceptance " << kind.name;
        }
        ++count;
        all.mean.first_steps += (o.first_steps - all.mean.first_steps) / count;
        all.mean.later += (o.later - all.mean.later) / count;
        all.worst.first_steps = std::min(all.worst.first_steps, o.first_steps);
        all.worst.later = std::min(all.worst.later, o.later);
        all.worst_of_plain = std::min(all.worst_of_plain, of_plain);
      }
    }
  }
  std::printf(
      "noise %.2f, of the best fixed length: %.4f, worst %.3f; of plain, worst %.3f; "
      "the first 192 tokens %.4f, worst %.3f\n",
      noise, all.mean.later, all.worst.later, all.worst_of_plain, all.mean.first_steps,
      all.worst.first_steps);
  return all;
}

TEST(DeviceRegret, IsAFewPercentFromTheFirstStepsOn) {
  const Summary all = RunAll(0.02);
  EXPECT_GE(all.mean.later, 0.99);
  EXPECT_GE(all.mean.first_steps, 0.975);
  EXPECT_GE(all.worst.first_steps, 0.90);
}

TEST(DeviceRegret, GrowsSlowerThanTheNoiseOfSteps) {
  EXPECT_GE(RunAll(0.3).mean.later, 0.975);
  EXPECT_GE(RunAll(0.5).mean.later, 0.96);
}

// The acceptance rate changes as requests come and go: speculation must be switched on and off.
TEST(DeviceRegret, FollowsHowOftenTokensStand) {
  for (const Measured& m : All()) {
    for (const bool costly : {false, true}) {
      World w = WorldOf(m, costly);
      World good = w, bad = w;
      bad.acceptance = {0.2};
      w.acceptance = {};
      double rate = 0, best = 0;
      Simulation s(bad, 1);
      for (int phase = 0; phase < 6; ++phase) {
        const World& now = phase % 2 == 0 ? bad : good;
        s.SetAcceptance(now.acceptance);
        rate += s.Run(1000), best += now.BestFixed();
      }
      EXPECT_GE(rate / best, 0.90) << w.name;
      std::printf("%s: %.3f of the best, while acceptance changes every 1000 steps\n",
                  w.name.c_str(), rate / best);
    }
  }
}

// Medusa heads with a small model: a draft takes the same time at any length, and only whole drafts
// pay. The first of each length is delayed, because its graph is captured then.
World MedusaWorld(double noise, double wait_us, double verify_us) {
  World w;
  w.us = [verify_us](int32_t rows) { return rows == 1 ? 100.0 : verify_us + 2 * rows; };
  w.most = 4;
  w.acceptance = {0.9, 0.83, 0.8, 0.75};
  w.first_us = 60, w.at_once = true, w.held_up_us = 3000;
  w.noise = noise, w.ahead = true, w.wait_us = wait_us, w.take_up_us = 5;
  w.sizes = kSizes;
  return w;
}

TEST(DeviceRegret, DraftsThatAreMadeAtOnceAreChosenWhole) {
  double first = 0, worst = 1, of_plain = 1;
  int count = 0;
  for (const double noise : {0.02, 0.1, 0.3}) {
    for (const double wait_us : {20.0, 60.0, 100.0}) {
      for (const double verify_us : {160.0, 200.0}) {
        World w = MedusaWorld(noise, wait_us, verify_us), bad = w;
        bad.acceptance = {0.2};
        double later = 0, kept = 0;
        for (const uint64_t seed : {1, 2, 3, 4}) {
          Simulation s(w, seed), none(bad, seed);
          first += s.RunTokens(450) / w.FixedRate(4), ++count;
          s.Run(kWarmUp), none.Run(kWarmUp);
          later += s.Run(kSteps) / w.FixedRate(4) / 4;
          kept += none.Run(kSteps) / bad.FixedRate(0) / 4;
        }
        EXPECT_GE(later, 0.96) << "noise " << noise << ", " << wait_us << ", " << verify_us;
        worst = std::min(worst, later), of_plain = std::min(of_plain, kept);
      }
    }
  }
  std::printf("of whole drafts: worst %.3f, the first 450 tokens %.3f; of plain, worst %.3f\n",
              worst, first / count, of_plain);
  EXPECT_GE(first / count, 0.87);
  // A twentieth of a plain step goes into feeding the heads, with drafts or without.
  EXPECT_GE(of_plain, 0.87);
}

}  // namespace
}  // namespace aisp
