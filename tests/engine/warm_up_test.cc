// The steps that an executor runs before it serves: of sizes that select different kernels, and
// each valid in itself.
#include "engine/warm_up.h"

#include <gmock/gmock.h>

#include <set>

namespace aisp {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(WarmUp, SizesEndAtWhatAnExecutorTakesAndNeedNotGoFar) {
  EXPECT_THAT(WarmUpSizes(8192), ElementsAre(16, 32, 64, 128, 256, 512, 1024, 2048));
  EXPECT_THAT(WarmUpSizes(300), ElementsAre(9, 18, 37, 75, 150, 300));
  EXPECT_THAT(WarmUpSizes(2), ElementsAre(2));
  EXPECT_THAT(WarmUpSizes(1), IsEmpty());
  EXPECT_THAT(WarmUpSizes(-16), IsEmpty());
}

// The requirements of Model::Upload, and that no block belongs to two sequences.
void ExpectWhole(const WarmUpStep& step, int32_t rows, int32_t block_tokens) {
  const ForwardBatch batch = step.batch();
  ASSERT_EQ(batch.tokens.size(), static_cast<size_t>(rows));
  ASSERT_EQ(batch.positions.size(), batch.tokens.size());
  ASSERT_EQ(batch.slot_of_row.size(), batch.tokens.size());
  EXPECT_THAT(batch.logit_rows, ElementsAre(rows - 1));
  std::set<int32_t> blocks;
  size_t row = 0, entries = 0;
  for (const SequenceRows& s : batch.sequences) {
    EXPECT_EQ(s.row_begin, static_cast<int32_t>(row));
    EXPECT_EQ(s.context_len, s.num_rows);
    for (int32_t i = 0; i < s.num_rows; ++i) EXPECT_EQ(batch.positions[row++], i);
    const int32_t count = (s.num_rows + block_tokens - 1) / block_tokens;
    for (int32_t i = 0; i < count; ++i, ++entries) {
      const int32_t block =
          batch.block_tables[static_cast<size_t>(s.table_begin) + static_cast<size_t>(i)];
      EXPECT_TRUE(blocks.insert(block).second) << block;
    }
  }
  EXPECT_EQ(row, batch.tokens.size());
  EXPECT_EQ(entries, batch.block_tables.size());
  // The first blocks of the pool.
  EXPECT_EQ(*blocks.begin(), 0);
  EXPECT_EQ(*blocks.rbegin(), static_cast<int32_t>(blocks.size()) - 1);
}

TEST(WarmUp, AStepIsAPromptOrAPromptBesideADecodingSequence) {
  for (const int32_t block_tokens : {16, 64}) {
    for (const int32_t rows : {2, 16, 17, 64, 300}) {
      const WarmUpStep prompt(rows, false, block_tokens), mixed(rows, true, block_tokens);
      ExpectWhole(prompt, rows, block_tokens);
      ExpectWhole(mixed, rows, block_tokens);
      EXPECT_EQ(prompt.batch().sequences.size(), 1u);
      ASSERT_EQ(mixed.batch().sequences.size(), 2u);
      EXPECT_EQ(mixed.batch().sequences[1].num_rows, 1);
    }
  }
}

}  // namespace
}  // namespace aisp
