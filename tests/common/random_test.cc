#include "common/random.h"

#include <cmath>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace aisp {
namespace {

struct KnownAnswer {
  uint64_t key;
  std::array<uint32_t, 4> counter;
  std::array<uint32_t, 4> expected;
};

// philox4x32, 10 rounds, of Random123's kat_vectors (D. E. Shaw Research).
constexpr KnownAnswer kKnownAnswers[] = {
    {0, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {0xffffffffffffffff,
     {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {0x299f31d0a4093822,
     {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

TEST(Philox, MatchesThePublishedKnownAnswers) {
  for (const KnownAnswer& known : kKnownAnswers) {
    EXPECT_EQ(Philox4x32(known.key, known.counter), known.expected);
  }
}

TEST(GumbelNoise, FollowsItsDocumentedKeying) {
  const uint64_t seed = 0x0123456789abcdef;
  for (uint32_t token : {0u, 1u, 2u, 3u, 4u, 127'999u}) {
    const auto words = Philox4x32(seed, {token / 4, 17, 2, 0});
    const float u = (static_cast<float>(words[token % 4] >> 9) + 0.5f) * std::ldexp(1.0f, -23);
    EXPECT_EQ(GumbelNoise(seed, 2, 17, token), -std::log(-std::log(u)));
  }
}

TEST(GumbelNoise, DiffersBySeedChoicePositionAndToken) {
  const std::set<float> draws = {GumbelNoise(1, 0, 0, 0), GumbelNoise(2, 0, 0, 0),
                                 GumbelNoise(1, 1, 0, 0), GumbelNoise(1, 0, 1, 0),
                                 GumbelNoise(1, 0, 0, 1)};
  EXPECT_EQ(draws.size(), 5u);
}

TEST(GumbelNoise, HasTheMeanAndVarianceOfTheStandardGumbelDistribution) {
  constexpr int kDraws = 200'000;
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x =
        GumbelNoise(7, 0, static_cast<uint32_t>(i / 1000), static_cast<uint32_t>(i % 1000));
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
  }
  const double mean = sum / kDraws;
  EXPECT_NEAR(mean, 0.5772, 0.015);  // Euler's constant
  EXPECT_NEAR(squares / kDraws - mean * mean, M_PI * M_PI / 6, 0.05);
}

// argmax(log p + noise) draws from p: a chi-square test with three degrees of freedom.
TEST(GumbelNoise, ArgmaxDrawsFromTheGivenDistribution) {
  const std::vector<double> p = {0.5, 0.3, 0.15, 0.05};
  std::vector<int> counts(p.size());
  constexpr int kDraws = 20'000;
  for (uint32_t position = 0; position < kDraws; ++position) {
    size_t best = 0;
    double best_score = -INFINITY;
    for (size_t token = 0; token < p.size(); ++token) {
      const double score =
          std::log(p[token]) + GumbelNoise(42, 0, position, static_cast<uint32_t>(token));
      if (score > best_score) {
        best_score = score;
        best = token;
      }
    }
    ++counts[best];
  }
  double chi_square = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double expected = p[i] * kDraws;
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  EXPECT_LT(chi_square, 16.27);  // the 99.9th percentile
}

TEST(SplitMix64, MatchesTheReferenceSequence) {
  SplitMix64 random(1234567);  // the example of the reference implementation by S. Vigna
  for (uint64_t expected : {6457827717110365317ULL, 3203168211198807973ULL, 9817491932198370423ULL,
                            4593380528125082431ULL, 16408922859458223821ULL}) {
    EXPECT_EQ(random.Next(), expected);
  }
}

TEST(SplitMix64, BelowStaysBelowAndReachesEveryValue) {
  SplitMix64 random(1);
  std::set<uint64_t> seen;
  for (int i = 0; i < 200; ++i) seen.insert(random.Below(7));
  EXPECT_EQ(seen.size(), 7u);
  EXPECT_EQ(*seen.rbegin(), 6u);
}

}  // namespace
}  // namespace aisp
