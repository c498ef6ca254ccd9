#include "engine/logits_row.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace aisp {
namespace {

constexpr size_t kWidth = 4;
// A register of SSE or NEON, which every target has.
using Floats = float __attribute__((vector_size(kWidth * sizeof(float))));
using Ints = int32_t __attribute__((vector_size(kWidth * sizeof(int32_t))));
constexpr float kNothing = -std::numeric_limits<float>::infinity();

Floats Load(const float* from) {
  Floats v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

// Calls step(vector) over the row; the last vector is padded with minus infinity.
template <typename Step>
void ForVectors(std::span<const float> row, const Step& step) {
  size_t i = 0;
  for (; i + kWidth <= row.size(); i += kWidth) step(Load(row.data() + i));
  if (i == row.size()) return;
  Floats rest = Floats{} + kNothing;
  std::memcpy(&rest, row.data() + i, (row.size() - i) * sizeof(float));
  step(rest);
}

float Max(std::span<const float> row) {
  Floats most = Floats{} + kNothing;
  ForVectors(row, [&](Floats v) { most = v > most ? v : most; });
  float max = kNothing;
  for (size_t lane = 0; lane < kWidth; ++lane) max = std::max(max, most[lane]);
  return max;
}

// exp(x) for x <= 0, relative error 5e-7 for x >= -16; x is clamped to -87. Computed as 2^n * e^y
// with integer n and |y| <= ln(2) / 2, e^y by its series.
Floats Exp(Floats x) {
  constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves no room for a fraction
  Floats t = x * kLog2E;
  const Floats least = Floats{} - 125.0f;
  t = t > least ? t : least;
  const Floats whole = (t + kRound) - kRound;
  const Floats y = (t - whole) * kLn2;
  Floats p = Floats{} + 1.0f / 5040;
  for (const float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    p = p * y + c;
  const Ints bits = (__builtin_convertvector(whole, Ints) + 127) << 23;
  Floats scale;
  std::memcpy(&scale, &bits, sizeof(scale));
  return p * scale;
}

}  // namespace

// Exponent bits all set: NaN or infinite.
bool AllFinite(std::span<const float> row) {
  const auto is_bad = [](float v) {
    uint32_t bits;
    std::memcpy(&bits, &v, sizeof(bits));
    return (bits & 0x7f800000u) == 0x7f800000u;
  };
  Ints bad{};
  size_t i = 0;
  for (; i + kWidth <= row.size(); i += kWidth) {
    Ints bits;
    std::memcpy(&bits, row.data() + i, sizeof(bits));
    bad |= (bits & 0x7f800000) == 0x7f800000;
  }
  bool any = std::any_of(row.begin() + static_cast<ptrdiff_t>(i), row.end(), is_bad);
  for (size_t lane = 0; lane < kWidth; ++lane) any |= bad[lane] != 0;
  return !any;
}

TokenId ArgMax(std::span<const float> row) {
  const float max = Max(row);
  return static_cast<TokenId>(std::find(row.begin(), row.end(), max) - row.begin());
}

double LogSumExp(std::span<const float> row) {
  const float max = Max(row);
  // Sum few in single precision at a time: small terms would be lost in a large sum.
  constexpr int kMostInFloat = 32;
  double total = 0;
  Floats sum{};
  int added = 0;
  const auto flush = [&] {
    for (size_t lane = 0; lane < kWidth; ++lane) total += static_cast<double>(sum[lane]);
    sum = Floats{};
    added = 0;
  };
  ForVectors(row, [&](Floats v) {
    sum += Exp(v - max);
    if (++added == kMostInFloat) flush();
  });
  flush();
  return static_cast<double>(max) + std::log(total);
}

int32_t CountGreater(std::span<const float> row, float bound) {
  Ints count{};
  ForVectors(row, [&](Floats v) { count -= v > bound; });
  int32_t total = 0;
  for (size_t lane = 0; lane < kWidth; ++lane) total += count[lane];
  return total;
}

std::vector<TokenId> Greatest(std::span<const float> row, size_t n) {
  n = std::min(n, row.size());
  std::vector<TokenId> out;
  if (n == 0) return out;
  const auto value = [&](TokenId t) { return row[static_cast<size_t>(t)]; };
  const auto before = [&](TokenId a, TokenId b) {
    return value(a) > value(b) || (value(a) == value(b) && a < b);
  };
  constexpr size_t kFew = 64;
  if (n > kFew) {
    out.resize(row.size());
    std::iota(out.begin(), out.end(), 0);
    std::partial_sort(out.begin(), out.begin() + static_cast<ptrdiff_t>(n), out.end(), before);
    out.resize(n);
    return out;
  }
  // Keeps a sorted list; most vectors contribute nothing.
  out.reserve(n + 1);
  const auto offer = [&](TokenId t) {
    if (out.size() == n && !(value(t) > value(out.back()))) return;
    out.insert(std::upper_bound(out.begin(), out.end(), t, before), t);
    if (out.size() > n) out.pop_back();
  };
  constexpr size_t kBlock = 64;
  for (size_t i = 0; i < row.size(); i += kBlock) {
    const std::span<const float> block = row.subspan(i, std::min(kBlock, row.size() - i));
    if (out.size() == n && !(Max(block) > value(out.back()))) continue;
    for (size_t j = 0; j < block.size(); ++j) offer(static_cast<TokenId>(i + j));
  }
  return out;
}

}  // namespace aisp
