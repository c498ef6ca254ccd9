// Sums and searches over rows of logits, compared with plain loops in double precision.
#include "engine/logits_row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace aisp {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Lengths up to a few vectors, and the vocabularies of models.
class LogitsRow : public testing::TestWithParam<size_t> {
 protected:
  std::vector<float> Random(float deviation) {
    std::normal_distribution<float> normal(3, deviation);
    std::vector<float> row(GetParam());
    for (float& v : row) v = normal(random_);
    return row;
  }
  // Repeats values, so that ties are decided by id.
  void Repeat(std::vector<float>& row) {
    for (size_t i = 0; i < row.size(); i += 3) row[i] = std::round(row[i]);
  }
  std::mt19937 random_{std::random_device{}()};
};

TEST_P(LogitsRow, TheSumIsThatOfDoublePrecision) {
  for (const float deviation : {0.1f, 2.0f, 10.0f, 60.0f}) {
    std::vector<float> row = Random(deviation);
    for (const bool masked : {false, true}) {
      if (masked) {
        for (size_t i = 1; i < row.size(); i += 2) row[i] = -kInfinity;
      }
      const double max = *std::max_element(row.begin(), row.end());
      double sum = 0;
      for (const float v : row) sum += std::exp(static_cast<double>(v) - max);
      EXPECT_NEAR(LogSumExp(row), max + std::log(sum), 2e-6) << deviation;
    }
  }
}

TEST_P(LogitsRow, OneTokenThatIsLeftHasAllOfIt) {
  std::vector<float> row(GetParam(), -kInfinity);
  row[GetParam() / 2] = -7.25f;
  EXPECT_EQ(LogSumExp(row), -7.25);
}

TEST_P(LogitsRow, TheGreatestAreTheFirstOfASortedRow) {
  std::vector<float> row = Random(2);
  Repeat(row);
  std::vector<TokenId> sorted(row.size());
  std::iota(sorted.begin(), sorted.end(), 0);
  std::stable_sort(sorted.begin(), sorted.end(), [&](TokenId a, TokenId b) {
    return row[static_cast<size_t>(a)] > row[static_cast<size_t>(b)];
  });
  EXPECT_EQ(ArgMax(row), sorted.front());
  for (const size_t n : {0, 1, 2, 5, 20, 64, 65, 1000}) {
    const auto end = sorted.begin() + static_cast<ptrdiff_t>(std::min(n, sorted.size()));
    EXPECT_EQ(Greatest(row, n), std::vector<TokenId>(sorted.begin(), end)) << n;
  }
  for (const float bound : {row.front(), row.back(), 3.0f, 100.0f, -kInfinity}) {
    EXPECT_EQ(CountGreater(row, bound),
              std::count_if(row.begin(), row.end(), [&](float v) { return v > bound; }));
  }
}

TEST_P(LogitsRow, AnythingThatIsNotFiniteIsFound) {
  std::vector<float> row = Random(2);
  EXPECT_TRUE(AllFinite(row));
  for (const float bad : {kInfinity, -kInfinity, std::nanf("")}) {
    for (const size_t at : {size_t{0}, row.size() / 2, row.size() - 1}) {
      const float before = std::exchange(row[at], bad);
      EXPECT_FALSE(AllFinite(row)) << bad << " at " << at;
      row[at] = before;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Lengths, LogitsRow,
                         testing::Values(1, 2, 7, 8, 9, 16, 31, 63, 64, 65, 130, 1000, 32000,
                                         128256));

}  // namespace
}  // namespace aisp
