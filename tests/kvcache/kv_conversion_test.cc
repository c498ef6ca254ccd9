// KV converted between pool formats, compared with references that use neither blocks nor bits.
#include "kvcache/kv_conversion.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "common/random.h"

namespace aisp {
namespace {

constexpr DType kFormats[] = {DType::kF32, DType::kBF16, DType::kF8E4M3};

double ValueOf(DType dtype, const std::byte* at) {
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, at, sizeof(value));
    return static_cast<double>(value);
  }
  if (dtype == DType::kBF16) {
    uint16_t bits = 0;
    std::memcpy(&bits, at, sizeof(bits));
    const int exponent = bits >> 7 & 255;
    const double mantissa = bits & 127;
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == 255) return mantissa != 0 ? NAN : sign * INFINITY;
    return sign * (exponent == 0 ? std::ldexp(mantissa, -133)
                                 : std::ldexp(128 + mantissa, exponent - 134));
  }
  const auto bits = std::to_integer<int>(*at);
  const int exponent = bits >> 3 & 15;
  const double mantissa = bits & 7;
  const double sign = (bits & 128) != 0 ? -1 : 1;
  if ((bits & 127) == 127) return NAN;
  return sign *
         (exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
}

// To nearest, ties to even, in doubles: `digits` of mantissa, the hidden one included, and steps no
// finer than 2^least.
double Rounded(double x, int digits, int least) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent = 0;
  std::frexp(x, &exponent);
  const int step = std::max(exponent - digits, least);
  return std::ldexp(std::nearbyint(std::ldexp(x, -step)), step);
}
double Expected(double x, DType to) {
  if (to == DType::kF32) return x;
  if (to == DType::kBF16) {
    const double rounded = Rounded(x, 8, -133);
    return std::abs(rounded) > 0x1.fep127 ? std::copysign(INFINITY, x) : rounded;
  }
  if (std::isnan(x)) return x;
  return std::clamp(Rounded(x, 4, -9), -448.0, 448.0);
}

std::vector<float> Samples() {
  SplitMix64 random(7);
  std::vector<float> samples = {
      0.0f,     -0.0f,          1.0f,       448.0f,
      449.0f,   464.0f,         480.0f,     -1e30f,
      0x1p-9f,  0x1p-10f,       0x1.8p-10f, 0x1.000002p-10f,
      0x1p-6f,  0x1.fffffep-7f, 0x1p-149f,  3.4e38f,
      INFINITY, -INFINITY,      NAN,        std::bit_cast<float>(0x7f800001u)};
  for (int i = 0; i < 20'000; ++i) {
    samples.push_back(std::bit_cast<float>(static_cast<uint32_t>(random.Next())));
    // Typical magnitudes of KV, including ties.
    const auto whole = static_cast<float>(static_cast<int32_t>(random.Next() >> 40) - (1 << 23));
    samples.push_back(std::ldexp(whole, -static_cast<int>(random.Below(30))));
    samples.push_back(std::ldexp(static_cast<float>(random.Below(64)), -12));
  }
  return samples;
}

TEST(KvConversion, NumbersAreRoundedToTheNearestOneTiesToEven) {
  const std::vector<float> samples = Samples();
  for (const DType from : kFormats) {
    std::vector<std::byte> x(samples.size() * DTypeBytes(from));
    ConvertNumbers(DType::kF32, reinterpret_cast<const std::byte*>(samples.data()), from, x.data(),
                   samples.size());
    for (const DType to : kFormats) {
      SCOPED_TRACE(std::string(DTypeName(from)) + " to " + std::string(DTypeName(to)));
      std::vector<std::byte> y(samples.size() * DTypeBytes(to));
      ConvertNumbers(from, x.data(), to, y.data(), samples.size());
      for (size_t i = 0; i < samples.size(); ++i) {
        const double before = ValueOf(from, x.data() + i * DTypeBytes(from));
        const double after = ValueOf(to, y.data() + i * DTypeBytes(to));
        const double expected = Expected(before, to);
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(after)) << before;
        } else {
          ASSERT_EQ(after, expected) << before;
          ASSERT_EQ(std::signbit(after), std::signbit(before)) << before;
        }
      }
    }
  }
}

TEST(KvConversion, EveryNumberOfANarrowFormatComesBack) {
  std::vector<std::byte> narrow(256);
  for (size_t i = 0; i < narrow.size(); ++i) narrow[i] = static_cast<std::byte>(i);
  for (const DType wide : {DType::kF32, DType::kBF16}) {
    std::vector<std::byte> there(narrow.size() * DTypeBytes(wide));
    std::vector<std::byte> back(narrow.size());
    ConvertNumbers(DType::kF8E4M3, narrow.data(), wide, there.data(), narrow.size());
    ConvertNumbers(wide, there.data(), DType::kF8E4M3, back.data(), narrow.size());
    EXPECT_EQ(back, narrow);
  }
}

struct Pools {
  KvLayout from;
  KvLayout to;
  std::vector<std::byte> memory;
  std::vector<BlockId> source;  // of one sequence
  int32_t tokens = 0;
};

Pools MakePools(SplitMix64& random) {
  Pools p;
  p.from.num_layers = static_cast<int32_t>(1 + random.Below(3));
  p.from.num_kv_heads = static_cast<int32_t>(1 + random.Below(3));
  p.from.head_dim = static_cast<int32_t>(16 * (1 + random.Below(3)));
  p.from.num_blocks = 40;
  p.to = p.from;
  p.from.block_tokens = static_cast<int32_t>(16 << random.Below(4));
  p.to.block_tokens = static_cast<int32_t>(16 * (1 + random.Below(8)));
  p.from.dtype = kFormats[random.Below(3)];
  p.to.dtype = kFormats[random.Below(3)];
  p.memory.resize(p.from.PoolBytes());
  std::vector<float> numbers(p.memory.size() / DTypeBytes(p.from.dtype));
  for (float& number : numbers)
    number = static_cast<float>(static_cast<double>(random.Next() >> 11) * 0x1p-50 - 4);
  ConvertNumbers(DType::kF32, reinterpret_cast<const std::byte*>(numbers.data()), p.from.dtype,
                 p.memory.data(), numbers.size());
  p.tokens = static_cast<int32_t>(1 + random.Below(200));
  std::vector<int32_t> ids(40);
  std::iota(ids.begin(), ids.end(), 0);
  for (int32_t i = 0; i < p.from.BlocksFor(p.tokens); ++i) {
    const size_t pick = random.Below(ids.size());
    p.source.push_back(BlockId(ids[pick]));
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(pick));
  }
  return p;
}

double At(const KvLayout& layout, const std::byte* block, int32_t part, int32_t slot, int32_t d) {
  const int32_t index = (part * layout.block_tokens + slot) * layout.head_dim + d;
  return ValueOf(layout.dtype, block + static_cast<size_t>(index) * DTypeBytes(layout.dtype));
}

TEST(KvConversion, EachNumberOfABlockIsThatOfItsTokenAndChecksSaySo) {
  SplitMix64 random(11);
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(round);
    const Pools p = MakePools(random);
    const Result<KvConversion> plan = KvConversion::Plan(p.from, p.to);
    ASSERT_TRUE(plan);
    std::vector<std::byte> theirs(p.to.PoolBytes(), std::byte{0x5a});
    const int32_t first =
        static_cast<int32_t>(random.Below(static_cast<uint64_t>(p.to.BlocksFor(p.tokens)))) *
        p.to.block_tokens;
    int32_t block = 0;
    for (int32_t begin = first; begin < p.tokens; begin += p.to.block_tokens, ++block) {
      const int32_t end = std::min(p.tokens, begin + p.to.block_tokens);
      for (int32_t layer = 0; layer < p.to.num_layers; ++layer) {
        std::byte* out = theirs.data() + p.to.Offset(layer, BlockId(block));
        plan->MakeBlock(p.memory.data(), layer, p.source, begin, end, 0, out);
        for (int32_t token = begin; token < end; ++token) {
          const BlockId own = p.source[static_cast<size_t>(token / p.from.block_tokens)];
          const std::byte* in = p.memory.data() + p.from.Offset(layer, own);
          for (int32_t part = 0; part < 2 * p.from.num_kv_heads; ++part) {
            for (int32_t d = 0; d < p.from.head_dim; ++d) {
              ASSERT_EQ(At(p.to, out, part, token - begin, d),
                        Expected(At(p.from, in, part, token % p.from.block_tokens, d), p.to.dtype));
            }
          }
        }
      }
    }
    const std::vector<uint64_t> checks = plan->Checks(p.memory.data(), p.source, first, p.tokens);
    ASSERT_EQ(checks.size(), static_cast<size_t>(block));
    for (int32_t i = 0; i < block; ++i) {
      const int32_t rows = std::min(p.to.block_tokens, p.tokens - first - i * p.to.block_tokens);
      EXPECT_EQ(RowsCheck(p.to, theirs.data(), BlockId(i), rows), checks[static_cast<size_t>(i)]);
      theirs[p.to.Offset(0, BlockId(i))] ^= std::byte{1};
      EXPECT_NE(RowsCheck(p.to, theirs.data(), BlockId(i), rows), checks[static_cast<size_t>(i)]);
    }
  }
}

TEST(KvConversion, RowsThatWereExchangedDoNotPass) {
  SplitMix64 random(3);
  const Pools p = MakePools(random);
  std::vector<std::byte> memory = p.memory;
  const uint64_t before = RowsCheck(p.from, memory.data(), BlockId(3), 16);
  const size_t row = static_cast<size_t>(p.from.head_dim) * DTypeBytes(p.from.dtype);
  std::byte* at = memory.data() + p.from.Offset(0, BlockId(3));
  std::swap_ranges(at, at + row, at + row);
  EXPECT_NE(RowsCheck(p.from, memory.data(), BlockId(3), 16), before);
}

TEST(KvConversion, WhatCannotBeConvertedIsNamedWithBothValues) {
  SplitMix64 random(5);
  const Pools p = MakePools(random);
  const auto refused = [&](auto change, const std::vector<std::string>& parts) {
    KvLayout to = p.from;
    change(to);
    const Result<KvConversion> plan = KvConversion::Plan(p.from, to);
    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().code, Code::kFailedPrecondition);
    for (const std::string& part : parts)
      EXPECT_NE(plan.error().message.find(part), std::string::npos) << plan.error().message;
  };
  const std::string heads = std::to_string(p.from.num_kv_heads);
  refused([](KvLayout& l) { l.num_layers = 77; }, {"num_layers", "77"});
  refused([](KvLayout& l) { l.num_kv_heads = 77; }, {"num_kv_heads", heads, "77"});
  refused([](KvLayout& l) { l.head_dim = 77; }, {"head_dim", "77"});
  refused([](KvLayout& l) { l.block_tokens = 40; }, {"block_tokens", "40"});
  refused([](KvLayout& l) { l.dtype = DType::kI32; },
          {"dtype", std::string(DTypeName(p.from.dtype)), "i32"});
}

}  // namespace
}  // namespace aisp
