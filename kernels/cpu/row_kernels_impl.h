// The body of the RowKernels tables. Each row_kernels_<isa>.cc includes it once; it is compiled for
// its instruction set and defines AISP_LANES (floats per vector: 4, 8, 16) and AISP_ISA (a
// namespace).
//
// Everything has internal linkage and uses no standard library function. Otherwise the linker could
// merge code compiled for a wide instruction set into code that every CPU runs.
//
// The order of every loop depends on the row alone, which makes the forward pass batch- and
// chunk-invariant.

#if AISP_LANES > 4
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/cpu/row_kernels.h"

namespace aisp {
namespace {
namespace AISP_ISA {

constexpr int kLanes = AISP_LANES;
typedef float V __attribute__((vector_size(4 * AISP_LANES)));
typedef int32_t I __attribute__((vector_size(4 * AISP_LANES)));
typedef uint32_t U __attribute__((vector_size(4 * AISP_LANES)));
typedef uint16_t H __attribute__((vector_size(2 * AISP_LANES)));

inline __attribute__((always_inline)) V Load(const float* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
inline __attribute__((always_inline)) void Store(float* p, V v) {
  __builtin_memcpy(p, &v, sizeof(v));
}
// x - 0 compiles to nothing; x + 0 does not, because of signed zeros.
inline __attribute__((always_inline)) V Splat(float x) { return x - V{}; }

// GCC 12 emits five instructions for __builtin_convertvector here; one suffices.
inline __attribute__((always_inline)) V FromBf16(const uint16_t* p) {
#if AISP_LANES == 16
  return (V)((U)_mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256((const __m256i*)p)) << 16);
#elif AISP_LANES == 8
  return (V)((U)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)) << 16);
#else
  H h;
  __builtin_memcpy(&h, p, sizeof(h));
  return (V)(__builtin_convertvector(h, U) << 16);
#endif
}
// Round to nearest, ties to even; NaN stays NaN.
inline __attribute__((always_inline)) void StoreBf16(uint16_t* p, V v) {
  const U u = (U)v;
  const U rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const U nan = (u >> 16) | 0x40u;
  const H h = __builtin_convertvector((v == v) ? rounded : nan, H);
  __builtin_memcpy(p, &h, sizeof(h));
}
inline float ScalarFromBf16(uint16_t h) {
  const uint32_t u = static_cast<uint32_t>(h) << 16;
  float f;
  __builtin_memcpy(&f, &u, sizeof(f));
  return f;
}
inline uint16_t ScalarToBf16(float f) {
  uint32_t u;
  __builtin_memcpy(&u, &f, sizeof(u));
  if (f != f) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
inline void StoreScalar(void* y, bool bf16, int64_t i, float v) {
  if (bf16) {
    static_cast<uint16_t*>(y)[i] = ScalarToBf16(v);
  } else {
    static_cast<float*>(y)[i] = v;
  }
}
inline __attribute__((always_inline)) void StoreVector(void* y, bool bf16, int64_t i, V v) {
  if (bf16) {
    StoreBf16(static_cast<uint16_t*>(y) + i, v);
  } else {
    Store(static_cast<float*>(y) + i, v);
  }
}

// exp with a relative error of 2e-7: 2^n * p(r), n = round(x / ln 2), r in [-ln2/2, ln2/2]. 0 below
// -87, e^88 above 88.
inline __attribute__((always_inline)) V Exp(V x) {
  const V low = Splat(-87.0f);
  const V high = Splat(88.0f);
  V t = (x > high) ? high : x;
  t = (t < low) ? low : t;
  const V magic = Splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const V shifted = t * 1.44269504088896341f + magic;
  const V n = shifted - magic;
  V r = t - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  V p = Splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const V two_n = (V)(((I)shifted - (I)magic + 127) << 23);
  const V y = p * two_n;
  return (x < low) ? Splat(0.0f) : y;
}

// The lanes of (a, b) whose bit `h` equals `odd`, a's before b's.
template <int h, bool odd, size_t... i>
inline __attribute__((always_inline)) V Pick(V a, V b, std::index_sequence<i...>) {
  constexpr int half = kLanes / 2;
  return __builtin_shufflevector(
      a, b,
      (static_cast<int>(i) / half * kLanes + (static_cast<int>(i) % half) / h * 2 * h +
       (static_cast<int>(i) % half) % h + (odd ? h : 0))...);
}
template <int h>
inline __attribute__((always_inline)) V Fold(V a, V b) {
  return Pick<h, false>(a, b, std::make_index_sequence<kLanes>()) +
         Pick<h, true>(a, b, std::make_index_sequence<kLanes>());
}
// Lane j of the result is the sum of v[j]'s lanes: SumEach<1> takes kLanes vectors. Recursive,
// because only constant indices let the vectors stay in registers.
template <int h>
inline __attribute__((always_inline)) V SumEach(const V* v) {
  if constexpr (h == kLanes) {
    return v[0];
  } else {
    return Fold<h>(SumEach<2 * h>(v), SumEach<2 * h>(v + kLanes / (2 * h)));
  }
}
// Lane i gets lane i ^ h.
template <int h, size_t... i>
inline __attribute__((always_inline)) V Swap(V v, std::index_sequence<i...>) {
  return __builtin_shufflevector(v, v, (static_cast<int>(i) ^ h)...);
}
template <int h>
inline __attribute__((always_inline)) V Swap(V v) {
  return Swap<h>(v, std::make_index_sequence<kLanes>());
}
inline __attribute__((always_inline)) float SumLanes(V v) {
  if constexpr (kLanes == 16) v += Swap<8>(v);
  if constexpr (kLanes >= 8) v += Swap<4>(v);
  v += Swap<2>(v);
  v += Swap<1>(v);
  return v[0];
}
// The maximum; NaN if either is NaN.
inline __attribute__((always_inline)) V Max(V a, V b) { return ((a > b) | (a != a)) ? a : b; }
// Lane j of the result is the maximum of v[j]'s lanes, as with SumEach.
template <int h>
inline __attribute__((always_inline)) V MaxEach(const V* v) {
  if constexpr (h == kLanes) {
    return v[0];
  } else {
    const V a = MaxEach<2 * h>(v), b = MaxEach<2 * h>(v + kLanes / (2 * h));
    return Max(Pick<h, false>(a, b, std::make_index_sequence<kLanes>()),
               Pick<h, true>(a, b, std::make_index_sequence<kLanes>()));
  }
}
inline __attribute__((always_inline)) float MaxLanes(V v) {
  if constexpr (kLanes == 16) v = Max(v, Swap<8>(v));
  if constexpr (kLanes >= 8) v = Max(v, Swap<4>(v));
  v = Max(v, Swap<2>(v));
  v = Max(v, Swap<1>(v));
  return v[0];
}
template <size_t... i>
inline __attribute__((always_inline)) I LaneIndex(std::index_sequence<i...>) {
  return I{static_cast<int32_t>(i)...};
}

void RmsNorm(const float* x, const float* weight, void* y, bool y_bf16, int64_t dim,
             float epsilon) {
  V sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= dim; i += 4 * kLanes) {
    for (int k = 0; k < 4; ++k) {
      const V v = Load(x + i + k * kLanes);
      sums[k] += v * v;
    }
  }
  float sum = SumLanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; i < dim; ++i) sum += x[i] * x[i];
  const float scale = 1.0f / __builtin_sqrtf(sum / static_cast<float>(dim) + epsilon);
  i = 0;
  for (; i + kLanes <= dim; i += kLanes)
    StoreVector(y, y_bf16, i, Load(x + i) * scale * Load(weight + i));
  for (; i < dim; ++i) StoreScalar(y, y_bf16, i, x[i] * scale * weight[i]);
}

inline __attribute__((always_inline)) V Silu(V x) { return x / (1.0f + Exp(-x)); }

void SiluMul(const float* x, void* y, bool y_bf16, int64_t dim) {
  const float* up = x + dim;
  int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes)
    StoreVector(y, y_bf16, i, Silu(Load(x + i)) * Load(up + i));
  for (; i < dim; ++i) StoreScalar(y, y_bf16, i, Silu(Splat(x[i]))[0] * up[i]);
}

void RotateHalf(float* x, const float* cosine, const float* sine, int64_t half) {
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const V a = Load(x + i), b = Load(x + half + i), c = Load(cosine + i), s = Load(sine + i);
    Store(x + i, a * c - b * s);
    Store(x + half + i, b * c + a * s);
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    x[i] = a * cosine[i] - b * sine[i];
    x[half + i] = b * cosine[i] + a * sine[i];
  }
}

void AddScaled(float* y, const float* x, float weight, int64_t dim) {
  int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) Store(y + i, Load(y + i) + Load(x + i) * weight);
  for (; i < dim; ++i) y[i] += x[i] * weight;
}

void ToBf16(const float* x, uint16_t* y, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) StoreBf16(y + i, Load(x + i));
  for (; i < n; ++i) y[i] = ScalarToBf16(x[i]);
}

void FromBf16Row(const uint16_t* x, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(y + i, FromBf16(x + i));
  for (; i < n; ++i) y[i] = ScalarFromBf16(x[i]);
}

}  // namespace AISP_ISA
}  // namespace
}  // namespace aisp
