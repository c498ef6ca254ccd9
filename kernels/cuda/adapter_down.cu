// v = x down^T: the first product of LoRA adapters.
#include <algorithm>

#include "kernels/cuda/adapter_tile.cuh"
#include "kernels/cuda/cuda_error.h"

namespace aisp::cuda {
namespace {

constexpr int kDownWarps = 8;
constexpr int kDownTiles = 2;  // tiles of eight ranks that a warp sums at a time

// Eight elements of a row from `k` on; zeros from `in` (a multiple of eight) on. Bypasses L1, since
// the previous kernel may have written them while this one was already running.
__device__ __forceinline__ uint4 LoadEight(const Bf16* row, int32_t k, int32_t in, bool there) {
  return there && k < in ? __ldcg(reinterpret_cast<const uint4*>(row + k)) : uint4{};
}

// Sums this warp's chunks of 32 elements for kDownTiles * 8 ranks from `down` on. A lane's eight
// adjacent elements stand for the K pairs of two products: both operands are permuted alike, and
// the order within a sum does not matter.
__device__ __forceinline__ void SumDown(const AdapterLayer& l, const Bf16* x, int32_t top_rows,
                                        const Bf16* down, int32_t ranks, int32_t begin, int32_t end,
                                        float (&sums)[kDownTiles][4]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = lane / 4, k_in_chunk = lane % 4 * 8;
#pragma unroll
  for (int t = 0; t < kDownTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[t][i] = 0.0f;
  }
  const Bf16* const low = x + int64_t{group} * l.in;
  const Bf16* const high = low + int64_t{8} * l.in;
#pragma unroll 2
  for (int32_t chunk = begin + warp; chunk < end; chunk += kDownWarps) {
    const int32_t k = chunk * 32 + k_in_chunk;
    const uint4 a = LoadEight(low, k, l.in, group < top_rows);
    const uint4 b = LoadEight(high, k, l.in, group + 8 < top_rows);
#pragma unroll
    for (int t = 0; t < kDownTiles; ++t) {
      if (t * 8 >= ranks) break;
      const int r = t * 8 + group;
      const uint4 w = LoadEight(down + int64_t{r} * l.in, k, l.in, r < ranks);
      Multiply(sums[t], a.x, b.x, a.y, b.y, w.x, w.y);
      Multiply(sums[t], a.z, b.z, a.w, b.w, w.z, w.w);
    }
  }
}

struct DownShared {
  TileAdapters adapters;
  float sums[kDownWarps][kDownTiles][32][4];
};

// Adds the warps' sums in warp order and stores those of rows with this adapter.
__device__ __forceinline__ void StoreDown(const AdapterLayer& l, const AdapterRows& in,
                                          DownShared& shared, int32_t first, int32_t adapter,
                                          int32_t column, int32_t ranks,
                                          const float (&sums)[kDownTiles][4]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int t = 0; t < kDownTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) shared.sums[warp][t][lane][i] = sums[t][i];
  }
  __syncthreads();
  const int64_t width = int64_t{l.num_ranges} * l.rank_room;
  for (int i = threadIdx.x; i < kTileRows * kDownTiles * 8; i += kDownWarps * 32) {
    const int row = i / (kDownTiles * 8), rank = i % (kDownTiles * 8);
    if (rank >= ranks || shared.adapters.of_row[row] != adapter) continue;
    const int from = row % 8 * 4 + rank % 8 / 2, at = row / 8 * 2 + rank % 2;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kDownWarps; ++w) sum += shared.sums[w][rank / 8][from][at];
    in.v[(int64_t{blockIdx.y} * in.rows + first + row) * width + column + rank] = sum;
  }
  __syncthreads();
}

// The chunks of 32 elements of a row that a block sums.
struct DownChunks {
  int32_t begin, end;
  __device__ __forceinline__ explicit DownChunks(const AdapterLayer& l) {
    const int32_t chunks = (l.in + 31) / 32;
    begin = static_cast<int32_t>(int64_t{chunks} * blockIdx.y / gridDim.y);
    end = static_cast<int32_t>(int64_t{chunks} * (blockIdx.y + 1) / gridDim.y);
  }
};

__device__ __forceinline__ const Bf16* DownOf(const AdapterLayer& l, int32_t adapter, int range) {
  return static_cast<const Bf16*>(l.factors) + adapter * l.slot_stride +
         int64_t{range} * l.rank_room * l.in;
}

// Prefetches factors to L2 while the previous kernel still runs.
__device__ __forceinline__ void PrefetchDown(const AdapterLayer& l, const TileAdapters& adapters,
                                             int range, const DownChunks& chunks) {
  const int32_t adapter = adapters.of_row[0];
  const int32_t rank = adapters.rank[range][0];
  const int32_t lines = (chunks.end - chunks.begin + 1) / 2;  // of 128 bytes
  for (int32_t i = threadIdx.x; i < rank * lines; i += kDownWarps * 32) {
    const int32_t k = min((chunks.begin + i % lines * 2) * 32, l.in - 1);
    asm volatile("prefetch.global.L2 [%0];" ::"l"(DownOf(l, adapter, range) +
                                                  int64_t{i / lines} * l.in + k));
  }
}

__global__ void __launch_bounds__(kDownWarps * 32)
    DownKernel(const AdapterLayer l, const AdapterRows in) {
  __shared__ DownShared shared;
  const int32_t first = static_cast<int32_t>(blockIdx.x) * kTileRows;
  const int range = static_cast<int>(blockIdx.z);
  const DownChunks chunks(l);
  shared.adapters.Load(l, in, first);
  PrefetchDown(l, shared.adapters, range, chunks);
  BeginOverlapped();
  const auto* x = static_cast<const Bf16*>(in.x) + int64_t{first} * l.in;
  for (uint32_t left = shared.adapters.begins; left != 0; left &= left - 1) {
    const int i = __ffs(left) - 1;
    const int32_t adapter = shared.adapters.of_row[i];
    const int32_t rank = shared.adapters.rank[range][i];
    for (int32_t r = 0; r < rank; r += kDownTiles * 8) {
      float sums[kDownTiles][4];
      const int32_t ranks = min(rank - r, kDownTiles * 8);
      const Bf16* const down = DownOf(l, adapter, range) + int64_t{r} * l.in;
      SumDown(l, x, in.rows - first, down, ranks, chunks.begin, chunks.end, sums);
      StoreDown(l, in, shared, first, adapter, range * l.rank_room + r, ranks, sums);
    }
  }
}

// One warp per rank, row and range.
__global__ void __launch_bounds__(kF32Threads)
    DownKernelF32(const AdapterLayer l, const AdapterRows in) {
  BeginOverlapped();
  const int32_t row = static_cast<int32_t>(blockIdx.x), range = static_cast<int32_t>(blockIdx.y);
  const int32_t adapter = __ldcg(in.adapter_of_row + row);
  const int32_t rank = RankOf(l, adapter, range);
  const int lane = threadIdx.x % 32;
  const float* const x = static_cast<const float*>(in.x) + int64_t{row} * l.in;
  for (int32_t r = static_cast<int32_t>(threadIdx.x) / 32; r < rank; r += kF32Threads / 32) {
    const float* const down = static_cast<const float*>(l.factors) + adapter * l.slot_stride +
                              (int64_t{range} * l.rank_room + r) * l.in;
    float sum = 0;
    for (int32_t k = lane; k < l.in; k += 32) sum += __ldg(down + k) * __ldcg(x + k);
    sum = WarpSum(sum);
    if (lane == 0) in.v[(int64_t{row} * l.num_ranges + range) * l.rank_room + r] = sum;
  }
}

}  // namespace

int32_t AdapterSplits(int32_t rows) {
  if (rows <= 64) return kMostSplits;
  return rows <= 2048 ? 4 : 1;
}

int64_t AdapterSumRows(int32_t rows) {
  return std::max<int64_t>({rows, kMostSplits * 64, 4 * std::min(rows, 2048)});
}

Status LaunchAdapterDown(const AdapterLayer& l, const AdapterRows& in, cudaStream_t stream) {
  if (l.type == DType::kF32) {
    const dim3 grid(static_cast<unsigned>(in.rows), static_cast<unsigned>(l.num_ranges));
    return Check(LaunchOverlapped(DownKernelF32, grid, kF32Threads, 0, stream, l, in),
                 "an adapter's first factor");
  }
  const dim3 grid(DivideUp(in.rows, kTileRows), static_cast<unsigned>(AdapterSplits(in.rows)),
                  static_cast<unsigned>(l.num_ranges));
  return Check(LaunchOverlapped(DownKernel, grid, kDownWarps * 32, 0, stream, l, in),
               "an adapter's first factor");
}

}  // namespace aisp::cuda
