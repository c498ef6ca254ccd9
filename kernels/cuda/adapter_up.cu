// y += v up^T: the second product of LoRA adapters, and SiLU for gated layers.
#include <algorithm>

#include "kernels/cuda/adapter_tile.cuh"
#include "kernels/cuda/cuda_error.h"

namespace aisp::cuda {
namespace {

constexpr int kUpWarps = 4;
constexpr int kUpTiles = 4;  // of eight columns, per warp
constexpr int kUpColumns = kUpWarps * kUpTiles * 8;

// Sums of one range for sixteen rows: rows of v as bf16, zeros beyond an adapter's rank.
struct UpShared {
  static constexpr int kPitch = kMostAdapterRank + 8;  // avoids bank conflicts
  TileAdapters adapters;
  Bf16 v[2][kTileRows][kPitch];
};

__device__ __forceinline__ void LoadSums(const AdapterLayer& l, const AdapterRows& in,
                                         const UpShared& shared, int32_t first, int range,
                                         int32_t splits, Bf16 (&v)[kTileRows][UpShared::kPitch]) {
  const int64_t width = int64_t{l.num_ranges} * l.rank_room;
#pragma unroll 2
  for (int i = threadIdx.x; i < kTileRows * l.rank_room; i += kUpWarps * 32) {
    const int row = i / l.rank_room, rank = i % l.rank_room;
    float part[kMostSplits];  // loaded together
    const bool there = rank < shared.adapters.rank[range][row];
    const float* at = in.v + (first + row) * width + range * l.rank_room + rank;
#pragma unroll
    for (int32_t s = 0; s < kMostSplits; ++s)
      part[s] = there && s < splits ? __ldcg(at + int64_t{s} * in.rows * width) : 0.0f;
    float sum = 0;
#pragma unroll
    for (int32_t s = 0; s < kMostSplits; ++s) sum += part[s];
    v[row][rank] = __float2bfloat16(sum);
  }
}

// Two words for each of a warp's columns: the K of a product.
struct UpWords {
  uint32_t low[kUpTiles], high[kUpTiles];

  __device__ __forceinline__ void Load(const AdapterLayer& l, int32_t adapter, int range,
                                       int32_t column, int32_t k) {
    const AdapterRange& to = l.ranges[range];
    const int lane = threadIdx.x % 32;
    const Bf16* const up =
        static_cast<const Bf16*>(l.factors) + adapter * l.slot_stride + to.up + k + lane % 4 * 2;
#pragma unroll
    for (int t = 0; t < kUpTiles; ++t) {
      const int32_t c = column + t * 8 + lane / 4;
      const auto* at = reinterpret_cast<const uint32_t*>(up + int64_t{c} * l.rank_room);
      low[t] = c < to.out ? __ldg(at) : 0u;
      high[t] = c < to.out ? __ldg(at + 4) : 0u;
    }
  }
};

// Loads the first words of the tile's first adapter before the wait; usually there are no others.
__device__ __forceinline__ UpWords FirstWords(const AdapterLayer& l, const UpShared& shared,
                                              int range, int32_t column) {
  UpWords words = {};
  if (shared.adapters.rank[range][0] > 0)
    words.Load(l, shared.adapters.of_row[0], range, column, 0);
  return words;
}

// The adapters' contribution to the tile's rows, for a warp's columns of one range.
__device__ __forceinline__ void SumUp(const AdapterLayer& l, const UpShared& shared, int range,
                                      int32_t column, const UpWords& first_words,
                                      const Bf16 (&v)[kTileRows][UpShared::kPitch],
                                      float (&sums)[kUpTiles][4]) {
  const int lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4 * 2;
#pragma unroll
  for (int t = 0; t < kUpTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[t][i] = 0.0f;
  }
  UpWords words = first_words;
  for (uint32_t left = shared.adapters.begins; left != 0; left &= left - 1) {
    const int i = __ffs(left) - 1;
    const int32_t adapter = shared.adapters.of_row[i];
    const int32_t rank = shared.adapters.rank[range][i];
    const bool low = shared.adapters.of_row[group] == adapter;
    const bool high = shared.adapters.of_row[group + 8] == adapter;
    for (int32_t k = 0; k < rank; k += 16) {
      if (i > 0 || k > 0) words.Load(l, adapter, range, column, k);
      const auto word = [](const Bf16* at, bool there) {
        return there ? *reinterpret_cast<const uint32_t*>(at) : 0u;
      };
      const uint32_t a0 = word(&v[group][k + pair], low);
      const uint32_t a1 = word(&v[group + 8][k + pair], high);
      const uint32_t a2 = word(&v[group][k + pair + 8], low);
      const uint32_t a3 = word(&v[group + 8][k + pair + 8], high);
#pragma unroll
      for (int t = 0; t < kUpTiles; ++t)
        Multiply(sums[t], a0, a1, a2, a3, words.low[t], words.high[t]);
    }
  }
}

__device__ __forceinline__ float2 LoadPair(const float* y) {
  return __ldcg(reinterpret_cast<const float2*>(y));
}
__device__ __forceinline__ float2 LoadPair(const Bf16* y) {
  return __bfloat1622float2(__ldcg(reinterpret_cast<const __nv_bfloat162*>(y)));
}
__device__ __forceinline__ void StorePair(float* y, float a, float b) {
  *reinterpret_cast<float2*>(y) = {a, b};
}
__device__ __forceinline__ void StorePair(Bf16* y, float a, float b) {
  *reinterpret_cast<__nv_bfloat162*>(y) = __floats2bfloat162_rn(a, b);
}

// The columns of a block: `passes` times kUpColumns of one range.
struct BlockColumns {
  int range = 0;
  int32_t begin = 0, end = 0;

  // Blocks of one range follow those of the previous range.
  __device__ __forceinline__ BlockColumns(const AdapterLayer& l, int32_t passes) {
    const int32_t most = passes * kUpColumns;
    int32_t block = static_cast<int32_t>(blockIdx.y);
    for (; range + 1 < l.num_ranges; ++range) {
      const int32_t blocks = (l.ranges[range].out + most - 1) / most;
      if (block < blocks) break;
      block -= blocks;
    }
    begin = block * most;
    end = min(begin + most, l.ranges[range].out);
  }
};

// Visits a lane's pairs of adjacent sums with their row and column.
template <typename Visit>
__device__ __forceinline__ void ForPairs(int32_t column, int32_t end, const Visit& visit) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int t = 0; t < kUpTiles; ++t) {
    const int32_t c = column + t * 8 + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (c < end) visit(t, half, lane / 4 + half * 8, c);
    }
  }
}

template <typename Y>
__global__ void __launch_bounds__(kUpWarps * 32)
    UpKernel(const AdapterLayer l, const AdapterRows in, const AdapterOutput out, int32_t splits,
             int32_t passes) {
  __shared__ UpShared shared;
  const int32_t first = static_cast<int32_t>(blockIdx.x) * kTileRows;
  const BlockColumns columns(l, passes);
  const int range = columns.range;
  int32_t column = columns.begin + static_cast<int32_t>(threadIdx.x) / 32 * kUpTiles * 8;
  shared.adapters.Load(l, in, first);
  UpWords words = FirstWords(l, shared, range, column);
  BeginOverlapped();
  for (int32_t pass = 0; pass < passes; ++pass, column += kUpColumns) {
    if (pass > 0) words = FirstWords(l, shared, range, column);
    float2 old[kUpTiles][2];
    const auto at = [&](int row, int32_t c) {
      return static_cast<Y*>(out.y) + int64_t{first + row} * out.columns + l.ranges[range].column +
             c;
    };
    ForPairs(column, columns.end, [&](int t, int half, int row, int32_t c) {
      if (shared.adapters.of_row[row] >= 0) old[t][half] = LoadPair(at(row, c));
    });
    if (pass == 0) {
      LoadSums(l, in, shared, first, range, splits, shared.v[0]);
      __syncthreads();
    }
    float sums[kUpTiles][4];
    SumUp(l, shared, range, column, words, shared.v[0], sums);
    ForPairs(column, columns.end, [&](int t, int half, int row, int32_t c) {
      if (shared.adapters.of_row[row] < 0) return;
      StorePair(at(row, c), old[t][half].x + sums[t][2 * half],
                old[t][half].y + sums[t][2 * half + 1]);
    });
  }
}

__device__ __forceinline__ float Silu(float v) { return v / (1.0f + __expf(-v)); }

__global__ void __launch_bounds__(kUpWarps * 32)
    GatedUpKernel(const AdapterLayer l, const AdapterRows in, const AdapterOutput out,
                  int32_t splits, int32_t passes) {
  __shared__ UpShared shared;
  const int32_t first = static_cast<int32_t>(blockIdx.x) * kTileRows;
  int32_t column = static_cast<int32_t>(blockIdx.y) * passes * kUpColumns +
                   static_cast<int32_t>(threadIdx.x) / 32 * kUpTiles * 8;
  shared.adapters.Load(l, in, first);
  UpWords gate_words = FirstWords(l, shared, 0, column);
  UpWords up_words = FirstWords(l, shared, 1, column);
  BeginOverlapped();
  for (int32_t pass = 0; pass < passes; ++pass, column += kUpColumns) {
    if (pass > 0) {
      gate_words = FirstWords(l, shared, 0, column);
      up_words = FirstWords(l, shared, 1, column);
    }
    float2 gate[kUpTiles][2], up[kUpTiles][2];
    ForPairs(column, out.columns, [&](int t, int half, int row, int32_t c) {
      if (first + row >= in.rows) return;
      const Bf16* const both = static_cast<const Bf16*>(out.gated) +
                               int64_t{first + row} * 2 * out.columns + c / 8 * 16 + c % 8;
      gate[t][half] = LoadPair(both);
      up[t][half] = LoadPair(both + 8);
    });
    if (pass == 0) {
      LoadSums(l, in, shared, first, 0, splits, shared.v[0]);
      LoadSums(l, in, shared, first, 1, splits, shared.v[1]);
      __syncthreads();
    }
    float to_gate[kUpTiles][4], to_up[kUpTiles][4];
    SumUp(l, shared, 0, column, gate_words, shared.v[0], to_gate);
    SumUp(l, shared, 1, column, up_words, shared.v[1], to_up);
    ForPairs(column, out.columns, [&](int t, int half, int row, int32_t c) {
      if (first + row >= in.rows) return;
      const float2 g = gate[t][half], u = up[t][half];
      StorePair(static_cast<Bf16*>(out.y) + int64_t{first + row} * out.columns + c,
                Silu(g.x + to_gate[t][2 * half]) * (u.x + to_up[t][2 * half]),
                Silu(g.y + to_gate[t][2 * half + 1]) * (u.y + to_up[t][2 * half + 1]));
    });
  }
}

__global__ void __launch_bounds__(kF32Threads)
    UpKernelF32(const AdapterLayer l, const AdapterRows in, const AdapterOutput out) {
  BeginOverlapped();
  const int64_t row = blockIdx.x;
  const int32_t adapter = __ldcg(in.adapter_of_row + row);
  if (adapter < 0) return;
  const auto* slot = static_cast<const float*>(l.factors) + adapter * l.slot_stride;
  for (int range = 0; range < l.num_ranges; ++range) {
    const AdapterRange& to = l.ranges[range];
    const int32_t rank = RankOf(l, adapter, range);
    const float* const v = in.v + (row * l.num_ranges + range) * l.rank_room;
    float* const y = static_cast<float*>(out.y) + row * out.columns + to.column;
    for (int32_t c = static_cast<int32_t>(blockIdx.y) * kF32Threads + threadIdx.x; c < to.out;
         c += kF32Threads * static_cast<int32_t>(gridDim.y)) {
      const float* const up = slot + to.up + int64_t{c} * l.rank_room;
      float sum = 0;
      for (int32_t r = 0; r < rank; ++r) sum += __ldcg(v + r) * __ldg(up + r);
      if (rank > 0) y[c] = __ldcg(y + c) + sum;
    }
  }
}

}  // namespace

Status LaunchAdapterUp(const AdapterLayer& l, const AdapterRows& in, const AdapterOutput& out,
                       cudaStream_t stream) {
  const char* const what = "an adapter's second factor";
  if (l.type == DType::kF32) {
    const dim3 grid(static_cast<unsigned>(in.rows), std::min(16u, DivideUp(out.columns, 1024)));
    return Check(LaunchOverlapped(UpKernelF32, grid, kF32Threads, 0, stream, l, in, out), what);
  }
  const int32_t splits = AdapterSplits(in.rows);
  // With many rows there are enough blocks, so each handles more columns with the sums of its rows.
  const int32_t passes = in.rows <= 64 ? 1 : 8;
  dim3 grid(DivideUp(in.rows, kTileRows), 0);
  if (out.gated != nullptr) {
    grid.y = DivideUp(out.columns, passes * kUpColumns);
    return Check(
        LaunchOverlapped(GatedUpKernel, grid, kUpWarps * 32, 0, stream, l, in, out, splits, passes),
        what);
  }
  for (int range = 0; range < l.num_ranges; ++range)
    grid.y += DivideUp(l.ranges[range].out, passes * kUpColumns);
  const auto kernel = out.type == DType::kF32 ? UpKernel<float> : UpKernel<Bf16>;
  return Check(LaunchOverlapped(kernel, grid, kUpWarps * 32, 0, stream, l, in, out, splits, passes),
               what);
}

}  // namespace aisp::cuda
