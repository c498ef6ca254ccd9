// The body of the RowKernels tables: included once by each row_kernels_<isa>.cc, which is compiled
// for its instruction set and defines AISP_LANES (floats in a vector: 4, 8, 16), AISP_ISA (a
// namespace).
//
// Everything has internal linkage and uses no function of the standard library, so that no code
// compiled for a wide instruction set can be merged into what every CPU runs.
//
// Every loop runs in an order that depends on the row alone: that is what makes the forward pass
// batch- and chunk-invariant.

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

// Lanes of (a, b) whose bit `h` is Odd, a's before b's.
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
// Lane j of the result is the sum of v[j]'s lanes: SumEach<1> takes kLanes vectors. By recursion
// and not by a loop, because only constant indices let the vectors stay in registers.
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
// The greater; a NaN wins over all.
inline __attribute__((always_inline)) V Max(V a, V b) { return ((a > b) | (a != a)) ? a : b; }
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

// ---- attention: running softmax over tiles of 16 positions (Milakov & Gimelshein,
// arXiv:1805.02867) ----

constexpr int kTile = kAttentionTile;
constexpr float kMinusInfinity = -__builtin_inff();

inline __attribute__((always_inline)) V LoadKv(const float* p) { return Load(p); }
inline __attribute__((always_inline)) V LoadKv(const uint16_t* p) { return FromBf16(p); }

// Keys and values of 16 positions, rows `stride` elements apart. Converting bf16 on the way is
// exact, so whether a tile is converted beforehand or on every load changes no bit.
template <typename T>
struct Tile {
  const T* keys;
  const T* values;
  int64_t stride;
};

struct RowState {
  float max;
  float sum;
};

constexpr int kTileVectors = kTile / kLanes;

template <typename T, size_t... j>
inline __attribute__((always_inline)) V ScoreGroup(const float* q, const T* keys, int64_t stride,
                                                   int32_t dim, std::index_sequence<j...>) {
  V sums[] = {(static_cast<void>(j), V{})...};
  for (int32_t d = 0; d < dim; d += kLanes) {
    const V qd = Load(q + d);
    ((sums[j] += qd * LoadKv(keys + static_cast<int64_t>(j) * stride + d)), ...);
  }
  return SumEach<1>(sums);
}

// Lane j of scores: q . key j.
template <typename T>
inline __attribute__((always_inline)) void Scores(const float* q, const Tile<T>& tile,
                                                  int64_t stride, int32_t dim, V* scores) {
  for (int group = 0; group < kTileVectors; ++group) {
    scores[group] = ScoreGroup(q, tile.keys + group * kLanes * stride, stride, dim,
                               std::make_index_sequence<kLanes>());
  }
}

// out = out * correction + sum over j < n of weights[j] * value j, for some vectors of out. Even
// and odd positions have sums of their own where there are registers for it, so that one addition
// need not wait for the one before.
template <typename T, size_t... k>
inline __attribute__((always_inline)) void AccumulateSome(const float* weights, int32_t n,
                                                          const T* values, int64_t stride,
                                                          float correction, float* out,
                                                          std::index_sequence<k...>) {
  V even[] = {Load(out + k * kLanes) * correction...};
  V odd[] = {(static_cast<void>(k), V{})...};
  int32_t j = 0;
  for (; j + 2 <= n; j += 2) {
    const V a = Splat(weights[j]), b = Splat(weights[j + 1]);
    const T* row = values + j * stride;
    ((even[k] += a * LoadKv(row + k * kLanes)), ...);
    ((odd[k] += b * LoadKv(row + stride + k * kLanes)), ...);
  }
  if (j < n) {
    const V a = Splat(weights[j]);
    ((even[k] += a * LoadKv(values + j * stride + k * kLanes)), ...);
  }
  ((Store(out + k * kLanes, even[k] + odd[k])), ...);
}
template <typename T>
inline __attribute__((always_inline)) void Accumulate(const float* weights, int32_t n,
                                                      const Tile<T>& tile, int64_t stride,
                                                      int32_t dim, float correction, float* out) {
  int32_t d = 0;
  for (; d + 4 * kLanes <= dim; d += 4 * kLanes) {
    AccumulateSome(weights, n, tile.values + d, stride, correction, out + d,
                   std::make_index_sequence<4>());
  }
  for (; d < dim; d += kLanes) {
    AccumulateSome(weights, n, tile.values + d, stride, correction, out + d,
                   std::make_index_sequence<1>());
  }
}

// Lanes [from, n) of the tile are visible to this row; those from n on may hold anything, NaN
// included. kDim: the head size and stride where they are known at compile time, else 0.
template <typename T, int kDim>
inline void AttendTile(const float* q, const AttendTask& task, const Tile<T>& tile, int32_t from,
                       int32_t n, RowState* state, float* out) {
  const int64_t stride = kDim > 0 ? kDim : tile.stride;
  V scores[kTileVectors];
  Scores(q, tile, stride, kDim > 0 ? kDim : task.q_dim, scores);
  V maxima = Splat(state->max);
  for (int k = 0; k < kTileVectors; ++k) {
    const I lane = LaneIndex(std::make_index_sequence<kLanes>()) + k * kLanes;
    const I visible = (lane >= from) & (lane < n);
    scores[k] = visible ? scores[k] * task.scale : Splat(kMinusInfinity);
    maxima = Max(scores[k], maxima);
  }
  const float max = MaxLanes(maxima);
  const float correction = Exp(Splat(state->max - max))[0];
  float weights[kTile];
  V sums = Splat(0.0f);
  for (int k = 0; k < kTileVectors; ++k) {
    const V w = Exp(scores[k] - max);
    Store(weights + k * kLanes, w);
    sums += w;
  }
  state->max = max;
  state->sum = state->sum * correction + SumLanes(sums);
  Accumulate(weights, n, tile, stride, kDim > 0 ? kDim : task.v_dim, correction, out);
}

template <typename T>
Tile<T> TileInPool(const AttendTask& task, int32_t position) {
  const int32_t block = task.table[position / task.block_tokens];
  const int64_t slot = position % task.block_tokens;
  const std::byte* keys = task.keys + static_cast<size_t>(block) * task.block_bytes;
  const std::byte* values = keys + task.value_offset;
  return {reinterpret_cast<const T*>(keys) + slot * task.slot_dim,
          reinterpret_cast<const T*>(values) + slot * task.slot_dim, task.slot_dim};
}

void Widen(const AttendTask&, const uint16_t* x, float* y, int64_t n) { FromBf16Row(x, y, n); }
void Widen(const AttendTask& task, const uint8_t* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = task.fp8_values[x[i]];
}

// A bf16 or fp8 tile as f32 in scratch memory, with the pool's own stride.
template <typename T>
Tile<float> ConvertTile(const AttendTask& task, const Tile<T>& from, float* scratch) {
  float* values = scratch + kTile * task.slot_dim;
  for (int j = 0; j < kTile; ++j) {
    Widen(task, from.keys + j * from.stride, scratch + j * task.slot_dim, task.q_dim);
    Widen(task, from.values + j * from.stride, values + j * task.slot_dim, task.v_dim);
  }
  return {scratch, values, task.slot_dim};
}

int32_t FirstVisible(const AttendTask& task, int32_t position) {
  return task.window > 0 && position >= task.window ? position - task.window + 1 : 0;
}

// All rows that see something of the tile at `begin`.
template <typename T, int kDim>
void AttendRows(const AttendTask& task, const Tile<T>& tile, int32_t begin, RowState* state,
                float* out) {
  const int32_t first_row = begin > task.first_position ? begin - task.first_position : 0;
  for (int32_t r = first_row; r < task.rows; ++r) {
    const int32_t position = task.first_position + r;
    const int32_t from = FirstVisible(task, position) - begin;
    if (from >= kTile) continue;
    const int32_t n = position - begin + 1 < kTile ? position - begin + 1 : kTile;
    for (int32_t h = 0; h < task.group; ++h) {
      const int32_t i = r * task.group + h;
      AttendTile<T, kDim>(task.q + r * task.q_row_stride + h * task.q_head_stride, task, tile, from,
                          n, &state[i], out + static_cast<int64_t>(i) * task.v_dim);
    }
  }
}

template <int kDim>
void AttendAll(const AttendTask& task, RowState* state, float* out, float* tile_memory) {
  constexpr int32_t kFewRows = 4;  // for which converting a tile beforehand does not pay
  const bool direct = !task.kv_bf16 || task.rows * task.group <= kFewRows;
  const int32_t last = task.first_position + task.rows - 1;
  const int32_t first_tile = FirstVisible(task, task.first_position) / kTile * kTile;
  for (int32_t begin = first_tile; begin <= last; begin += kTile) {
    if (task.fp8_values != nullptr) {
      AttendRows<float, kDim>(task,
                              ConvertTile(task, TileInPool<uint8_t>(task, begin), tile_memory),
                              begin, state, out);
    } else if (!task.kv_bf16) {
      AttendRows<float, kDim>(task, TileInPool<float>(task, begin), begin, state, out);
    } else if (direct) {
      AttendRows<uint16_t, kDim>(task, TileInPool<uint16_t>(task, begin), begin, state, out);
    } else {
      AttendRows<float, kDim>(task,
                              ConvertTile(task, TileInPool<uint16_t>(task, begin), tile_memory),
                              begin, state, out);
    }
  }
}

void Attend(const AttendTask& task) {
  const int32_t states = task.rows * task.group;
  auto* state = reinterpret_cast<RowState*>(task.scratch);
  float* out = task.scratch + 2 * states;
  float* tile_memory = out + static_cast<int64_t>(states) * task.v_dim;
  for (int32_t i = 0; i < states; ++i) state[i] = {kMinusInfinity, 0.0f};
  for (int64_t i = 0; i < static_cast<int64_t>(states) * task.v_dim; ++i) out[i] = 0.0f;
  const bool square = task.q_dim == task.slot_dim && task.v_dim == task.slot_dim;
  if (square && task.slot_dim == 64) {
    AttendAll<64>(task, state, out, tile_memory);
  } else if (square && task.slot_dim == 128) {
    AttendAll<128>(task, state, out, tile_memory);
  } else {
    AttendAll<0>(task, state, out, tile_memory);
  }

  for (int32_t r = 0; r < task.rows; ++r) {
    for (int32_t h = 0; h < task.group; ++h) {
      const int32_t i = r * task.group + h;
      const float inverse = 1.0f / state[i].sum;
      const float* from = out + static_cast<int64_t>(i) * task.v_dim;
      const int64_t to = r * task.out_row_stride + h * task.out_head_stride;
      for (int32_t d = 0; d < task.v_dim; d += kLanes)
        StoreVector(task.out, task.out_bf16, to + d, Load(from + d) * inverse);
    }
  }
}

}  // namespace AISP_ISA
}  // namespace
}  // namespace aisp
