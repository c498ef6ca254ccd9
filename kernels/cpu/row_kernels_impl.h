// The body of the RowKernels tables: included once by each row_kernels_<isa>.cc, which is compiled for its instruction set and
// defines AISP_LANES (floats in a vector: 4, 8, 16), AISP_ISA (a namespace).
//
// Everything has internal linkage and uses no function of the standard library, so that no code compiled for a wide
// instruction set can be merged into what every CPU runs.
//
// Every loop runs in an order that depends on the row alone: that is what makes the forward pass batch- and chunk-invariant.

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
inline __attribute__((always_inline)) void Store(float* p, V v) { __builtin_memcpy(p, &v, sizeof(v)); }
inline __attribute__((always_inline)) V Splat(float x) { return V{} + x; }

inline __attribute__((always_inline)) V FromBf16(const uint16_t* p) {
  H h;
  __builtin_memcpy(&h, p, sizeof(h));
  return (V)(__builtin_convertvector(h, U) << 16);
}
// Round to nearest, ties to even; a NaN stays one.
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

// exp with a relative error of 2e-7: 2^n * p(r), n = round(x / ln 2), r in [-ln2/2, ln2/2]. 0 below -87, e^88 above 88.
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

// Lanes of (a, b) whose bit `h` is Odd, a's before b's.
template <int h, bool odd, size_t... i>
inline __attribute__((always_inline)) V Pick(V a, V b, std::index_sequence<i...>) {
  constexpr int half = kLanes / 2;
  return __builtin_shufflevector(
      a, b,
      (static_cast<int>(i) / half * kLanes + (static_cast<int>(i) % half) / h * 2 * h + (static_cast<int>(i) % half) % h +
       (odd ? h : 0))...);
}
template <int h>
inline __attribute__((always_inline)) V Fold(V a, V b) {
  return Pick<h, false>(a, b, std::make_index_sequence<kLanes>()) + Pick<h, true>(a, b, std::make_index_sequence<kLanes>());
}
// Lane j of the result is the sum of v[j]'s lanes.
inline __attribute__((always_inline)) V SumEach(V* v) {
  if constexpr (kLanes == 16) {
    for (int j = 0; j < 8; ++j) v[j] = Fold<8>(v[2 * j], v[2 * j + 1]);
  }
  if constexpr (kLanes >= 8) {
    for (int j = 0; j < 4; ++j) v[j] = Fold<4>(v[2 * j], v[2 * j + 1]);
  }
  for (int j = 0; j < 2; ++j) v[j] = Fold<2>(v[2 * j], v[2 * j + 1]);
  return Fold<1>(v[0], v[1]);
}
inline float SumLanes(V v) {
  float lanes[kLanes];
  Store(lanes, v);
  for (int h = kLanes / 2; h > 0; h /= 2) {
    for (int i = 0; i < h; ++i) lanes[i] += lanes[i + h];
  }
  return lanes[0];
}

void RmsNorm(const float* x, const float* weight, void* y, bool y_bf16, int64_t dim, float epsilon) {
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
  for (; i + kLanes <= dim; i += kLanes) StoreVector(y, y_bf16, i, Load(x + i) * scale * Load(weight + i));
  for (; i < dim; ++i) StoreScalar(y, y_bf16, i, x[i] * scale * weight[i]);
}

inline __attribute__((always_inline)) V Silu(V x) { return x / (1.0f + Exp(-x)); }

void SiluMul(const float* x, void* y, bool y_bf16, int64_t dim) {
  const float* up = x + dim;
  int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) StoreVector(y, y_bf16, i, Silu(Load(x + i)) * Load(up + i));
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

// ---- attention: running softmax over tiles of 16 positions (Milakov & Gimelshein, arXiv:1805.02867) ----

constexpr int kTile = kAttentionTile;
constexpr float kMinusInfinity = -__builtin_inff();

struct Tile {
  const float* keys;  // [16, key_stride]
  const float* values;
  int64_t key_stride;
  int64_t value_stride;
};

struct RowState {
  float max;
  float sum;
};

// scores[j] = q . key j
inline __attribute__((always_inline)) void Scores(const float* q, const Tile& tile, int32_t dim, float* scores) {
  for (int first = 0; first < kTile; first += kLanes) {
    V sums[kLanes] = {};
    const float* keys = tile.keys + first * tile.key_stride;
    for (int32_t d = 0; d < dim; d += kLanes) {
      const V qd = Load(q + d);
#pragma GCC unroll 16
      for (int j = 0; j < kLanes; ++j) sums[j] += qd * Load(keys + j * tile.key_stride + d);
    }
    Store(scores + first, SumEach(sums));
  }
}

// out = out * correction + sum over j < n of weights[j] * value j, `kVectors` vectors at a time.
template <int kVectors>
inline __attribute__((always_inline)) void Accumulate(const float* weights, int32_t n, const Tile& tile, int32_t d,
                                                      float correction, float* out) {
  V sums[kVectors];
  for (int k = 0; k < kVectors; ++k) sums[k] = Load(out + d + k * kLanes) * correction;
  const float* values = tile.values + d;
  for (int32_t j = 0; j < n; ++j) {
    const V w = Splat(weights[j]);
    for (int k = 0; k < kVectors; ++k) sums[k] += w * Load(values + j * tile.value_stride + k * kLanes);
  }
  for (int k = 0; k < kVectors; ++k) Store(out + d + k * kLanes, sums[k]);
}

// Lanes [from, n) of the tile are visible to this row; those from n on may hold anything, NaN included.
inline void AttendTile(const float* q, const AttendTask& task, const Tile& tile, int32_t from, int32_t n, RowState* state,
                       float* out) {
  float scores[kTile];
  Scores(q, tile, task.q_dim, scores);
  float max = state->max;
  for (int32_t j = 0; j < kTile; ++j) {
    const bool visible = j >= from && j < n;
    scores[j] = visible ? scores[j] * task.scale : kMinusInfinity;
  }
  for (int32_t j = 0; j < kTile; ++j) max = scores[j] > max || scores[j] != scores[j] ? scores[j] : max;
  const float correction = Exp(Splat(state->max - max))[0];
  V sums = Splat(0.0f);
  for (int32_t j = 0; j < kTile; j += kLanes) {
    const V w = Exp(Load(scores + j) - max);
    Store(scores + j, w);
    sums += w;
  }
  state->max = max;
  state->sum = state->sum * correction + SumLanes(sums);
  int32_t d = 0;
  for (; d + 4 * kLanes <= task.v_dim; d += 4 * kLanes) Accumulate<4>(scores, n, tile, d, correction, out);
  for (; d < task.v_dim; d += kLanes) Accumulate<1>(scores, n, tile, d, correction, out);
}

void LoadTile(const AttendTask& task, int32_t position, float* scratch, Tile* tile) {
  const int32_t block = task.table[position / task.block_tokens];
  const int64_t slot = position % task.block_tokens;
  const std::byte* keys = task.keys + static_cast<size_t>(block) * task.block_bytes;
  const std::byte* values = keys + task.value_offset;
  if (!task.kv_bf16) {
    tile->keys = reinterpret_cast<const float*>(keys) + slot * task.slot_dim;
    tile->values = reinterpret_cast<const float*>(values) + slot * task.slot_dim;
    tile->key_stride = tile->value_stride = task.slot_dim;
    return;
  }
  const auto* k = reinterpret_cast<const uint16_t*>(keys) + slot * task.slot_dim;
  const auto* v = reinterpret_cast<const uint16_t*>(values) + slot * task.slot_dim;
  float* key_tile = scratch;
  float* value_tile = scratch + kTile * task.q_dim;
  for (int j = 0; j < kTile; ++j) {
    FromBf16Row(k + j * task.slot_dim, key_tile + j * task.q_dim, task.q_dim);
    FromBf16Row(v + j * task.slot_dim, value_tile + j * task.v_dim, task.v_dim);
  }
  *tile = {key_tile, value_tile, task.q_dim, task.v_dim};
}

int32_t FirstVisible(const AttendTask& task, int32_t position) {
  return task.window > 0 && position >= task.window ? position - task.window + 1 : 0;
}

void Attend(const AttendTask& task) {
  const int32_t states = task.rows * task.group;
  auto* state = reinterpret_cast<RowState*>(task.scratch);
  float* out = task.scratch + 2 * states;
  float* tile_memory = out + static_cast<int64_t>(states) * task.v_dim;
  for (int32_t i = 0; i < states; ++i) state[i] = {kMinusInfinity, 0.0f};
  for (int64_t i = 0; i < static_cast<int64_t>(states) * task.v_dim; ++i) out[i] = 0.0f;

  const int32_t last = task.first_position + task.rows - 1;
  const int32_t first_tile = FirstVisible(task, task.first_position) / kTile * kTile;
  for (int32_t begin = first_tile; begin <= last; begin += kTile) {
    Tile tile;
    LoadTile(task, begin, tile_memory, &tile);
    const int32_t first_row = begin > task.first_position ? begin - task.first_position : 0;
    for (int32_t r = first_row; r < task.rows; ++r) {
      const int32_t position = task.first_position + r;
      const int32_t from = FirstVisible(task, position) - begin;
      if (from >= kTile) continue;
      const int32_t n = position - begin + 1 < kTile ? position - begin + 1 : kTile;
      for (int32_t h = 0; h < task.group; ++h) {
        const int32_t i = r * task.group + h;
        AttendTile(task.q + r * task.q_row_stride + h * task.q_head_stride, task, tile, from, n, &state[i],
                   out + static_cast<int64_t>(i) * task.v_dim);
      }
    }
  }

  for (int32_t r = 0; r < task.rows; ++r) {
    for (int32_t h = 0; h < task.group; ++h) {
      const int32_t i = r * task.group + h;
      const float inverse = 1.0f / state[i].sum;
      const float* from = out + static_cast<int64_t>(i) * task.v_dim;
      const int64_t to = r * task.out_row_stride + h * task.out_head_stride;
      for (int32_t d = 0; d < task.v_dim; d += kLanes) StoreVector(task.out, task.out_bf16, to + d, Load(from + d) * inverse);
    }
  }
}

}  // namespace AISP_ISA
}  // namespace
}  // namespace aisp
