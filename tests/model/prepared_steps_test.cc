#include "model/prepared_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace aisp {
namespace {

// The mode of a step whose sequences have these many rows.
StepMode ModeOf(const std::vector<int32_t>& rows, bool all_logits) {
  std::vector<RowSpan> spans;
  DeviceBatch batch;
  for (const int32_t n : rows) {
    spans.push_back({batch.ragged.rows, n, 2000 + n, 0});
    batch.ragged.rows += n;
    batch.ragged.longest_rows = std::max(batch.ragged.longest_rows, n);
  }
  batch.ragged.num_sequences = static_cast<int32_t>(spans.size());
  batch.ragged.host_sequences = spans;
  const int32_t some = 0;
  if (!all_logits) batch.logit_rows = &some;
  batch.num_logit_rows = all_logits ? batch.ragged.rows : batch.ragged.num_sequences;
  return BucketOf(batch, StepPart::kForward, {}).mode;
}

TEST(StepModes, ShortEndsOfPromptsAreComputedLikeDraftsThatAreVerified) {
  EXPECT_EQ(ModeOf({2}, false), StepMode::kVerify);
  EXPECT_EQ(ModeOf({kMostEndRows}, false), StepMode::kVerify);
  EXPECT_EQ(ModeOf({3, kMostEndRows, 2}, false), StepMode::kVerify);
  EXPECT_EQ(ModeOf({kMostEndRows + 1}, false), StepMode::kPrefill);
  EXPECT_EQ(ModeOf({2, kMostEndRows + 1}, false), StepMode::kPrefill);
  const std::vector<int32_t> many(kMostEndStepRows / kMostEndRows, kMostEndRows);
  EXPECT_EQ(ModeOf(many, false), StepMode::kVerify);
  std::vector<int32_t> more = many;
  more.push_back(2);
  EXPECT_EQ(ModeOf(more, false), StepMode::kPrefill);
}

TEST(StepModes, BesideDecodesTheyArePrompts) {
  EXPECT_EQ(ModeOf({1, 4}, false), StepMode::kMixed);
  EXPECT_EQ(ModeOf({1, 1}, false), StepMode::kDecode);
}

TEST(StepModes, StepsThatWantAllLogitsVerify) {
  EXPECT_EQ(ModeOf({1, kMostVerifyRows}, true), StepMode::kVerify);
  EXPECT_EQ(ModeOf({kMostVerifyRows + 1}, true), StepMode::kPrefill);
}

}  // namespace
}  // namespace aisp
