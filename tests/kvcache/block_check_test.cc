#include "kvcache/block_check.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace aisp {
namespace {

class BlockCheckTest : public ::testing::Test {
 protected:
  BlockCheckTest() : pool_(layout_.PoolBytes()) {
    std::mt19937_64 random(5);
    for (std::byte& b : pool_) b = static_cast<std::byte>(random());
  }
  uint64_t Check(int32_t block) const { return BlockCheck(layout_, pool_.data(), BlockId(block)); }

  const KvLayout layout_{.num_layers = 3,
                         .num_kv_heads = 2,
                         .head_dim = 8,
                         .block_tokens = 16,
                         .dtype = DType::kF32,
                         .num_blocks = 4};
  std::vector<std::byte> pool_;
};

TEST_F(BlockCheckTest, EveryByteOfEveryLayerCountsAndNoOther) {
  const uint64_t before = Check(2);
  std::set<uint64_t> seen{before};
  for (size_t at = 0; at < pool_.size(); at += 97) {
    const size_t block = at / layout_.LayerBlockBytes() % 4;
    pool_[at] ^= std::byte{1};
    if (block == 2) {
      EXPECT_TRUE(seen.insert(Check(2)).second) << at;
    } else {
      EXPECT_EQ(Check(2), before) << at;
    }
    pool_[at] ^= std::byte{1};
  }
  EXPECT_GT(seen.size(), 60u);
}

TEST_F(BlockCheckTest, LayersAreToldApart) {
  const uint64_t before = Check(1);
  const auto layer = [&](int32_t i) {
    return pool_.begin() + static_cast<std::ptrdiff_t>(layout_.Offset(i, BlockId(1)));
  };
  std::swap_ranges(layer(0), layer(0) + static_cast<std::ptrdiff_t>(layout_.LayerBlockBytes()),
                   layer(2));
  EXPECT_NE(Check(1), before);
}

TEST_F(BlockCheckTest, ItIsTheSumOfItsLayersInAnyOrder) {
  uint64_t sum = 0;
  for (int32_t i = 2; i >= 0; --i) sum ^= LayerBlockCheck(layout_, pool_.data(), i, BlockId(3));
  EXPECT_EQ(sum, Check(3));
}

}  // namespace
}  // namespace aisp
