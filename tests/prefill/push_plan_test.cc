#include "prefill/push_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "common/random.h"

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

TEST(PushPlan, RowsGoWhereBlocksOfAnotherSizeHaveThem) {
  SplitMix64 random(9);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    KvLayout from{.num_layers = 2,
                  .num_kv_heads = 2,
                  .head_dim = 4,
                  .block_tokens = 16,
                  .dtype = DType::kBF16,
                  .num_blocks = 30};
    KvLayout to = from;
    from.block_tokens = static_cast<int32_t>(16 * (1 + random.Below(8)));
    to.block_tokens = static_cast<int32_t>(16 * (1 + random.Below(8)));
    to.num_blocks = 25;
    const auto first = to.block_tokens * static_cast<int32_t>(random.Below(3));
    const auto begin = first + to.block_tokens * static_cast<int32_t>(random.Below(3));
    const auto end = begin + 1 + static_cast<int32_t>(random.Below(100));
    std::vector<BlockId> src, dst;
    for (int32_t i = 0; i < from.BlocksFor(end); ++i) src.push_back(BlockId(29 - i));
    for (int32_t i = 0; i < to.BlocksFor(end - first); ++i) dst.push_back(BlockId(24 - i));
    // Each byte of the target is written once, from the same row, part and offset.
    std::map<uint64_t, uint64_t> origin;
    for (const BlockCopy& copy : PlanRowCopies(from, to, 1, begin, end, src, dst, first)) {
      for (uint64_t i = 0; i < copy.bytes; ++i)
        ASSERT_TRUE(origin.emplace(copy.dst_offset + i, copy.src_offset + i).second);
    }
    const auto offset = [](const KvLayout& layout, BlockId block, int32_t part, int32_t slot) {
      return layout.Offset(1, block) + static_cast<uint64_t>(part * layout.block_tokens + slot) * 8;
    };
    ASSERT_EQ(origin.size(), static_cast<size_t>(end - begin) * 4 * 8);
    for (int32_t t = begin; t < end; ++t) {
      for (int32_t part = 0; part < 4; ++part) {
        const uint64_t in = offset(from, src[static_cast<size_t>(t / from.block_tokens)], part,
                                   t % from.block_tokens);
        const uint64_t out = offset(to, dst[static_cast<size_t>((t - first) / to.block_tokens)],
                                    part, (t - first) % to.block_tokens);
        for (uint64_t i = 0; i < 8; ++i) ASSERT_EQ(origin.at(out + i), in + i);
      }
    }
  }
}

}  // namespace
}  // namespace aisp
