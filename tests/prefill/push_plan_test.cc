#include "prefill/push_plan.h"

#include <gtest/gtest.h>

namespace aisp {
namespace {

KvLayout Layout(int32_t num_blocks) {
  return {.num_layers = 3,
          .num_kv_heads = 2,
          .head_dim = 4,
          .block_tokens = 16,
          .dtype = DType::kF32,
          .num_blocks = num_blocks};
}

std::vector<BlockId> Ids(std::initializer_list<int> values) {
  std::vector<BlockId> ids;
  for (const int v : values) ids.push_back(BlockId(v));
  return ids;
}

TEST(PushPlan, NeighboursInBothPoolsBecomeOneCopy) {
  const KvLayout src = Layout(10);
  const KvLayout dst = Layout(20);
  const uint64_t block = src.LayerBlockBytes();
  const auto copies = PlanLayerCopies(src, dst, 1, Ids({2, 3, 4, 7, 8}), Ids({5, 6, 9, 10, 11}));
  ASSERT_EQ(copies.size(), 3u);
  EXPECT_EQ(copies[0].src_offset, (10 + 2) * block);
  EXPECT_EQ(copies[0].dst_offset, (20 + 5) * block);
  EXPECT_EQ(copies[0].bytes, 2 * block);
  EXPECT_EQ(copies[1].bytes, block);
  EXPECT_EQ(copies[2].src_offset, (10 + 7) * block);
  EXPECT_EQ(copies[2].dst_offset, (20 + 10) * block);
  EXPECT_EQ(copies[2].bytes, 2 * block);
}

TEST(PushPlan, NothingToCopyIsNoCopy) {
  EXPECT_TRUE(PlanLayerCopies(Layout(4), Layout(4), 0, {}, {}).empty());
}

TEST(PushPlan, DescendingBlocksAreNotMerged) {
  EXPECT_EQ(PlanLayerCopies(Layout(4), Layout(4), 0, Ids({3, 2, 1}), Ids({3, 2, 1})).size(), 3u);
}

TEST(PushPlan, ThePartialBlockWaitsForTheEnd) {
  const KvLayout layout = Layout(4);
  EXPECT_EQ(PushableBlocks(layout, 15, 40), 0);
  EXPECT_EQ(PushableBlocks(layout, 16, 40), 1);
  EXPECT_EQ(PushableBlocks(layout, 39, 40), 2);
  EXPECT_EQ(PushableBlocks(layout, 40, 40), 3);
  EXPECT_EQ(PushableBlocks(layout, 32, 32), 2);
}

}  // namespace
}  // namespace aisp
