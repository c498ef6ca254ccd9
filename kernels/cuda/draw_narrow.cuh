// Candidate lists of rows that filter: two kernels that find how close to the best score a token
// must be (eighths of a nat, counted in bins), and collect those tokens in token order.
#pragma once

#include "kernels/cuda/draw_common.cuh"
#include "kernels/cuda/draw_order.cuh"

namespace aisp::cuda {

__device__ __forceinline__ bool Narrows(const DrawCall& c, const DrawRow& row) {
  return row.logit_index >= 0 && !Greedy(row) && Filters(row, c.vocabulary);
}

__device__ __forceinline__ bool CutsByCount(const DrawCall& c, const DrawRow& row) {
  return row.top_k > 0 && row.top_k < c.vocabulary;
}
// If top_k cuts first, the number of tokens bounds the list, else their weight.
__device__ __forceinline__ bool CutsByWeight(const DrawCall& c, const DrawRow& row) {
  return !CutsByCount(c, row) && row.top_p < 1.0f;
}

__device__ __forceinline__ float MaxOf(const DrawCall& c) {
  float max = -INFINITY;
  const DrawSlice* slices = c.slices + int64_t{blockIdx.y} * kDrawSlices;
#pragma unroll
  for (int i = 0; i < kDrawSlices; ++i) max = fmaxf(max, slices[i].max_score);
  return max;
}

// Counts tokens and weight of the slice per first-level bin.
template <bool kWide>
__global__ void __launch_bounds__(kScanThreads) CountKernel(const __grid_constant__ DrawCall c) {
  // Units in three parts of 16 bits, since shared memory only adds 32-bit words. A slice has fewer
  // than 65,536 tokens.
  __shared__ uint32_t parts[3][kBins];
  __shared__ uint32_t counts[kBins];
  static_assert(kScanThreads == kBins);
  const DrawRow row = c.rows[blockIdx.y];
  counts[threadIdx.x] = 0;
  for (auto& part : parts) part[threadIdx.x] = 0;
  __syncthreads();
  BeginOverlapped();
  if (!Narrows(c, row)) return;
  const Range slice = SliceOf(c.vocabulary, static_cast<int>(blockIdx.x));
  const float max = __fdiv_rn(MaxOf(c), row.temperature);
  const bool weighs = CutsByWeight(c, row);
  ForFours<kWide>(ScoresOf(c, row, blockIdx.y), slice, [&](int token, const float(&four)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (token + j >= slice.end) break;
      const float score = __fdiv_rn(four[j], row.temperature);
      const int bin = FirstBin(max - score);
      atomicAdd(&counts[bin], 1u);
      if (!weighs) continue;
      const unsigned long long units = UnitsOf(expf(score - max));
      if (units == 0) continue;
      atomicAdd(&parts[0][bin], static_cast<uint32_t>(units) & 0xffffu);
      atomicAdd(&parts[1][bin], static_cast<uint32_t>(units >> 16) & 0xffffu);
      atomicAdd(&parts[2][bin], static_cast<uint32_t>(units >> 32));
    }
  });
  __syncthreads();
  const int64_t at = (int64_t{blockIdx.y} * kDrawSlices + blockIdx.x) * kBins + threadIdx.x;
  c.bin_counts[at] = counts[threadIdx.x];
  if (weighs) {
    unsigned long long units = 0;
#pragma unroll
    for (int i = 2; i >= 0; --i) units = (units << 16) + parts[i][threadIdx.x];
    c.bin_units[at] = units;
  }
}

// Inclusive sums over the block's threads.
template <typename T>
__device__ T ScanBlock(T value, T* warps) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const T other = __shfl_up_sync(~0u, value, o);
    if (lane >= o) value += other;
  }
  __syncthreads();
  if (lane == 31) warps[warp] = value;
  __syncthreads();
  for (int w = 0; w < warp; ++w) value += warps[w];
  return value;
}

// Where a list ends, and where a slice's part of it begins.
struct ListPlan {
  int last_bin;
  int entries;
  int first;
  unsigned long long all_units;
};

__device__ inline ListPlan PlanList(const DrawCall& c, const DrawRow& row) {
  __shared__ unsigned long long wide[kScanThreads / 32];
  __shared__ int narrow[kScanThreads / 32];
  __shared__ ListPlan plan;
  const int bin = threadIdx.x;
  const bool weighs = CutsByWeight(c, row);
  int count = 0, earlier = 0;
  unsigned long long units = 0;
#pragma unroll
  for (int s = 0; s < kDrawSlices; ++s) {
    const int64_t at = (int64_t{blockIdx.y} * kDrawSlices + s) * kBins + bin;
    const int own = static_cast<int>(c.bin_counts[at]);
    count += own;
    if (s < static_cast<int>(blockIdx.x)) earlier += own;
    if (weighs) units += c.bin_units[at];
  }
  const int through = ScanBlock(count, narrow);
  const unsigned long long units_through = weighs ? ScanBlock(units, wide) : 0;
  const int earlier_through = ScanBlock(earlier, narrow);
  if (bin == kBins - 1) {
    plan.all_units = units_through;
    plan.last_bin = kBins - 1;
  }
  __syncthreads();
  bool enough = false;
  if (CutsByCount(c, row)) {
    enough = through >= row.top_k;
  } else if (weighs) {
    const double wanted =
        ceil(static_cast<double>(fmaxf(row.top_p, 0.0f)) * static_cast<double>(plan.all_units));
    enough = units_through >= static_cast<unsigned long long>(fmax(wanted, 1.0));
  } else {
    // One bin more than exact arithmetic would need.
    enough = static_cast<float>(bin - 1) > -8.0f * logf(row.min_p);
  }
  if (enough) atomicMin(&plan.last_bin, bin);
  __syncthreads();
  if (bin == plan.last_bin) {
    plan.entries = through;
    plan.first = earlier_through;
  }
  __syncthreads();
  return plan;
}

// Bit mask of a thread's groups of four that go to the list; `v` becomes the listed scores.
__device__ __forceinline__ uint32_t FlagFours(float (&v)[kFours][4], float temperature, float max,
                                              int last_bin, int first, int end) {
  uint32_t flags = 0;
#pragma unroll
  for (int b = 0; b < kFours; ++b) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      v[b][j] = __fdiv_rn(v[b][j], temperature);
      const bool taken =
          first + b * 4 * kScanThreads + j < end && FirstBin(max - v[b][j]) <= last_bin;
      flags |= (taken ? 1u : 0u) << (4 * b + j);
    }
  }
  return flags;
}

// Lists the slice's tokens in the relevant bins, after those of previous slices.
// Long: splitting the function changes register allocation even if all parts are inlined.
template <bool kWide>
__global__ void __launch_bounds__(kScanThreads) ListKernel(const __grid_constant__ DrawCall c) {
  constexpr int kWarps = kScanThreads / 32;
  static_assert(kFours == 8 && kWarps * kFours == 64);
  __shared__ uint8_t taken_by[kFours * kWarps];  // in token order: groups of four, then warps
  __shared__ int before[kFours * kWarps + 1];
  const DrawRow row = c.rows[blockIdx.y];
  BeginOverlapped();
  if (!Narrows(c, row)) return;
  const ListPlan plan = PlanList(c, row);
  const bool fits = plan.entries <= kDrawCandidates;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    c.lists[blockIdx.y] = DrawList{fits ? plan.entries : -1, 0, plan.all_units};
  }
  if (!fits) return;
  const Range slice = SliceOf(c.vocabulary, static_cast<int>(blockIdx.x));
  const float* scores = ScoresOf(c, row, blockIdx.y);
  const float max = __fdiv_rn(MaxOf(c), row.temperature);
  DrawCandidate* list = c.candidates + int64_t{blockIdx.y} * kDrawCandidates + plan.first;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  for (int begin = slice.begin; begin < slice.end; begin += 4 * kScanThreads * kFours) {
    const int first = begin + 4 * thread;
    float4 loaded[kFours];
    LoadFours<kWide>(scores, first, slice.end, loaded);
    float v[kFours][4];
#pragma unroll
    for (int b = 0; b < kFours; ++b) {
      v[b][0] = loaded[b].x, v[b][1] = loaded[b].y, v[b][2] = loaded[b].z, v[b][3] = loaded[b].w;
    }
    const uint32_t flags = FlagFours(v, row.temperature, max, plan.last_bin, first, slice.end);
    // One byte per group: at most 4 per thread, 128 per warp.
    unsigned long long own = 0;
#pragma unroll
    for (int b = 0; b < kFours; ++b) {
      own |= static_cast<unsigned long long>(__popc(flags >> (4 * b) & 15)) << (8 * b);
    }
    unsigned long long through = own;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
      const unsigned long long other = __shfl_up_sync(~0u, through, o);
      if (lane >= o) through += other;
    }
    if (lane == 31) {
#pragma unroll
      for (int b = 0; b < kFours; ++b) {
        taken_by[b * kWarps + warp] = static_cast<uint8_t>(through >> (8 * b));
      }
    }
    __syncthreads();
    if (warp == 0) {
      const int a = taken_by[2 * lane], pair = a + taken_by[2 * lane + 1];
      int sum = pair;
#pragma unroll
      for (int o = 1; o < 32; o *= 2) {
        const int other = __shfl_up_sync(~0u, sum, o);
        if (lane >= o) sum += other;
      }
      before[2 * lane] = sum - pair;
      before[2 * lane + 1] = sum - pair + a;
      if (lane == 31) before[64] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int b = 0; b < kFours; ++b) {
      int at = before[b * kWarps + warp] + static_cast<int>((through - own) >> (8 * b) & 255);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if ((flags >> (4 * b + j) & 1) != 0) {
          list[at++] = {v[b][j], first + b * 4 * kScanThreads + j};
        }
      }
    }
    list += before[64];
    __syncthreads();
  }
}

}  // namespace aisp::cuda
