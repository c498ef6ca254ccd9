#include "router/prefix_promises.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/random.h"
#include "router/answer_lengths.h"
#include "router/correction.h"

namespace aisp {
namespace {

std::vector<Hash128> Chain(uint64_t chain, uint64_t n) {
  std::vector<Hash128> out;
  for (uint64_t i = 0; i < n; ++i) out.push_back({i, chain});
  return out;
}

int32_t Strides(const PrefixDirectory& directory, const PrefixPromises& worker,
                std::span<const Hash128> prompt) {
  std::vector<int32_t> held;
  std::vector<Hash128> strides;
  PrefixPromises::Strides(prompt, &strides);
  directory.Match(strides, &held);
  return held[*worker.slot()];
}

TEST(PrefixPromises, LastUntilTheLastPromptWithThemIsComputed) {
  PrefixDirectory directory;
  PrefixPromises worker(&directory), other(&directory);
  const auto prompt = Chain(1, 40);
  const std::vector<Hash128> beginning(prompt.begin(), prompt.begin() + 19);
  worker.Add(prompt);
  worker.Add(beginning);
  EXPECT_EQ(Strides(directory, worker, prompt), 5);
  EXPECT_EQ(Strides(directory, other, prompt), 0);
  worker.Remove(prompt);
  EXPECT_EQ(Strides(directory, worker, prompt), 2) << "19 units are two strides and a part";
  worker.Remove(beginning);
  EXPECT_EQ(Strides(directory, worker, prompt), 0);
  EXPECT_EQ(directory.units(), 0u);
}

TEST(PrefixPromises, OfAWorkerThatIsGoneAreForgotten) {
  PrefixDirectory directory;
  {
    PrefixPromises worker(&directory);
    worker.Add(Chain(1, 64));
    EXPECT_EQ(directory.units(), 8u);
  }
  EXPECT_EQ(directory.units(), 0u);
}

TEST(PrefixPromises, WhatWasNeverAddedIsNotRemoved) {
  PrefixDirectory directory;
  PrefixPromises worker(&directory);
  worker.Add(Chain(1, 16));
  worker.Remove(Chain(2, 16));
  EXPECT_EQ(Strides(directory, worker, Chain(1, 16)), 2);
}

TEST(TtftCorrection, AnErrorOfTheWaitIsNotTakenOffWhatWaitsForNobody) {
  TtftCorrection correction;
  Instant now{};
  for (int i = 0; i < 50; ++i) {
    correction.Learn(/*own_ms=*/10, /*wait_ms=*/1000, /*measured_ms=*/310, now);
    correction.Learn(/*own_ms=*/10, /*wait_ms=*/0, /*measured_ms=*/12, now);
  }
  EXPECT_NEAR(correction.offset_ms.Value(now), 2, 0.5);
  EXPECT_NEAR(correction.wait_factor.Value(now), 0.3, 0.02);
}

TEST(AnswerLengths, AreLearntApartByWhatClientsAllow) {
  AnswerLengths lengths;
  EXPECT_EQ(lengths.Expected(16), 16) << "nothing is known";
  for (int i = 0; i < 30; ++i) {
    lengths.Add(20, 4);
    lengths.Add(3000, 900);
  }
  EXPECT_NEAR(lengths.Expected(20), 4, 1e-9);
  EXPECT_NEAR(lengths.Expected(4000), 900, 1e-9);
  EXPECT_EQ(lengths.Expected(0), 0);
}

TEST(EventRate, FollowsWhatComesAndFades) {
  EventRate rate;
  Instant now{};
  for (int i = 0; i < 2000; ++i) rate.Add(now = now + std::chrono::milliseconds(10));
  EXPECT_NEAR(rate.PerSecond(now), 100, 2);
  EXPECT_LT(rate.PerSecond(now + std::chrono::seconds(20)), 1);
}

TEST(SteadyRate, TakesChanceForChanceAndABurstForABurst) {
  SplitMix64 random(3);
  SteadyRate steady;
  EventRate lately;
  Instant now{};
  const auto play = [&](double per_s, double seconds) {
    const Instant end = now + FromMs(seconds * 1e3);
    while (now < end) {
      now = now - FromMs(1e3 * std::log(1 - random.Uniform()) / per_s);
      steady.Add(now, 90);
      lately.Add(now, 90);
    }
  };
  play(12, 20);
  double off = 0, lately_off = 0;
  for (int i = 0; i < 500; ++i) {
    play(12, 0.2);
    off += std::abs(steady.PerSecond(now) - 12 * 90);
    lately_off += std::abs(lately.PerSecond(now) - 12 * 90);
  }
  EXPECT_LT(off, 0.6 * lately_off);
  play(60, 0.7);
  EXPECT_GT(steady.PerSecond(now), 0.6 * 60 * 90) << "five times as many come";
}

}  // namespace
}  // namespace aisp
