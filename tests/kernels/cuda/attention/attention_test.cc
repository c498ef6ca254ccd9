// Attention on the GPU against double precision on the host; FP8 against the same quantised keys
// and values.
#include "kernels/cuda/attention/attention.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "tests/kernels/cuda/attention/attention_case.h"

namespace aisp::cuda {
namespace {

void ExpectRight(const AttentionCase& c) {
  if (!HaveGpu()) GTEST_SKIP() << "no GPU";
  SCOPED_TRACE(c.Name());
  const CaseResult result = RunCase(c);
  ASSERT_EQ(result.error, "");
  std::printf("  %.2e (worst row %.2e)  %s\n", result.relative, result.worst_row, c.Name().c_str());
  EXPECT_LT(result.relative, c.kv == DType::kBF16 ? 1e-2 : 5e-3);
  EXPECT_LT(result.worst_row, 3e-2);
  EXPECT_TRUE(result.repeatable);
}

AttentionCase DecodeCase(std::vector<SequenceCase> sequences, int32_t tokens = 1) {
  AttentionCase c;
  c.kind = StepKind::kDecode;
  c.decode_tokens = tokens;
  c.sequences = std::move(sequences);
  return c;
}

TEST(CudaDecodeAttention, OneSequenceOfEveryOddLength) {
  for (int32_t context : {1, 2, 15, 16, 17, 31, 32, 33, 63, 100, 129, 1000, 4097}) {
    ExpectRight(DecodeCase({{1, context}}));
  }
}

TEST(CudaDecodeAttention, EveryBlockSizeAndHeadDim) {
  for (int32_t block = 16; block <= 128; block += 16) {
    AttentionCase c = DecodeCase({{1, 37}, {1, 300}, {1, 1}, {1, 513}});
    c.block_tokens = block;
    for (int32_t dim : {64, 128, 256}) {
      c.head_dim = dim;
      for (DType kv : {DType::kBF16, DType::kF8E4M3}) {
        c.kv = kv;
        ExpectRight(c);
      }
    }
  }
}

TEST(CudaDecodeAttention, EveryGroupRatio) {
  for (int32_t group = 1; group <= 16; ++group) {
    AttentionCase c = DecodeCase({{1, 77}, {1, 700}});
    c.kv_heads = 3;
    c.heads = 3 * group;
    c.q = group % 2 == 0 ? DType::kF32 : DType::kBF16;
    c.out = group % 3 == 0 ? DType::kF32 : DType::kBF16;
    ExpectRight(c);
  }
}

TEST(CudaDecodeAttention, SeveralTokensSeeEachOtherCausally) {
  for (DType kv : {DType::kBF16, DType::kF8E4M3}) {
    for (int32_t tokens : {2, 3, 4, 5, 7, 8, 11, 16}) {
      for (int32_t group : {1, 4, 7, 16}) {
        AttentionCase c =
            DecodeCase({{tokens, tokens}, {tokens - 1, 65}, {1, 40}, {tokens, 1234}}, tokens);
        c.kv = kv;
        c.kv_heads = 2;
        c.heads = 2 * group;
        ExpectRight(c);
      }
    }
  }
}

TEST(CudaDecodeAttention, HeadDim256TakesManyRowsInChunks) {
  for (DType kv : {DType::kBF16, DType::kF8E4M3}) {
    AttentionCase c = DecodeCase({{16, 300}, {3, 1000}, {9, 9}}, 16);
    c.kv = kv;
    c.head_dim = 256;
    c.kv_heads = 2;
    c.heads = 16;
    ExpectRight(c);
  }
}

TEST(CudaDecodeAttention, SlidingWindow) {
  for (int32_t window : {1, 5, 16, 33, 128, 500}) {
    for (int32_t tokens : {1, 4}) {
      AttentionCase c =
          DecodeCase({{tokens, 40}, {tokens, 777}, {tokens, 4}, {tokens, 501}}, tokens);
      c.window = window;
      ExpectRight(c);
      c.kv = DType::kF8E4M3;
      ExpectRight(c);
    }
  }
}

TEST(CudaDecodeAttention, RaggedMixes) {
  std::mt19937 random(7);
  for (int32_t count : {3, 40, 200}) {
    std::vector<SequenceCase> sequences;
    for (int32_t i = 0; i < count; ++i) {
      sequences.push_back({1, 1 + static_cast<int32_t>(random() % (i % 8 == 0 ? 3000 : 200))});
    }
    AttentionCase c = DecodeCase(sequences);
    c.heads = 8;
    c.kv_heads = 4;
    ExpectRight(c);
    c.kv = DType::kF8E4M3;
    c.block_tokens = 64;
    ExpectRight(c);
  }
}

AttentionCase PrefillCase(std::vector<SequenceCase> sequences) {
  AttentionCase c;
  c.kind = StepKind::kPrefill;
  c.sequences = std::move(sequences);
  return c;
}

TEST(CudaPrefillAttention, OnePromptOfOddLength) {
  for (int32_t rows : {1, 2, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200, 257, 700}) {
    ExpectRight(PrefillCase({{rows, rows}}));
  }
}

TEST(CudaPrefillAttention, NewTokensAfterACachedPrefix) {
  for (DType kv : {DType::kBF16, DType::kF8E4M3}) {
    for (int32_t prefix : {1, 16, 100, 128, 1000}) {
      AttentionCase c = PrefillCase({{70, 70 + prefix}, {1, 1 + prefix}, {129, 129 + prefix}});
      c.kv = kv;
      ExpectRight(c);
    }
  }
}

TEST(CudaPrefillAttention, EveryBlockSizeAndHeadDim) {
  for (int32_t block = 16; block <= 128; block += 16) {
    AttentionCase c = PrefillCase({{150, 300}, {37, 37}, {260, 270}});
    c.block_tokens = block;
    for (int32_t dim : {64, 128, 256}) {
      c.head_dim = dim;
      for (DType kv : {DType::kBF16, DType::kF8E4M3}) {
        c.kv = kv;
        ExpectRight(c);
      }
    }
  }
}

TEST(CudaPrefillAttention, EveryGroupRatio) {
  for (int32_t group = 1; group <= 16; ++group) {
    AttentionCase c = PrefillCase({{77, 177}, {140, 140}});
    c.kv_heads = 2;
    c.heads = 2 * group;
    c.q = group % 2 == 0 ? DType::kF32 : DType::kBF16;
    c.out = group % 3 == 0 ? DType::kF32 : DType::kBF16;
    ExpectRight(c);
  }
}

TEST(CudaPrefillAttention, SlidingWindow) {
  for (int32_t window : {1, 5, 33, 128, 200}) {
    for (DType kv : {DType::kBF16, DType::kF8E4M3}) {
      AttentionCase c = PrefillCase({{300, 300}, {100, 777}, {4, 4}});
      c.window = window;
      c.kv = kv;
      ExpectRight(c);
    }
  }
}

// The softmax reference maximum is seldom updated: scores a few hundred apart must neither overflow
// nor vanish, whichever tile has the largest.
TEST(CudaPrefillAttention, ScoresFarApart) {
  for (float scale : {12.0f, 60.0f, 400.0f}) {
    for (int32_t dim : {64, 128, 256}) {
      for (DType kv : {DType::kBF16, DType::kF8E4M3}) {
        AttentionCase c = PrefillCase({{300, 300}, {40, 900}});
        c.q_scale = scale;
        c.head_dim = dim;
        c.kv = kv;
        ExpectRight(c);
        c.window = 150;
        ExpectRight(c);
      }
    }
  }
}

// ---- prompts of few rows, with the keys split over CTAs ----

AttentionCase SplitCase(std::vector<SequenceCase> sequences, int32_t most = 64) {
  AttentionCase c = PrefillCase(std::move(sequences));
  c.split_tokens = most;
  return c;
}

TEST(CudaSplitPrompts, OneOfEachLengthBehindAPrefix) {
  for (DType kv : {DType::kBF16, DType::kF8E4M3}) {
    for (int32_t rows : {1, 2, 15, 16, 17, 31, 33, 63, 64}) {
      for (int32_t prefix : {0, 1, 47, 2000, 9000}) {
        AttentionCase c = SplitCase({{rows, rows + prefix}}, rows <= 16 ? 16 : 64);
        c.kv = kv;
        c.heads = 32;
        c.kv_heads = 8;
        c.block_tokens = 64;
        ExpectRight(c);
      }
    }
  }
}

TEST(CudaSplitPrompts, EveryHeadDimAndGroupRatio) {
  for (int32_t dim : {64, 128, 256}) {
    for (DType kv : {DType::kBF16, DType::kF8E4M3}) {
      for (int32_t group = 1; group <= 16; ++group) {
        AttentionCase c = SplitCase({{37, 700}, {1, 90}, {26, 26}});
        c.head_dim = dim;
        c.kv = kv;
        c.kv_heads = 3;
        c.heads = 3 * group;
        c.q = group % 2 == 0 ? DType::kF32 : DType::kBF16;
        c.out = group % 3 == 0 ? DType::kF32 : DType::kBF16;
        ExpectRight(c);
      }
    }
  }
}

TEST(CudaSplitPrompts, WindowsAndScoresFarApart) {
  for (int32_t window : {0, 1, 33, 200}) {
    for (float scale : {2.0f, 60.0f}) {
      AttentionCase c = SplitCase({{30, 777}, {20, 20}, {14, 3000}});
      c.window = window;
      c.q_scale = scale;
      ExpectRight(c);
      c.kv = DType::kF8E4M3;
      ExpectRight(c);
    }
  }
}

TEST(CudaSplitPrompts, BesideRowsThatDecode) {
  AttentionCase c = SplitCase({{1, 400}, {40, 300}, {1, 1}, {6, 6}, {1, 1111}});
  c.kind = StepKind::kMixed;
  ExpectRight(c);
  c.head_dim = 256;
  ExpectRight(c);
}

TEST(CudaPrefillAttention, MoreSequencesThanMultiprocessors) {
  std::mt19937 random(9);
  std::vector<SequenceCase> sequences;
  for (int32_t i = 0; i < 150; ++i) {
    const auto rows = 1 + static_cast<int32_t>(random() % 90);
    sequences.push_back({rows, rows + static_cast<int32_t>(random() % 300)});
  }
  AttentionCase c = PrefillCase(sequences);
  c.kv_heads = 4;
  ExpectRight(c);
  c.kv = DType::kF8E4M3;
  ExpectRight(c);
}

TEST(CudaAttention, MixedStepsServeDecodeAndPrefillRows) {
  for (int32_t tokens : {1, 5}) {
    AttentionCase c =
        PrefillCase({{tokens, 400}, {90, 300}, {1, 1}, {6, 6}, {1, 1111}, {200, 200}});
    c.kind = StepKind::kMixed;
    c.decode_tokens = tokens;
    ExpectRight(c);
    c.kv = DType::kF8E4M3;
    ExpectRight(c);
  }
}

TEST(CudaAttention, RefusesShapesWithoutKernels) {
  if (!HaveGpu()) GTEST_SKIP() << "no GPU";
  AttentionConfig good;
  good.num_heads = 8;
  good.num_kv_heads = 2;
  good.head_dim = 128;
  good.block_tokens = 16;
  good.max_sequences = 4;
  good.max_rows = 4;
  ASSERT_TRUE(Attention::Create(good));
  AttentionConfig bad = good;
  bad.head_dim = 96;
  EXPECT_EQ(Attention::Create(bad).error().code, Code::kUnimplemented);
  bad = good;
  bad.block_tokens = 24;
  EXPECT_EQ(Attention::Create(bad).error().code, Code::kInvalidArgument);
  bad = good;
  bad.num_heads = 7;
  EXPECT_EQ(Attention::Create(bad).error().code, Code::kInvalidArgument);
  bad = good;
  bad.kv = DType::kF32;
  EXPECT_EQ(Attention::Create(bad).error().code, Code::kUnimplemented);
  bad = good;
  bad.max_decode_tokens = 17;
  EXPECT_EQ(Attention::Create(bad).error().code, Code::kInvalidArgument);
  bad = good;
  bad.split_tokens = 65;
  EXPECT_EQ(Attention::Create(bad).error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace aisp::cuda
