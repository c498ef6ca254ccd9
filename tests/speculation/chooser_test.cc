#include <gtest/gtest.h>

#include "common/random.h"
#include "speculation/draft_chooser.h"

namespace aisp {
namespace {

Duration Micros(double us) { return std::chrono::nanoseconds(static_cast<int64_t>(us * 1000)); }

// Steps of base + each * rows microseconds.
VerifyCost Fitted(double base, double each) {
  VerifyCost cost;
  for (int round = 0; round < 20; ++round) {
    for (int32_t rows = 1; rows <= 200; rows = cost.LastLike(rows + 1))
      cost.Add(rows, 0, 100 * rows, Micros(base + each * rows));
  }
  return cost;
}

VerifyStep Shape(int32_t sequences) {
  VerifyStep shape;
  shape.rows = shape.sequences = sequences;
  shape.context_tokens = 100 * sequences;
  shape.max_drafts = 1000;
  return shape;
}

std::vector<DraftCandidate> Candidates(int32_t sequences, int32_t length, double acceptance) {
  std::vector<DraftCandidate> all;
  double together = 1;
  for (int32_t at = 0; at < length; ++at) {
    together *= acceptance;
    for (int32_t s = 0; s < sequences; ++s) all.push_back({s, at, together});
  }
  return all;
}

TEST(VerifyCost, FollowsWhatStepsTook) {
  const VerifyCost cost = Fitted(1000, 10);
  for (const int32_t rows : {1, 3, 8, 24, 100})
    EXPECT_NEAR(cost.Predict(rows, 0, 100 * rows), (1000 + 10 * rows) * 1e-6, 1e-5) << rows;
}

TEST(VerifyCost, LearnsTheContextBesideTheRows) {
  VerifyCost cost;
  for (int i = 0; i < 400; ++i) {
    const int64_t context = 100 + (i * 37) % 1000;
    cost.Add(4, 0, context, Micros(500 + 0.2 * static_cast<double>(context)));
  }
  EXPECT_NEAR(cost.Predict(4, 0, 3000), 1100e-6, 60e-6);
}

TEST(VerifyCost, OneStepThatWasHeldUpCountsLittle) {
  VerifyCost cost = Fitted(1000, 10);
  cost.Add(4, 0, 400, std::chrono::seconds(5));
  EXPECT_LT(cost.Predict(4, 0, 400), 1.2e-3);
}

TEST(VerifyCost, TakesStepsThatArePaddedToOneSizeForEqual) {
  VerifyCost cost;
  cost.PadTo(std::vector<int32_t>{1, 2, 4, 8});
  for (int i = 0; i < 20; ++i) {
    cost.Add(1, 0, 100, Micros(1000));
    cost.Add(5, 4, 500, Micros(1400));
  }
  for (const int32_t rows : {5, 6, 8})
    EXPECT_NEAR(cost.Predict(rows, rows - 1, 100 * rows), 1400e-6, 20e-6) << rows;
  EXPECT_EQ(cost.LastLike(3), 4);
  EXPECT_EQ(cost.LastLike(9), 9);
  // Steps without drafts are kept apart, even with the same number of rows.
  for (int i = 0; i < 20; ++i) cost.Add(8, 0, 800, Micros(1100));
  EXPECT_NEAR(cost.Predict(8, 7, 800), 1400e-6, 20e-6);
  EXPECT_NEAR(cost.Predict(8, 0, 800), 1100e-6, 20e-6);
}

TEST(ChooseDrafts, TriesThemBesideManySequencesOfWhichOnlyPlainStepsAreKnown) {
  VerifyCost cost;
  for (int i = 0; i < 20; ++i) cost.Add(128, 0, 12800, Micros(6770));
  EXPECT_GE(ChooseDrafts(Candidates(128, 3, 0.8), Shape(128), cost), 128);
}

TEST(ChooseDrafts, TakesAllWhenRowsAreFree) {
  EXPECT_EQ(ChooseDrafts(Candidates(1, 8, 0.8), Shape(1), Fitted(1000, 1)), 8);
}

TEST(ChooseDrafts, TakesNoneWhenRowsCostWhatTheyBring) {
  EXPECT_EQ(ChooseDrafts(Candidates(32, 4, 0.2), Shape(32), Fitted(10, 100)), 0);
  EXPECT_EQ(ChooseDrafts(Candidates(1, 8, 0.2), Shape(1), Fitted(0, 100)), 0);
}

TEST(ChooseDrafts, LessIsVerifiedAsRowsBecomeDearer) {
  int32_t before = 1000;
  for (const double each : {1.0, 100.0, 300.0, 2000.0}) {
    const int32_t chosen = ChooseDrafts(Candidates(1, 8, 0.7), Shape(1), Fitted(1000, each));
    EXPECT_LE(chosen, before) << each;
    before = chosen;
  }
  EXPECT_EQ(before, 0);
}

TEST(ChooseDrafts, NeverMoreThanThereIsRoomFor) {
  VerifyStep shape = Shape(2);
  shape.max_drafts = 3;
  EXPECT_EQ(ChooseDrafts(Candidates(2, 8, 0.9), shape, Fitted(1000, 1)), 3);
}

// For drafts of up to eight tokens.
std::vector<double> Each(double seconds) {
  std::vector<double> all;
  for (int length = 1; length <= 8; ++length) all.push_back(length * seconds);
  return all;
}

TEST(ChooseLength, CountsTheProposersTime) {
  const auto candidates = Candidates(1, 8, 0.8);
  const VerifyCost cost = Fitted(1000, 5);
  const int32_t cheap = ChooseLength(candidates, Shape(1), Each(10e-6), cost);
  const int32_t dear = ChooseLength(candidates, Shape(1), Each(300e-6), cost);
  EXPECT_GT(cheap, dear);
  EXPECT_GT(dear, 0);
  EXPECT_EQ(ChooseLength(candidates, Shape(1), Each(5e-3), cost), 0);
}

TEST(Acceptance, LearnsWhatConfidenceIsWorth) {
  Acceptance acceptance;
  AcceptanceRecord record;
  SplitMix64 random(3);
  for (int i = 0; i < 4000; ++i) acceptance.Learn(&record, 0, 0.9f, random.Uniform() < 0.3);
  EXPECT_NEAR(acceptance.Probability({}, 0, 0.9f), 0.3f, 0.08f);
}

TEST(Acceptance, ASequenceThatDoesBetterIsTrustedMore) {
  Acceptance acceptance;
  AcceptanceRecord good, bad;
  for (int i = 0; i < 50; ++i) {
    acceptance.Learn(&good, 0, 0.5f, true);
    acceptance.Learn(&bad, 0, 0.5f, false);
  }
  EXPECT_GT(acceptance.Probability(good, 0, 0.5f), 0.75f);
  EXPECT_LT(acceptance.Probability(bad, 0, 0.5f), 0.25f);
}

}  // namespace
}  // namespace aisp
