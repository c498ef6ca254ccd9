// Attention of the RowKernels tables: included after row_kernels_impl.h, for each instruction set.
//
// Online softmax over tiles of 16 positions (Milakov & Gimelshein, arXiv:1805.02867). Rows and
// heads that see a tile are processed together: its keys and values are loaded once for several of
// them, and their latencies overlap. Each has its own sums in a fixed order, so the result does not
// depend on which of the code paths below is taken.

namespace aisp {
namespace {
namespace AISP_ISA {

constexpr int kTile = kAttentionTile;
constexpr int kTileVectors = kTile / kLanes;
constexpr float kMinusInfinity = -__builtin_inff();
// Rows and heads whose scores of a tile are kept at once.
constexpr int kBatch = kLanes;
// Rows and heads that share loads: as many as keep all sums in registers.
constexpr int kShare = kLanes == 16 ? 2 : 1;
constexpr int kColumns = 4;
// From this number on the weights of all scores are computed together.
constexpr int32_t kWeighAll = 3;
// From this number on bf16 is converted once beforehand; never if conversion costs only a load.
constexpr int32_t kConvertBf16 = kLanes == 4 ? 5 : 1 << 30;

inline __attribute__((always_inline)) V LoadKv(const float* p) { return Load(p); }
inline __attribute__((always_inline)) V LoadKv(const uint16_t* p) { return FromBf16(p); }

// 16 positions, rows `stride` elements apart. Converting bf16 is exact, so doing it beforehand or
// on each load gives the same bits.
template <typename T>
struct Rows {
  const T* first;
  int64_t stride;
};

// Per row and head: the running maximum score, and the sum of weights relative to it.
struct State {
  float* max;
  float* sum;
};

// One row and head.
struct Query {
  const float* q;
  float* out;  // sum of weighted values
  // The lanes [from, n) of the tile that it sees; lanes from n on may hold anything, NaN included.
  int32_t from, n;
};

// Sums over d of kQueries queries times kKeys keys, lane by lane.
template <int kQueries, int kKeys, typename T>
inline __attribute__((always_inline)) void Products(const Query* queries, const T* keys,
                                                    int64_t stride, int32_t dim, V (*sums)[kKeys]) {
#pragma GCC unroll 2
  for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kKeys; ++j) sums[i][j] = V{};
  }
  for (int32_t d = 0; d < dim; d += kLanes) {
    V q[kQueries];
#pragma GCC unroll 2
    for (int i = 0; i < kQueries; ++i) q[i] = Load(queries[i].q + d);
#pragma GCC unroll 16
    for (int j = 0; j < kKeys; ++j) {
      const V key = LoadKv(keys + static_cast<int64_t>(j) * stride + d);
#pragma GCC unroll 2
      for (int i = 0; i < kQueries; ++i) sums[i][j] += q[i] * key;
    }
  }
}

// Lane j of scores[i] is queries[i] . key j.
template <int kQueries, typename T>
inline __attribute__((always_inline)) void Scores(const Query* queries, const Rows<T>& keys,
                                                  int64_t stride, int32_t dim,
                                                  V (*scores)[kTileVectors]) {
  constexpr int kKeys = kLanes / kQueries;
  for (int group = 0; group < kTileVectors; ++group) {
    const T* const from = keys.first + group * kLanes * stride;
    V sums[kQueries][kKeys];
    Products<kQueries, kKeys>(queries, from, stride, dim, sums);
    if constexpr (kQueries == 1) {
      scores[0][group] = SumEach<1>(sums[0]);
    } else {
      const V first[] = {SumEach<2>(sums[0]), SumEach<2>(sums[1])};
      Products<kQueries, kKeys>(queries, from + kKeys * stride, stride, dim, sums);
      scores[0][group] = Fold<1>(first[0], SumEach<2>(sums[0]));
      scores[1][group] = Fold<1>(first[1], SumEach<2>(sums[1]));
    }
  }
}

inline __attribute__((always_inline)) void Mask(const Query& query, float scale, V* scores) {
  for (int k = 0; k < kTileVectors; ++k) {
    const I lane = LaneIndex(std::make_index_sequence<kLanes>()) + k * kLanes;
    const I visible = (lane >= query.from) & (lane < query.n);
    scores[k] = visible ? scores[k] * scale : Splat(kMinusInfinity);
  }
}
// Computes weights; returns their sums, lane by lane.
inline __attribute__((always_inline)) V Weigh(const V* scores, float max, float* weights) {
  V sums = Splat(0.0f);
  for (int k = 0; k < kTileVectors; ++k) {
    const V w = Exp(scores[k] - max);
    Store(weights + k * kLanes, w);
    sums += w;
  }
  return sums;
}

// Turns scores into weights; `correction` is the factor for the earlier sums.
void WeighOne(const Query& query, float scale, State state, V* scores, float* weights,
              float* correction) {
  Mask(query, scale, scores);
  V maxima = Splat(*state.max);
  for (int k = 0; k < kTileVectors; ++k) maxima = Max(scores[k], maxima);
  const float max = MaxLanes(maxima);
  *correction = Exp(Splat(*state.max - max))[0];
  const V sums = Weigh(scores, max, weights);
  *state.max = max;
  *state.sum = *state.sum * *correction + SumLanes(sums);
}

// The same for kLanes queries at once, `count` of them valid.
void WeighAll(const Query* queries, int32_t count, float scale, State state,
              V (*scores)[kTileVectors], float (*weights)[kTile], float* corrections) {
  V each[kLanes];
  for (int32_t i = 0; i < count; ++i) {
    Mask(queries[i], scale, scores[i]);
    each[i] = scores[i][0];
    for (int k = 1; k < kTileVectors; ++k) each[i] = Max(scores[i][k], each[i]);
  }
  for (int32_t i = count; i < kLanes; ++i) each[i] = V{};
  const V old = Load(state.max), sum = Load(state.sum);
  const V max = Max(MaxEach<1>(each), old);
  const V correction = Exp(old - max);
  float greatest[kLanes];
  Store(greatest, max);
  Store(corrections, correction);
  for (int32_t i = 0; i < count; ++i) each[i] = Weigh(scores[i], greatest[i], weights[i]);
  const I there = LaneIndex(std::make_index_sequence<kLanes>()) < count;
  Store(state.max, there ? max : old);
  Store(state.sum, there ? sum * correction + SumEach<1>(each) : sum);
}

// out = out * correction + sum over j < n of weights[j] * value j, for kVectors vectors of out of
// kQueries queries. Even and odd positions have separate sums, to shorten the dependency chain.
template <int kQueries, int kVectors, typename T>
inline __attribute__((always_inline)) void AccumulateSome(const Query* queries,
                                                          const float (*weights)[kTile],
                                                          const float* corrections, int32_t n,
                                                          const T* values, int64_t stride,
                                                          int32_t column) {
  V even[kQueries][kVectors], odd[kQueries][kVectors];
#pragma GCC unroll 2
  for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 4
    for (int k = 0; k < kVectors; ++k) {
      even[i][k] = Load(queries[i].out + column + k * kLanes) * corrections[i];
      odd[i][k] = V{};
    }
  }
  const auto add = [&](int32_t j, V(*sums)[kVectors]) __attribute__((always_inline)) {
    V weight[kQueries];
#pragma GCC unroll 2
    for (int i = 0; i < kQueries; ++i) weight[i] = Splat(weights[i][j]);
#pragma GCC unroll 4
    for (int k = 0; k < kVectors; ++k) {
      const V value = LoadKv(values + j * stride + column + k * kLanes);
#pragma GCC unroll 2
      for (int i = 0; i < kQueries; ++i) sums[i][k] += weight[i] * value;
    }
  };
  int32_t j = 0;
  for (; j + 2 <= n; j += 2) {
    add(j, even);
    add(j + 1, odd);
  }
  if (j < n) add(j, even);
#pragma GCC unroll 2
  for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 4
    for (int k = 0; k < kVectors; ++k)
      Store(queries[i].out + column + k * kLanes, even[i][k] + odd[i][k]);
  }
}
template <int kQueries, typename T>
inline __attribute__((always_inline)) void Accumulate(const Query* queries,
                                                      const float (*weights)[kTile],
                                                      const float* corrections,
                                                      const Rows<T>& values, int64_t stride,
                                                      int32_t dim) {
  int32_t d = 0;
  const int32_t n = queries[0].n;
  for (; d + kColumns * kLanes <= dim; d += kColumns * kLanes) {
    AccumulateSome<kQueries, kColumns>(queries, weights, corrections, n, values.first, stride, d);
  }
  for (; d < dim; d += kLanes)
    AccumulateSome<kQueries, 1>(queries, weights, corrections, n, values.first, stride, d);
}

template <typename T>
struct Tile {
  Rows<T> keys, values;
};

// At most kBatch queries.
template <int kDim, typename T>
void AttendBatch(const AttendTask& task, const Query* queries, int32_t count, State state,
                 const Tile<T>& tile) {
  V scores[kBatch][kTileVectors];
  float weights[kBatch][kTile];
  float corrections[kBatch];
  const int32_t q_dim = kDim > 0 ? kDim : task.q_dim, v_dim = kDim > 0 ? kDim : task.v_dim;
  const int64_t stride = kDim > 0 ? kDim : tile.keys.stride;
  int32_t i = 0;
  for (; i + kShare <= count; i += kShare)
    Scores<kShare>(queries + i, tile.keys, stride, q_dim, scores + i);
  for (; i < count; ++i) Scores<1>(queries + i, tile.keys, stride, q_dim, scores + i);
  if (count < kWeighAll) {
    for (i = 0; i < count; ++i) {
      WeighOne(queries[i], task.scale, {state.max + i, state.sum + i}, scores[i], weights[i],
               &corrections[i]);
    }
  } else {
    WeighAll(queries, count, task.scale, state, scores, weights, corrections);
  }
  for (i = 0; i < count;) {
    if (i + kShare <= count && queries[i].n == queries[i + kShare - 1].n) {
      Accumulate<kShare>(queries + i, weights + i, corrections + i, tile.values, stride, v_dim);
      i += kShare;
    } else {
      Accumulate<1>(queries + i, weights + i, corrections + i, tile.values, stride, v_dim);
      ++i;
    }
  }
}

int32_t FirstVisible(const AttendTask& task, int32_t position) {
  return task.window > 0 && position >= task.window ? position - task.window + 1 : 0;
}

// All rows that see part of the tile at `begin`.
template <int kDim, typename T>
void AttendRows(const AttendTask& task, const Tile<T>& tile, int32_t begin, State state,
                float* out) {
  Query queries[kBatch];
  int32_t count = 0;
  const int32_t first_row = begin > task.first_position ? begin - task.first_position : 0;
  int64_t done = static_cast<int64_t>(first_row) * task.group;
  const auto attend = [&] {
    AttendBatch<kDim>(task, queries, count, {state.max + done, state.sum + done}, tile);
    done += std::exchange(count, 0);
  };
  for (int32_t r = first_row; r < task.rows; ++r) {
    const int32_t position = task.first_position + r;
    const int32_t from = FirstVisible(task, position) - begin;
    if (from >= kTile) break;
    const int32_t n = position - begin + 1 < kTile ? position - begin + 1 : kTile;
    for (int32_t h = 0; h < task.group; ++h) {
      const int64_t i = static_cast<int64_t>(r) * task.group + h;
      queries[count++] = {task.q + r * task.q_row_stride + h * task.q_head_stride,
                          out + i * task.v_dim, from, n};
      if (count == kBatch) attend();
    }
  }
  if (count > 0) attend();
}

template <typename T>
Tile<T> TileInPool(const AttendTask& task, int32_t position) {
  const int32_t block = task.table[position / task.block_tokens];
  const int64_t slot = position % task.block_tokens;
  const std::byte* keys = task.keys + static_cast<size_t>(block) * task.block_bytes;
  const std::byte* values = keys + task.value_offset;
  return {{reinterpret_cast<const T*>(keys) + slot * task.slot_dim, task.slot_dim},
          {reinterpret_cast<const T*>(values) + slot * task.slot_dim, task.slot_dim}};
}

void Widen(const AttendTask&, const uint16_t* x, float* y, int64_t n) { FromBf16Row(x, y, n); }
void Widen(const AttendTask& task, const uint8_t* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = task.fp8_values[x[i]];
}

// Converts a tile to f32 with the same row stride as in the pool.
template <typename T>
Tile<float> Convert(const AttendTask& task, const Tile<T>& from, float* to) {
  float* const values = to + kTile * task.slot_dim;
  for (int64_t j = 0; j < kTile; ++j) {
    Widen(task, from.keys.first + j * from.keys.stride, to + j * task.slot_dim, task.q_dim);
    Widen(task, from.values.first + j * from.values.stride, values + j * task.slot_dim, task.v_dim);
  }
  return {{to, task.slot_dim}, {values, task.slot_dim}};
}

// `converted`: space for one tile.
template <typename T, int kDim>
void AttendAll(const AttendTask& task, State state, float* out, float* converted) {
  const bool converts =
      sizeof(T) == 1 || (sizeof(T) == 2 && task.rows * task.group >= kConvertBf16);
  const int32_t last = task.first_position + task.rows - 1;
  const int32_t first_tile = FirstVisible(task, task.first_position) / kTile * kTile;
  for (int32_t begin = first_tile; begin <= last; begin += kTile) {
    const Tile<T> tile = TileInPool<T>(task, begin);
    if constexpr (sizeof(T) < 4) {
      if (converts) {
        AttendRows<kDim>(task, Convert(task, tile, converted), begin, state, out);
        continue;
      }
    }
    if constexpr (sizeof(T) > 1) AttendRows<kDim>(task, tile, begin, state, out);
  }
}

template <typename T>
void AttendAll(const AttendTask& task, State state, float* out, float* converted) {
  const bool square = task.q_dim == task.slot_dim && task.v_dim == task.slot_dim;
  if (square && task.slot_dim == 64) {
    AttendAll<T, 64>(task, state, out, converted);
  } else if (square && task.slot_dim == 128) {
    AttendAll<T, 128>(task, state, out, converted);
  } else {
    AttendAll<T, 0>(task, state, out, converted);
  }
}

void Attend(const AttendTask& task) {
  const int32_t states = task.rows * task.group;
  // Padded by kLanes: a batch reads and writes all its lanes, valid or not.
  const State state{task.scratch, task.scratch + states + kLanes};
  float* out = task.scratch + 2 * (states + kLanes);
  float* const converted = out + static_cast<int64_t>(states) * task.v_dim;
  for (int32_t i = 0; i < states + kLanes; ++i) {
    state.max[i] = kMinusInfinity;
    state.sum[i] = 0;
  }
  for (int64_t i = 0; i < static_cast<int64_t>(states) * task.v_dim; ++i) out[i] = 0.0f;
  if (task.fp8_values != nullptr) {
    AttendAll<uint8_t>(task, state, out, converted);
  } else if (task.kv_bf16) {
    AttendAll<uint16_t>(task, state, out, converted);
  } else {
    AttendAll<float>(task, state, out, converted);
  }

  for (int32_t r = 0; r < task.rows; ++r) {
    for (int32_t h = 0; h < task.group; ++h) {
      const int32_t i = r * task.group + h;
      const float inverse = 1.0f / state.sum[i];
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
