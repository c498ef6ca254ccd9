// Decode steps in one launch per layer, against double precision on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include "kernels/cuda/table/instances.h"
#include "tests/kernels/cuda/attention/run_decode_case.h"

namespace aisp::cuda {
namespace {

void ExpectRight(const DecodeShape& c, const std::vector<int32_t>& contexts, uint64_t seed = 1,
                 const std::vector<int32_t>& rows = {}) {
  if (!HaveGpu()) GTEST_SKIP() << "no GPU";
  std::printf("%d/%d heads of %d, blocks of %d, %s, window %d, %zu sequences, first %d, rows %d",
              c.heads, c.kv_heads, c.dim, c.block_tokens, c.kv == DType::kBF16 ? "bf16" : "fp8",
              c.window, contexts.size(), contexts[0], c.most_rows);
  SCOPED_TRACE(::testing::Message() << "heads " << c.heads << "/" << c.kv_heads << " dim " << c.dim
                                    << " block " << c.block_tokens << " window " << c.window
                                    << " first context " << contexts[0] << " rows " << c.most_rows);
  const int64_t blocks = BlocksOf(c, contexts);
  DecodeRunner runner(c, static_cast<int32_t>(contexts.size()),
                      std::max(1, *std::max_element(contexts.begin(), contexts.end())), blocks,
                      c.mixed ? 1 : 3);
  runner.Step(MakeDecodeStep(c, contexts, seed, blocks, rows));
}

TEST(CudaRunDecode, OneSequenceOfEveryOddLength) {
  for (DType kv : {DType::kBF16, DType::kF8E4M3}) {
    for (int32_t context :
         {1, 2, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 129, 1000, 1024, 1025, 4097}) {
      DecodeShape c;
      c.kv = kv;
      ExpectRight(c, {context}, static_cast<uint64_t>(context));
    }
  }
}

TEST(CudaRunDecode, EveryBlockSizeHeadDimAndNorm) {
  for (int32_t block = 16; block <= 128; block += 16) {
    for (int32_t dim : {64, 128}) {
      for (DType kv : {DType::kBF16, DType::kF8E4M3}) {
        DecodeShape c;
        c.block_tokens = block;
        c.dim = dim;
        c.kv = kv;
        c.norm = block % 32 == 0;
        c.out = block % 48 == 0 ? DType::kF32 : DType::kBF16;
        ExpectRight(c, {37, 300, 1, block, block + 1, 2 * block - 1, 513});
      }
    }
  }
}

TEST(CudaRunDecode, EveryGroupRatio) {
  for (int32_t group : {1, 2, 3, 4, 5, 7, 8, 9, 12, 16}) {
    for (DType kv : {DType::kBF16, DType::kF8E4M3}) {
      for (int32_t dim : {64, 128}) {
        DecodeShape c;
        c.kv_heads = 3;
        c.heads = 3 * group;
        c.dim = dim;
        c.kv = kv;
        c.norm = group % 2 == 0;
        ExpectRight(c, {77, 700, 16});
      }
    }
  }
}

TEST(CudaRunDecode, SlidingWindow) {
  for (int32_t window : {1, 5, 16, 33, 128, 500}) {
    for (DType kv : {DType::kBF16, DType::kF8E4M3}) {
      DecodeShape c;
      c.window = window;
      c.kv = kv;
      ExpectRight(c, {40, 777, 4, 501, 16, 17});
    }
  }
}

TEST(CudaRunDecode, PaddingIsLeftAlone) {
  for (int32_t ctas : {0, 1, 2, 3}) {
    DecodeShape c;
    c.ctas = ctas;
    ExpectRight(c, {kNoRows, 50, kNoPosition, 800, kNoRows, 33, kNoPosition, kNoRows});
    ExpectRight(c, {kNoPosition, kNoRows});
  }
}

TEST(CudaRunDecode, RaggedMixesOfOneToManySequences) {
  std::mt19937 random(7);
  for (int32_t count : {2, 9, 33, 128, 129, 300, 1000}) {
    for (DType kv : {DType::kBF16, DType::kF8E4M3}) {
      for (int32_t ctas : {1, 2, 3}) {
        std::vector<int32_t> contexts;
        for (int32_t i = 0; i < count; ++i) {
          const uint32_t longest = i % (count > 100 ? 64 : 8) == 0 ? 3000 : count > 100 ? 60 : 200;
          contexts.push_back(i % 11 == 5 ? kNoRows : 1 + static_cast<int32_t>(random() % longest));
        }
        DecodeShape c;
        c.heads = 8;
        c.kv_heads = count > 200 ? 2 : 4;
        c.kv = kv;
        c.block_tokens = ctas == 2 ? 64 : 16;
        c.ctas = ctas;
        ExpectRight(c, contexts, static_cast<uint64_t>(count));
      }
    }
  }
}

TEST(CudaRunDecode, LongSequenceBesideShortOnes) {
  DecodeShape c;
  c.heads = 4;
  c.kv_heads = 1;
  c.block_tokens = 64;
  ExpectRight(c, {5, 40000, 17, 200, 1, 64, 90, 3});
}

// ---- several rows of a sequence: draft tokens to verify ----

TEST(CudaRunDecode, RowsOfOneSequenceOfEveryOddLength) {
  for (DType kv : {DType::kBF16, DType::kF8E4M3}) {
    for (int32_t most : {4, 8}) {
      for (int32_t context :
           {1, 3, 4, 5, 8, 15, 16, 17, 18, 19, 20, 31, 33, 35, 39, 64, 67, 130, 1000, 1027, 4100}) {
        DecodeShape c;
        c.kv = kv;
        c.most_rows = most;
        for (int32_t rows : {1, 2, most / 2 + 1, most})
          ExpectRight(c, {context}, static_cast<uint64_t>(context), {rows});
      }
    }
  }
}

TEST(CudaRunDecode, RowsOfEveryGroupRatioHeadDimAndBlockSize) {
  for (int32_t group : {1, 2, 3, 4, 5, 7, 8}) {
    for (int32_t most : {4, 8, 16}) {
      if (!FusedTakes(group, most)) continue;
      for (DType kv : {DType::kBF16, DType::kF8E4M3}) {
        for (int32_t dim : {64, 128}) {
          DecodeShape c;
          c.kv_heads = 3;
          c.heads = 3 * group;
          c.dim = dim;
          c.kv = kv;
          c.norm = group % 2 == 0;
          c.block_tokens = 16 * (1 + (group + most) % 8);
          c.out = group == 3 ? DType::kF32 : DType::kBF16;
          c.most_rows = most;
          ExpectRight(c, {77, 700, 16, 2}, static_cast<uint64_t>(group), {most, 1, most - 1, most});
          ExpectRight(c, {333}, static_cast<uint64_t>(group), {most});
        }
      }
    }
  }
}

TEST(CudaRunDecode, RowsSeeTheirOwnWindows) {
  for (int32_t window : {1, 5, 16, 33, 128, 500}) {
    for (DType kv : {DType::kBF16, DType::kF8E4M3}) {
      DecodeShape c;
      c.window = window;
      c.kv = kv;
      c.most_rows = 8;
      ExpectRight(c, {40, 777, 4, 501, 16, 17}, 3, {8, 8, 3, 5, 1, 8});
      ExpectRight(c, {514}, 3, {8});
    }
  }
}

TEST(CudaRunDecode, RowsOfRaggedMixesOfSequences) {
  std::mt19937 random(8);
  for (int32_t count : {2, 8, 9, 33, 128, 130, 300}) {
    for (int32_t ctas : {1, 2}) {
      for (DType kv : {DType::kBF16, DType::kF8E4M3}) {
        DecodeShape c;
        c.heads = count > 100 ? 8 : 16;
        c.kv_heads = count > 100 ? 2 : 4;
        c.kv = kv;
        c.block_tokens = ctas == 2 ? 64 : 16;
        c.ctas = ctas;
        c.most_rows = count % 2 == 0 ? 8 : 4;
        std::vector<int32_t> contexts, rows;
        for (int32_t i = 0; i < count; ++i) {
          const uint32_t longest = i % (count > 100 ? 64 : 8) == 0 ? 3000 : count > 100 ? 60 : 200;
          contexts.push_back(i % 11 == 5 ? kNoRows : 1 + static_cast<int32_t>(random() % longest));
          rows.push_back(1 + static_cast<int32_t>(random() % static_cast<uint32_t>(c.most_rows)));
        }
        ExpectRight(c, contexts, static_cast<uint64_t>(count), rows);
      }
    }
  }
}

TEST(CudaRunDecode, RowsGiveTheSameBitsInEveryReplay) {
  if (!HaveGpu()) GTEST_SKIP() << "no GPU";
  std::mt19937 random(22);
  for (int32_t sequences : {1, 8, 40}) {
    DecodeShape c;
    c.kv_heads = 8;
    c.heads = 32;
    c.most_rows = 8;
    const int64_t blocks = sequences * 64 + 3;
    DecodeRunner runner(c, sequences, 1024, blocks, 5);
    for (int round = 0; round < 6; ++round) {
      std::vector<int32_t> contexts, rows;
      for (int32_t s = 0; s < sequences; ++s) {
        const uint32_t longest = round % 2 == 0 ? 1000 : 60;
        const bool none = random() % 7 == 0 && s > 0;
        contexts.push_back(none ? kNoRows : 1 + static_cast<int32_t>(random() % longest));
        rows.push_back(1 + static_cast<int32_t>(random() % 8));
      }
      const DecodeStep step = MakeDecodeStep(c, contexts, random(), blocks, rows);
      runner.Step(step);
      for (int again = 0; again < 3; ++again) runner.Step(step, /*check=*/false);
    }
  }
}

// ---- prompts in a step with sequences that decode ----

TEST(CudaRunMixed, PromptsAmongSequencesThatDecode) {
  for (DType kv : {DType::kBF16, DType::kF8E4M3}) {
    for (int32_t group : {1, 4, 8}) {
      for (int32_t dim : {64, 128}) {
        DecodeShape c;
        c.kv_heads = 2;
        c.heads = 2 * group;
        c.dim = dim;
        c.kv = kv;
        c.norm = group == 4;
        c.block_tokens = group == 8 ? 64 : 16;
        c.out = group == 1 ? DType::kF32 : DType::kBF16;
        c.mixed = true;
        c.most_rows = 150;
        const auto seed = static_cast<uint64_t>(group + dim);
        ExpectRight(c, {300, 150, 17, 700}, seed, {1, 150, 1, 40});
        ExpectRight(c, {2, 2, kNoRows, 600, 33, kNoPosition}, seed, {2, 1, 1, 1, 33, 1});
      }
    }
  }
}

TEST(CudaRunMixed, ManySequencesAndWindows) {
  std::mt19937 random(9);
  for (int32_t window : {0, 40}) {
    for (DType kv : {DType::kBF16, DType::kF8E4M3}) {
      for (int32_t count : {9, 130}) {
        DecodeShape c;
        c.kv = kv;
        c.window = window;
        c.mixed = true;
        c.most_rows = 64;
        std::vector<int32_t> contexts, rows;
        for (int32_t i = 0; i < count; ++i) {
          const uint32_t longest = i % 16 == 0 ? 2000 : 200;
          contexts.push_back(i % 13 == 5 ? kNoRows : 1 + static_cast<int32_t>(random() % longest));
          rows.push_back(i % 9 == 7 ? 2 + static_cast<int32_t>(random() % 63) : 1);
        }
        ExpectRight(c, contexts, static_cast<uint64_t>(count), rows);
      }
    }
  }
}

TEST(CudaRunMixed, PromptsOfFewRowsHaveTheirKeysSplit) {
  for (DType kv : {DType::kBF16, DType::kF8E4M3}) {
    for (int32_t group : {1, 4, 8}) {
      for (int32_t split : {16, 64}) {
        DecodeShape c;
        c.kv_heads = 2;
        c.heads = 2 * group;
        c.dim = group == 8 ? 64 : 128;
        c.kv = kv;
        c.window = group == 1 ? 50 : 0;
        c.mixed = true;
        c.split = c.most_rows = split;
        const auto seed = static_cast<uint64_t>(group + split);
        ExpectRight(c, {300, 16, 1, 700, kNoRows, 2500}, seed, {1, 16, 1, 2, 1, 11});
        ExpectRight(c, {split, 900, 4100}, seed, {split, 1, split});
      }
    }
  }
}

TEST(CudaRunMixed, GivesTheSameBitsAgain) {
  if (!HaveGpu()) GTEST_SKIP() << "no GPU";
  for (DType kv : {DType::kBF16, DType::kF8E4M3}) {
    DecodeShape c;
    c.kv = kv;
    c.kv_heads = 8;
    c.heads = 32;
    c.mixed = true;
    c.most_rows = 128;
    std::vector<int32_t> contexts(40, 1100), rows(40, 1);
    contexts[39] = 128;
    rows[39] = 128;
    const int64_t blocks = BlocksOf(c, contexts);
    DecodeRunner runner(c, 40, 1100, blocks, 1);
    const DecodeStep step = MakeDecodeStep(c, contexts, 6, blocks, rows);
    runner.Step(step);
    for (int again = 0; again < 20; ++again) runner.Step(step, /*check=*/false);
  }
}

// One graph with changing contents: a step with another distribution of work leaves nothing behind.
TEST(CudaRunDecode, GraphReplaysWithOtherContents) {
  if (!HaveGpu()) GTEST_SKIP() << "no GPU";
  std::mt19937 random(21);
  for (int32_t sequences : {1, 8, 40}) {
    DecodeShape c;
    const int64_t blocks = sequences * 200 + 3;
    DecodeRunner runner(c, sequences, 3200, blocks, 5);
    for (int round = 0; round < 6; ++round) {
      std::vector<int32_t> contexts;
      for (int32_t s = 0; s < sequences; ++s) {
        const int32_t longest = round % 2 == 0 ? 3100 : 60;
        contexts.push_back(
            random() % 7 == 0 && s > 0
                ? kNoRows
                : 1 + static_cast<int32_t>(random() % static_cast<uint32_t>(longest)));
      }
      runner.Step(MakeDecodeStep(c, contexts, random(), blocks));
    }
  }
}

TEST(CudaRunDecode, HundredTimesTheSameBits) {
  if (!HaveGpu()) GTEST_SKIP() << "no GPU";
  for (DType kv : {DType::kBF16, DType::kF8E4M3}) {
    for (const std::vector<int32_t>& contexts :
         {std::vector<int32_t>{1024}, std::vector<int32_t>{3000, 5, 700, 1200, 90, 1},
          std::vector<int32_t>(70, 333)}) {
      DecodeShape c;
      c.kv = kv;
      c.kv_heads = 8;
      c.heads = 32;
      c.block_tokens = 64;
      const int64_t blocks = BlocksOf(c, contexts);
      DecodeRunner runner(c, static_cast<int32_t>(contexts.size()), 3000, blocks, 20);
      const DecodeStep step = MakeDecodeStep(c, contexts, 5, blocks);
      runner.Step(step);
      for (int round = 0; round < 5; ++round) runner.Step(step, /*check=*/false);
    }
  }
}

TEST(CudaRunDecode, SaysWhereThereIsNoKernel) {
  if (!HaveGpu()) GTEST_SKIP() << "no GPU";
  AttentionConfig config;
  config.num_heads = 8;
  config.num_kv_heads = 2;
  config.head_dim = 256;
  config.block_tokens = 16;
  config.max_sequences = 4;
  config.max_rows = 4;
  AttentionBatch batch;
  batch.num_sequences = 1;
  RopeAppendCall rope;
  rope.qkv_type = DType::kBF16;
  auto wide = Attention::Create(config);
  ASSERT_TRUE(wide);
  EXPECT_EQ((*wide)->RunDecode(batch, rope, {}, nullptr, nullptr).error().code,
            Code::kUnimplemented);
  config.head_dim = 128;
  rope.qkv_type = DType::kF32;
  auto narrow = Attention::Create(config);
  ASSERT_TRUE(narrow);
  EXPECT_EQ((*narrow)->RunDecode(batch, rope, {}, nullptr, nullptr).error().code,
            Code::kUnimplemented);
  config.max_decode_tokens = 9;  // rows of a sequence with four heads each: two work items have
                                 // eight
  rope.qkv_type = DType::kBF16;
  auto many = Attention::Create(config);
  ASSERT_TRUE(many);
  EXPECT_EQ((*many)->RunDecode(batch, rope, {}, nullptr, nullptr).error().code,
            Code::kUnimplemented);
  config.decode_ctas = 4;
  EXPECT_EQ(Attention::Create(config).error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace aisp::cuda
