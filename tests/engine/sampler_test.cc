#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "common/random.h"

namespace aisp {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

class SamplerTest : public testing::Test {
 protected:
  SampledToken Sample(const std::vector<float>& logits, uint32_t position = 0) {
    SampleRow row;
    row.position = position;
    row.params = &params_;
    row.prompt = prompt_;
    row.generated = generated_;
    row.banned = banned_;
    return Sampler(static_cast<int32_t>(logits.size())).Sample(logits, row);
  }
  // Counts of each token drawn over `n` positions.
  std::vector<int> Histogram(const std::vector<float>& logits, int n) {
    Sampler sampler(static_cast<int32_t>(logits.size()));
    std::vector<int> counts(logits.size());
    SampleRow row;
    row.params = &params_;
    for (int i = 0; i < n; ++i) {
      row.position = static_cast<uint32_t>(i);
      ++counts[static_cast<size_t>(sampler.Sample(logits, row).token)];
    }
    return counts;
  }
  SamplingParams params_;
  std::vector<TokenId> prompt_, generated_, banned_;
};

std::vector<double> Softmax(const std::vector<float>& logits, double temperature) {
  std::vector<double> p;
  for (float l : logits) p.push_back(std::exp(l / temperature));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& v : p) v /= sum;
  return p;
}

// Pearson's statistic; for k categories its mean is k - 1 and its variance 2 (k - 1).
double ChiSquare(const std::vector<int>& counts, const std::vector<double>& p) {
  const double n = std::accumulate(counts.begin(), counts.end(), 0.0);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] > 0) sum += std::pow(counts[i] - n * p[i], 2) / (n * p[i]);
  }
  return sum;
}

const std::vector<float> kTen = {0.3f, -1.0f, 2.0f, 1.9f, 0.0f, -2.5f, 1.0f, 0.7f, -0.4f, 1.5f};

TEST_F(SamplerTest, AMaskLeavesWhatItSays) {
  std::vector<float> logits(70);
  for (size_t t = 0; t < logits.size(); ++t) logits[t] = static_cast<float>(t) * 0.1f;
  std::vector<uint32_t> mask(3);
  for (const size_t t : {2u, 33u, 65u}) mask[t / 32] |= 1u << (t % 32);
  Sampler sampler(70);
  SampleRow row;
  row.params = &params_;
  row.mask = mask;
  std::vector<int> counts(70);
  for (uint32_t position = 0; position < 2000; ++position) {
    row.position = position;
    ++counts[static_cast<size_t>(sampler.Sample(logits, row).token)];
  }
  EXPECT_GT(counts[2], 0);
  EXPECT_GT(counts[33], counts[2]);
  EXPECT_EQ(counts[2] + counts[33] + counts[65], 2000);
  params_.temperature = 0;
  EXPECT_EQ(sampler.Sample(logits, row).token, 65);
  std::fill(mask.begin(), mask.end(), 0u);
  EXPECT_EQ(sampler.Sample(logits, row).status.error().code, Code::kInvalidArgument);
}

TEST_F(SamplerTest, GreedyTakesTheFirstOfTheGreatest) {
  params_.temperature = 0;
  EXPECT_EQ(Sample({1, 3, 2, 3}).token, 1);
  EXPECT_EQ(Sample(kTen).token, 2);
}

TEST_F(SamplerTest, DrawsFollowTheExactProbabilities) {
  for (float temperature : {1.0f, 0.5f, 2.0f}) {
    params_.temperature = temperature;
    params_.seed = 42;
    const double statistic =
        ChiSquare(Histogram(kTen, 20000), Softmax(kTen, static_cast<double>(temperature)));
    EXPECT_LT(statistic, 27.9) << temperature;  // the 99.9 % point of 9 degrees of freedom
  }
}

TEST_F(SamplerTest, TheShortcutDrawsWhatPlainGumbelArgmaxDraws) {
  SplitMix64 random(5);
  std::vector<float> logits(997);
  for (float scale : {0.1f, 3.0f, 12.0f}) {
    for (float& l : logits) l = (static_cast<float>(random.Uniform()) - 0.5f) * 2 * scale;
    for (uint32_t position = 0; position < 300; ++position) {
      params_.seed = position * 77;
      TokenId best = 0;
      float best_score = -kInf;
      for (uint32_t t = 0; t < logits.size(); ++t) {
        const float score = logits[t] + GumbelNoise(params_.seed, 0, position, t);
        if (score > best_score) {
          best_score = score;
          best = static_cast<TokenId>(t);
        }
      }
      ASSERT_EQ(Sample(logits, position).token, best) << scale << " " << position;
    }
  }
}

TEST_F(SamplerTest, ADrawDependsOnItsKeyAlone) {
  params_.seed = 7;
  Sampler sampler(10);
  SampleRow row;
  row.params = &params_;
  std::vector<TokenId> forward, backward;
  for (uint32_t i = 0; i < 50; ++i) {
    row.position = i;
    forward.push_back(sampler.Sample(kTen, row).token);
  }
  for (uint32_t i = 50; i-- > 0;) {
    row.position = i;
    backward.push_back(Sampler(10).Sample(kTen, row).token);
  }
  std::reverse(backward.begin(), backward.end());
  EXPECT_EQ(forward, backward);
  params_.seed = 8;
  const auto other = Histogram(kTen, 50);
  params_.seed = 7;
  EXPECT_NE(Histogram(kTen, 50), other);
  params_.choice = 1;
  EXPECT_NE(Histogram(kTen, 50), other);
}

TEST_F(SamplerTest, TopKKeepsExactlyKAndTheLowerIdOnTies) {
  params_.top_k = 3;
  const auto counts = Histogram({1, 2, 2, 2, 2, 0}, 2000);
  EXPECT_EQ(counts[0] + counts[4] + counts[5], 0);
  EXPECT_GT(std::min({counts[1], counts[2], counts[3]}), 500);
  params_.top_k = 1;
  EXPECT_EQ(Sample({1, 2, 2, 2}).token, 1);
}

TEST_F(SamplerTest, TopPKeepsTheSmallestSetThatReachesIt) {
  // Probabilities 0.5, 0.25, 0.125, 0.125.
  const std::vector<float> logits = {std::log(4.0f), std::log(8.0f), std::log(2.0f),
                                     std::log(2.0f)};
  params_.top_p = 0.7f;
  auto counts = Histogram(logits, 4000);
  EXPECT_EQ(counts[2] + counts[3], 0);
  EXPECT_LT(ChiSquare(counts, {1.0 / 3, 2.0 / 3, 0, 0}), 10.8);
  params_.top_p = 0.8f;
  counts = Histogram(logits, 4000);
  EXPECT_GT(counts[2], 0);
  EXPECT_EQ(counts[3], 0);
  params_.top_p = 0.0f;
  EXPECT_EQ(Histogram(logits, 100)[1], 100);
}

TEST_F(SamplerTest, TopPOverALargeFlatVocabularyIsExact) {
  std::vector<float> logits(3000, 0.0f);
  params_.top_p = 0.5f;
  const auto counts = Histogram(logits, 20000);
  EXPECT_EQ(std::accumulate(counts.begin() + 1501, counts.end(), 0), 0);
  EXPECT_GT(std::accumulate(counts.begin() + 1400, counts.begin() + 1500, 0), 1000);
}

TEST_F(SamplerTest, MinPIsRelativeToTheMostProbable) {
  params_.min_p = 0.3f;
  const auto counts = Histogram({std::log(10.0f), std::log(4.0f), std::log(2.0f)}, 3000);
  EXPECT_GT(counts[1], 0);
  EXPECT_EQ(counts[2], 0);
}

TEST_F(SamplerTest, FiltersApplyTogetherInTheirOrder) {
  params_.top_k = 4;     // {2, 3, 9, 6}
  params_.top_p = 0.8f;  // of their own mass: {2, 3, 9}
  params_.min_p = 0.7f;  // {2, 3}
  const auto counts = Histogram(kTen, 4000);
  for (size_t t = 0; t < counts.size(); ++t) EXPECT_EQ(counts[t] > 0, t == 2 || t == 3) << t;
}

TEST_F(SamplerTest, PenaltiesCountWhatWasGenerated) {
  params_.temperature = 0;
  generated_ = {1, 1, 2};
  params_.frequency_penalty = 0.6f;
  EXPECT_EQ(Sample({0, 2, 1.5f, 0.95f}).token, 3);  // 2 - 1.2, 1.5 - 0.6
  params_.frequency_penalty = 0;
  params_.presence_penalty = 0.6f;
  EXPECT_EQ(Sample({0, 2, 1.5f, 0.95f}).token, 1);  // 2 - 0.6
  prompt_ = {1};
  generated_ = {};
  EXPECT_EQ(Sample({0, 2, 1.5f, 0.95f}).token, 1);
}

TEST_F(SamplerTest, RepetitionPenaltyDividesPositiveAndMultipliesNegativeLogits) {
  params_.temperature = 0;
  params_.repetition_penalty = 2.0f;
  prompt_ = {1, 1};
  EXPECT_EQ(Sample({1.1f, 2.0f}).token, 0);
  EXPECT_EQ(Sample({-1.9f, -1.0f}).token, 0);
  EXPECT_EQ(Sample({0.9f, 2.0f}).token, 1);
}

TEST_F(SamplerTest, BiasAndBansDecide) {
  params_.temperature = 0;
  params_.logit_bias = {{0, 5.0f}, {99, 1.0f}};
  EXPECT_EQ(Sample({0, 2, 1}).token, 0);
  banned_ = {0};
  EXPECT_EQ(Sample({0, 2, 1}).token, 1);
  banned_ = {0, 1, 2};
  EXPECT_EQ(Sample({0, 2, 1}).status.error().code, Code::kInvalidArgument);
  params_.temperature = 1;
  banned_ = {1, 2};
  EXPECT_EQ(Sample({0, 2, 1}).token, 0);
}

TEST_F(SamplerTest, LogprobsAreThoseOfTheModelWhateverTheFilters) {
  params_.temperature = 0;
  params_.num_logprobs = 2;
  params_.logit_bias = {{5, 100.0f}};
  const SampledToken drawn = Sample(kTen);
  ASSERT_EQ(drawn.token, 5);
  ASSERT_TRUE(drawn.logprob.has_value());
  const auto p = Softmax(kTen, 1.0);
  EXPECT_NEAR(drawn.logprob->logprob, std::log(p[5]), 1e-5);
  ASSERT_EQ(drawn.logprob->top.size(), 2u);
  EXPECT_EQ(drawn.logprob->top[0].first, 2);
  EXPECT_NEAR(drawn.logprob->top[0].second, std::log(p[2]), 1e-5);
  EXPECT_EQ(drawn.logprob->top[1].first, 3);
  params_.num_logprobs = 0;
  EXPECT_TRUE(Sample(kTen).logprob->top.empty());
  params_.num_logprobs = -1;
  EXPECT_FALSE(Sample(kTen).logprob.has_value());
}

TEST_F(SamplerTest, LogitsThatAreNotFiniteFailTheRow) {
  for (float bad : {NAN, kInf, -kInf}) {
    for (float temperature : {0.0f, 1.0f}) {
      params_.temperature = temperature;
      const SampledToken token = Sample({1, 2, bad, 0});
      ASSERT_FALSE(token.status.has_value());
      EXPECT_EQ(token.status.error().code, Code::kInternal);
      EXPECT_EQ(token.token, -1);
    }
  }
  EXPECT_TRUE(Sample({1, 2, 3, 0}).status.has_value());
}

TEST_F(SamplerTest, ExtremeTemperaturesStayWithinTheDistribution) {
  params_.temperature = 1e-6f;
  EXPECT_EQ(Histogram(kTen, 100)[2], 100);
  // Logits divided by it overflow.
  params_.temperature = 1e-40f;
  EXPECT_EQ(Histogram(kTen, 100)[2], 100);
  EXPECT_EQ(Histogram({-3.0f, -1.0f, -2.0f}, 100)[1], 100);
  params_.top_p = 0.9f;
  EXPECT_EQ(Histogram(kTen, 100)[2], 100);
  params_.top_p = 1;
  params_.temperature = 1e6f;
  const auto counts = Histogram(kTen, 20000);
  EXPECT_LT(ChiSquare(counts, std::vector<double>(10, 0.1)), 27.9);
}

}  // namespace
}  // namespace aisp
