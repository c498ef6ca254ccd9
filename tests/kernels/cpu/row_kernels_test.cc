// The inner loops of every instruction set against plain code in double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/row_kernels.h"
#include "kernels/device/fp8.h"

namespace aisp {
namespace {

constexpr size_t Index(int32_t i) { return static_cast<size_t>(i); }

std::vector<float> Normal(size_t n, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& v : out) v = normal(generator);
  return out;
}

class RowKernelsTest : public testing::TestWithParam<const RowKernels*> {
 protected:
  void SetUp() override {
    if (GetParam() == nullptr) GTEST_SKIP() << "this CPU does not have the instruction set";
  }
};

TEST_P(RowKernelsTest, RmsNormDividesByTheRootMeanSquare) {
  for (int64_t dim : {1, 15, 64, 100, 256, 1027}) {
    const auto x = Normal(static_cast<size_t>(dim), 1), w = Normal(static_cast<size_t>(dim), 2);
    std::vector<float> y(x.size());
    GetParam()->rms_norm(x.data(), w.data(), y.data(), false, dim, 1e-5f);
    double sum = 0;
    for (float v : x) sum += static_cast<double>(v) * v;
    const double scale = 1 / std::sqrt(sum / static_cast<double>(dim) + 1e-5);
    for (size_t i = 0; i < x.size(); ++i)
      EXPECT_NEAR(y[i], x[i] * scale * w[i], 2e-6 * (1 + std::fabs(x[i] * w[i])));
  }
}

TEST_P(RowKernelsTest, SiluMulAlsoHoldsFarFromZero) {
  std::vector<float> x = {-200, -88, -87, -20, -1, -0.0f, 0,     1e-6f, 1,
                          20,   88,  200, 3,   -3, 0.5f,  -0.5f, 2,     7};
  const size_t dim = x.size();
  const auto up = Normal(dim, 3);
  x.insert(x.end(), up.begin(), up.end());
  std::vector<float> y(dim);
  GetParam()->silu_mul(x.data(), y.data(), false, static_cast<int64_t>(dim));
  for (size_t i = 0; i < dim; ++i) {
    const double expected = x[i] / (1 + std::exp(-static_cast<double>(x[i]))) * up[i];
    EXPECT_NEAR(y[i], expected, 1e-6 * (1e-3 + std::fabs(expected))) << x[i];
  }
}

TEST_P(RowKernelsTest, Bf16RoundsToNearestEvenAndKeepsNan) {
  std::vector<float> x = {1.0f, 1.00390625f, 1.01171875f, -1.0f,     3.4e38f, 1e-40f,
                          0.0f, -0.0f,       INFINITY,    -INFINITY, NAN};
  for (int i = 0; i < 40; ++i) x.push_back(static_cast<float>(i) * 0.37f);
  std::vector<uint16_t> h(x.size());
  std::vector<float> back(x.size());
  GetParam()->to_bf16(x.data(), h.data(), static_cast<int64_t>(x.size()));
  GetParam()->from_bf16(h.data(), back.data(), static_cast<int64_t>(x.size()));
  EXPECT_EQ(back[0], 1.0f);
  EXPECT_EQ(back[1], 1.0f);       // half way: to the even one below
  EXPECT_EQ(back[2], 1.015625f);  // half way: to the even one above
  EXPECT_EQ(back[8], INFINITY);
  EXPECT_EQ(back[9], -INFINITY);
  EXPECT_TRUE(std::isnan(back[10]));
  for (size_t i = 11; i < x.size(); ++i) EXPECT_NEAR(back[i], x[i], std::fabs(x[i]) / 256);
}

struct Attention {
  int32_t rows, group, q_dim, v_dim, slot_dim, block_tokens, context, window;
  bool kv_bf16;
  bool kv_fp8 = false;
  size_t bytes() const { return kv_fp8 ? 1 : kv_bf16 ? 2 : 4; }
};

// A pool with one KV head, filled for `context` positions; the rest is NaN.
struct Pool {
  explicit Pool(const Attention& a)
      : blocks((a.context + a.block_tokens - 1) / a.block_tokens),
        elements(static_cast<size_t>(2 * a.block_tokens * a.slot_dim)),
        bytes(static_cast<size_t>(blocks) * elements * a.bytes()) {
    const auto values = Normal(static_cast<size_t>(blocks) * elements, 7);
    for (int32_t i = 0; i < blocks; ++i) table.push_back(blocks - 1 - i);
    for (int32_t p = 0; p < blocks * a.block_tokens; ++p) {
      for (int part = 0; part < 2; ++part) {
        for (int32_t d = 0; d < a.slot_dim; ++d) {
          const size_t at =
              static_cast<size_t>(table[static_cast<size_t>(p / a.block_tokens)]) * elements +
              static_cast<size_t>((part * a.block_tokens + p % a.block_tokens) * a.slot_dim + d);
          Put(a, at, p < a.context ? values[at] : NAN);
        }
      }
    }
  }
  void Put(const Attention& a, size_t at, float v) {
    uint32_t bits;
    std::memcpy(&bits, &v, 4);
    if (a.kv_fp8) {
      bytes[at] = std::byte{FloatToFp8(v)};
    } else if (a.kv_bf16) {
      const auto half = static_cast<uint16_t>(bits >> 16);
      std::memcpy(&bytes[at * 2], &half, 2);
    } else {
      std::memcpy(&bytes[at * 4], &v, 4);
    }
  }
  double Get(const Attention& a, int32_t position, int part, int32_t d) const {
    const size_t at =
        static_cast<size_t>(table[static_cast<size_t>(position / a.block_tokens)]) * elements +
        static_cast<size_t>((part * a.block_tokens + position % a.block_tokens) * a.slot_dim + d);
    uint32_t bits = 0;
    if (a.kv_fp8) return static_cast<double>(Fp8ToFloat(std::to_integer<uint8_t>(bytes[at])));
    if (a.kv_bf16) {
      uint16_t half;
      std::memcpy(&half, &bytes[at * 2], 2);
      bits = static_cast<uint32_t>(half) << 16;
    } else {
      std::memcpy(&bits, &bytes[at * 4], 4);
    }
    float v;
    std::memcpy(&v, &bits, 4);
    return v;
  }
  int32_t blocks;
  size_t elements;
  std::vector<std::byte> bytes;
  std::vector<int32_t> table;
};

std::vector<float> Attend(const RowKernels& kernels, const Attention& a, const Pool& pool,
                          const std::vector<float>& q) {
  std::vector<float> out(static_cast<size_t>(a.rows * a.group * a.v_dim), NAN);
  std::vector<float> scratch(AttendScratchFloats(a.rows * a.group, a.slot_dim, a.v_dim));
  AttendTask t;
  t.q = q.data();
  t.q_row_stride = a.group * a.q_dim;
  t.q_head_stride = a.q_dim;
  t.rows = a.rows;
  t.group = a.group;
  t.q_dim = a.q_dim;
  t.v_dim = a.v_dim;
  t.first_position = a.context - a.rows;
  t.window = a.window;
  t.scale = 0.125f;
  t.keys = pool.bytes.data();
  t.block_bytes = pool.elements * a.bytes();
  t.value_offset = t.block_bytes / 2;
  t.slot_dim = a.slot_dim;
  t.kv_bf16 = a.kv_bf16;
  if (a.kv_fp8) t.fp8_values = kFp8Values.data();
  t.block_tokens = a.block_tokens;
  t.table = pool.table.data();
  t.out = out.data();
  t.out_row_stride = a.group * a.v_dim;
  t.out_head_stride = a.v_dim;
  t.scratch = scratch.data();
  kernels.attend(t);
  return out;
}

double Expected(const Attention& a, const Pool& pool, const float* q, int32_t position, int32_t d) {
  double sum = 0, weighted = 0;
  const int32_t from = a.window > 0 ? std::max(0, position - a.window + 1) : 0;
  for (int32_t p = from; p <= position; ++p) {
    double score = 0;
    for (int32_t i = 0; i < a.q_dim; ++i) score += static_cast<double>(q[i]) * pool.Get(a, p, 0, i);
    const double weight = std::exp(score * 0.125);
    sum += weight;
    weighted += weight * pool.Get(a, p, 1, d);
  }
  return weighted / sum;
}

TEST_P(RowKernelsTest, AttentionIsThatOfPlainSoftmaxWithGarbageBeyondTheContext) {
  const Attention cases[] = {
      {1, 1, 16, 16, 16, 16, 1, 0, false},        {1, 2, 64, 64, 64, 16, 37, 0, false},
      {20, 2, 64, 64, 64, 32, 50, 0, true},       {1, 4, 128, 128, 128, 16, 200, 0, true},
      {33, 1, 128, 128, 128, 128, 130, 0, false}, {5, 3, 80, 80, 80, 48, 100, 0, false},
      {17, 2, 32, 32, 32, 16, 90, 32, false},     {1, 2, 64, 64, 64, 16, 300, 64, true},
      {9, 1, 48, 32, 48, 16, 40, 0, false},       {64, 1, 48, 32, 64, 16, 64, 5, true},
      {1, 2, 64, 64, 64, 16, 37, 0, false, true}, {20, 3, 80, 80, 80, 32, 50, 7, false, true},
  };
  for (const Attention& a : cases) {
    SCOPED_TRACE(testing::Message()
                 << "rows " << a.rows << ", head " << a.q_dim << ", context " << a.context);
    const Pool pool(a);
    const auto q = Normal(Index(a.rows * a.group * a.q_dim), 9);
    const auto out = Attend(*GetParam(), a, pool, q);
    for (int32_t r = 0; r < a.rows; ++r) {
      for (int32_t h = 0; h < a.group; ++h) {
        for (int32_t d = 0; d < a.v_dim; ++d) {
          const double expected =
              Expected(a, pool, &q[Index((r * a.group + h) * a.q_dim)], a.context - a.rows + r, d);
          ASSERT_NEAR(out[static_cast<size_t>((r * a.group + h) * a.v_dim + d)], expected, 5e-6)
              << r << " " << h << " " << d;
        }
      }
    }
  }
}

void ExpectRowsOfTheSameBitsAlone(const RowKernels& kernels, const Attention& chunk) {
  const Pool pool(chunk);
  const auto q = Normal(Index(chunk.rows * chunk.group * chunk.q_dim), 11);
  const auto together = Attend(kernels, chunk, pool, q);
  const auto in = Index(chunk.group * chunk.q_dim);
  const auto out = Index(chunk.group * chunk.v_dim);
  for (size_t r = 0; r < static_cast<size_t>(chunk.rows); ++r) {
    Attention alone = chunk;
    alone.rows = 1;
    alone.context = chunk.context - chunk.rows + static_cast<int32_t>(r) + 1;
    const std::vector<float> row(q.begin() + static_cast<ptrdiff_t>(r * in),
                                 q.begin() + static_cast<ptrdiff_t>((r + 1) * in));
    const auto own = Attend(kernels, alone, pool, row);
    ASSERT_EQ(std::memcmp(own.data(), &together[r * out], out * sizeof(float)), 0) << r;
  }
}

TEST_P(RowKernelsTest, ARowAttendsToTheSameBitsAloneAndInAChunk) {
  // Odd numbers of heads and rows, rows that end inside a tile, windows.
  const Attention chunks[] = {{40, 2, 64, 64, 64, 16, 120, 0, false},
                              {9, 1, 64, 64, 64, 16, 39, 0, false},
                              {7, 3, 80, 80, 80, 48, 100, 0, false},
                              {37, 5, 128, 128, 128, 16, 70, 21, false},
                              {19, 1, 48, 32, 64, 16, 64, 5, false}};
  for (const Attention& chunk : chunks) {
    for (const int format : {0, 1, 2}) {
      SCOPED_TRACE(testing::Message() << chunk.rows << " rows, format " << format);
      Attention of = chunk;
      of.kv_bf16 = format == 1;
      of.kv_fp8 = format == 2;
      ExpectRowsOfTheSameBitsAlone(*GetParam(), of);
    }
  }
}

TEST_P(RowKernelsTest, ANanInAVisibleKeyReachesTheOutput) {
  const Attention a = {1, 1, 64, 64, 64, 16, 20, 0, false};
  Pool pool(a);
  pool.Put(a, static_cast<size_t>(pool.table[0]) * pool.elements + 5 * 64, NAN);
  const auto out = Attend(*GetParam(), a, pool, Normal(64, 1));
  EXPECT_TRUE(std::isnan(out[0]));
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, RowKernelsTest,
                         testing::Values(Avx512RowKernels(), Avx2RowKernels(),
                                         &BaselineRowKernels()),
                         [](const auto& kernels) {
                           return std::string(kernels.param == nullptr ? "absent"
                                                                       : kernels.param->isa);
                         });

}  // namespace
}  // namespace aisp
