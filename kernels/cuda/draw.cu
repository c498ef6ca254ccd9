#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/draw_common.cuh"
#include "kernels/cuda/draw_kernels.h"
#include "kernels/cuda/draw_narrow.cuh"
#include "kernels/cuda/draw_order.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/poll.cuh"
#include "kernels/cuda/relaxed.cuh"

namespace aisp::cuda {
namespace {

constexpr int kFinishThreads = 1024;
// One block per row waits, so there must be far fewer rows than resident blocks.
constexpr int kMostRowsOfOneLaunch = 64;

// ---- scan ----

// Copies the slice's logits with the row's edits applied; called by all threads of the block.
template <bool kWide>
__device__ void EditSlice(const DrawCall& c, const DrawRow& row, const Range& slice) {
  const float* from = c.logits + int64_t{row.logit_index} * c.stride;
  float* to = c.edited + int64_t{blockIdx.y} * c.vocabulary;
  ForFours<kWide>(from, slice, [&](int token, const float(&four)[4]) {
    if constexpr (kWide) {
      if (token < slice.end)
        *reinterpret_cast<float4*>(to + token) = make_float4(four[0], four[1], four[2], four[3]);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (token + j < slice.end) to[token + j] = four[j];
      }
    }
  });
  __syncthreads();
  for (int i = threadIdx.x; i < row.edit_count; i += blockDim.x) {
    const TokenEdit edit = c.edits[row.edit_begin + i];
    if (edit.token < slice.begin || edit.token >= slice.end) continue;
    float score = to[edit.token];
    if (edit.repeated != 0)
      score = score > 0 ? __fdiv_rn(score, row.repetition_penalty)
                        : __fmul_rn(score, row.repetition_penalty);
    if (edit.count > 0) {
      score = __fsub_rn(
          score, __fadd_rn(row.presence_penalty,
                           __fmul_rn(row.frequency_penalty, static_cast<float>(edit.count))));
    }
    if (edit.bias != 0.0f) score = __fadd_rn(score, edit.bias);
    if (edit.banned != 0) score = -INFINITY;
    to[edit.token] = score;
  }
  __syncthreads();
  if (row.mask < 0) return;
  const uint32_t* const mask = c.masks + int64_t{row.mask} * c.mask_words;
  for (int i = slice.begin + threadIdx.x; i < slice.end; i += blockDim.x) {
    if ((mask[i / 32] >> (i % 32) & 1) == 0) to[i] = -INFINITY;
  }
  __syncthreads();
}

// A thread's best score; its tokens ascend, so the first of equal ones is the lowest.
__device__ __forceinline__ void Raise(float score, int32_t token, float& best,
                                      int32_t& best_token) {
  if (score > best) {
    best = score;
    best_token = token;
  }
}

// The best score, and the best with noise.
template <bool kWide>
__device__ __forceinline__ void ScanWithNoise(const DrawRow& row, const float* scores,
                                              const Range& slice, DrawSlice& out) {
  ForFours<kWide>(scores, slice, [&](int token, const float(&four)[4]) {
    const uint4 words =
        Philox(row.seed, {static_cast<uint32_t>(token) / 4, row.position, row.choice, 0});
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      Raise(four[j], token + j, out.max_score, out.max_token);
      const float sum = __fadd_rn(__fdiv_rn(four[j], row.temperature), GumbelOf(WordOf(words, j)));
      Raise(sum, token + j, out.best, out.best_token);
    }
  });
}

// A thread's part of the sum of exp(logit - most): several logits in flight at once.
__device__ __forceinline__ float SumOfExponentials(const float* logits, const Range& slice,
                                                   float most) {
  constexpr int kAtOnce = 8;
  float sum = 0;
#pragma unroll 1
  for (int i = slice.begin + static_cast<int>(threadIdx.x); i < slice.end;
       i += kAtOnce * kScanThreads) {
    float v[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int at = i + k * kScanThreads;
      v[k] = at < slice.end ? __ldcg(logits + at) : -INFINITY;
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (i + k * kScanThreads < slice.end) sum += expf(v[k] - most);
    }
  }
  return sum;
}

template <bool kWide>
__device__ __forceinline__ void ScanSlice(const DrawCall& c, const DrawRow& row, const Range& slice,
                                          float* scores, int32_t* tokens, DrawSlice& out) {
  const float* logits = c.logits + int64_t{row.logit_index} * c.stride;
  const bool edits = Edits(row);
  const bool noise = !Greedy(row) && !Filters(row, c.vocabulary);
  out.max_score = out.best = out.max_logit = -INFINITY;
  out.max_token = out.best_token = INT_MAX;
  out.sum = 0;
  out.reserved = 0;
  // Stays 0 unless a logit is infinite or NaN.
  float zero = 0;
  ForFours<kWide>(logits, slice, [&](int token, const float(&four)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (token + j < slice.end) zero = __fmaf_rn(four[j], 0.0f, zero);
      Raise(four[j], token + j, out.max_logit, out.max_token);
    }
  });
  out.finite = __syncthreads_and(zero == 0.0f) != 0 ? 1 : 0;
  out.max_score = out.max_logit;
  if (edits || noise) {
    out.max_score = -INFINITY;
    out.max_token = INT_MAX;
    if (edits) EditSlice<kWide>(c, row, slice);
    const float* from = ScoresOf(c, row, blockIdx.y);
    if (noise) {
      ScanWithNoise<kWide>(row, from, slice, out);
      BlockBest(out.best, out.best_token, scores, tokens);
    } else {
      ForFours<kWide>(from, slice, [&](int token, const float(&four)[4]) {
#pragma unroll
        for (int j = 0; j < 4; ++j) Raise(four[j], token + j, out.max_score, out.max_token);
      });
    }
  }
  BlockBest(out.max_score, out.max_token, scores, tokens);
  if (row.num_logprobs >= 0) {
    int32_t ignored = 0;
    BlockBest(out.max_logit, ignored, scores, tokens);
    const float sum = SumOfExponentials(logits, slice, out.max_logit);
    __syncthreads();
    out.sum = BlockSum(sum, scores);
  }
}

// ---- merging slices ----

struct DrawRowResult {
  float max, best;
  int32_t max_token, best_token;
  bool finite;
  double log_sum;  // if logprobs are wanted
};

// Called by a warp; all lanes get the result. With `await` the slices may still be incomplete.
__device__ __forceinline__ DrawRowResult MergeSlices(const DrawSlice* slices, const DrawRow& row,
                                                     bool await, const PollTag& poll) {
  static_assert(kDrawSlices <= 32 && sizeof(DrawSlice) == 2 * sizeof(uint4));
  const int lane = static_cast<int>(threadIdx.x) % 32;
  DrawSlice mine;
  mine.max_score = mine.best = mine.max_logit = -INFINITY;
  mine.max_token = mine.best_token = INT_MAX;
  mine.finite = 1;
  if (lane < kDrawSlices) {
    auto* const to = reinterpret_cast<uint4*>(&mine);
    const auto* from = reinterpret_cast<const uint4*>(slices + lane);
    PollLimit<PollSite::kDrawSlices> limit;
    do {
      to[0] = LoadRelaxed(from);
      to[1] = LoadRelaxed(from + 1);
      limit.Count(poll);
    } while (await && (HasEmptySlot(to[0]) || HasEmptySlot(to[1])));
  }
  __syncwarp();
  DrawRowResult out{mine.max_score, mine.best, mine.max_token, mine.best_token, true, 0};
  out.finite = __all_sync(~0u, mine.finite != 0) != 0;
  WarpBest(out.max, out.max_token);
  WarpBest(out.best, out.best_token);
  if (row.num_logprobs >= 0) {
    float top = mine.max_logit;
#pragma unroll
    for (int o = 16; o > 0; o /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
    // A lane for each slice: exp of a double takes long.
    const double factor = mine.sum > 0 ? exp(double{mine.max_logit} - top) : 0;
    double sum = 0;
    for (int i = 0; i < kDrawSlices; ++i) {
      const float part = __shfl_sync(~0u, mine.sum, i);
      const double of_part = __shfl_sync(~0u, factor, i);
      if (part > 0) sum += static_cast<double>(part) * of_part;
    }
    out.log_sum = top + log(sum);
  }
  return out;
}

// Resets slices for the next call; called by a warp after all have read them.
__device__ __forceinline__ void EmptySlices(DrawSlice* slices) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane < 2 * kDrawSlices) {
    StoreRelaxed(reinterpret_cast<uint4*>(slices) + lane,
                 make_uint4(kTokenEmpty, kTokenEmpty, kTokenEmpty, kTokenEmpty));
  }
}

// For rows without filters.
__device__ __forceinline__ DrawnToken TokenOf(const DrawRowResult& result, const DrawRow& row) {
  DrawnToken out;
  if (!result.finite) {
    out.status = DrawStatus::kNotFinite;
  } else if (result.max == -INFINITY) {
    out.status = DrawStatus::kNothingLeft;
  } else {
    out.token = Greedy(row) ? result.max_token : result.best_token;
  }
  return out;
}

// Called by one thread.
__device__ __forceinline__ void WriteToken(const DrawCall& c, const DrawRow& row,
                                           const DrawRowResult& result, DrawnToken out) {
  if (out.token >= 0 && row.num_logprobs >= 0) {
    const float* logits = c.logits + int64_t{row.logit_index} * c.stride;
    out.log_sum = static_cast<float>(result.log_sum);
    out.logprob = static_cast<float>(static_cast<double>(logits[out.token]) - result.log_sum);
  }
  if (out.token >= 0 && row.slot >= 0) c.slot_tokens[row.slot] = out.token;
  *reinterpret_cast<uint4*>(c.drawn + row.drawn_at) = reinterpret_cast<const uint4&>(out);
}

// kFinishes: the block with a row's last slice draws its token.
template <bool kWide, bool kFinishes>
__global__ void __launch_bounds__(kScanThreads) ScanKernel(const __grid_constant__ DrawCall c) {
  __shared__ float scores[32];
  __shared__ int32_t tokens[32];
  // No kernel of this step writes it.
  const DrawRow row = c.rows[blockIdx.y];
  BeginOverlapped();
  if (row.logit_index < 0) return;
  DrawSlice* const slices = c.slices + int64_t{blockIdx.y} * kDrawSlices;
  DrawSlice out;
  ScanSlice<kWide>(c, row, SliceOf(c.vocabulary, static_cast<int>(blockIdx.x)), scores, tokens,
                   out);
  if (threadIdx.x == 0) {
    auto* const to = reinterpret_cast<uint4*>(slices + blockIdx.x);
    const auto* from = reinterpret_cast<const uint4*>(&out);
    StoreRelaxed(to, from[0]);
    StoreRelaxed(to + 1, from[1]);
  }
  if constexpr (kFinishes) {
    if (blockIdx.x + 1 < kDrawSlices || threadIdx.x >= 32) return;
    __syncwarp();
    const DrawRowResult result = MergeSlices(slices, row, true, c.poll);
    if (threadIdx.x == 0) WriteToken(c, row, result, TokenOf(result, row));
    EmptySlices(slices);
  }
}

// ---- finish ----

__global__ void __launch_bounds__(kFinishThreads) FinishKernel(const __grid_constant__ DrawCall c) {
  __shared__ union {
    Bin bins;
    FewCandidates few;
  } memory;
  __shared__ float scores[32];
  __shared__ int32_t tokens[32];
  const DrawRow row = c.rows[blockIdx.x];
  BeginOverlapped();
  if (row.logit_index < 0) return;
  DrawSlice* const slices = c.slices + int64_t{blockIdx.x} * kDrawSlices;
  const DrawRowResult result = MergeSlices(slices, row, false, c.poll);
  __syncthreads();
  if (threadIdx.x < 32) EmptySlices(slices);
  DrawnToken out = TokenOf(result, row);
  if (out.status == DrawStatus::kDrawn && !Greedy(row) && Filters(row, c.vocabulary)) {
    const DrawList list = c.lists[blockIdx.x];
    const bool listed = list.count >= 0;
    const Filtered f{ScoresOf(c, row, blockIdx.x),
                     listed ? c.candidates + int64_t{blockIdx.x} * kDrawCandidates : nullptr,
                     listed ? list.count : c.vocabulary,
                     row.temperature,
                     __fdiv_rn(result.max, row.temperature),
                     c.vocabulary};
    out.token = listed && list.count <= kFewCandidates
                    ? DrawFew(f, row, list.units, &memory.few, scores, tokens)
                    : DrawFiltered(f, row, list.units, &memory.bins, scores, tokens);
  }
  if (threadIdx.x == 0) WriteToken(c, row, result, out);
}

}  // namespace

Status LaunchDraw(const DrawCall& c, cudaStream_t stream) {
  if (c.num_rows == 0) return {};
  const auto rows = static_cast<unsigned>(c.num_rows);
  const dim3 slices(kDrawSlices, rows);
  const bool wide =
      c.vocabulary % 4 == 0 && c.stride % 4 == 0 && reinterpret_cast<uintptr_t>(c.logits) % 16 == 0;
  const bool one = !c.filters && c.num_rows <= kMostRowsOfOneLaunch;
  void (*scan)(DrawCall) = wide ? ScanKernel<true, false> : ScanKernel<false, false>;
  if (one) scan = wide ? ScanKernel<true, true> : ScanKernel<false, true>;
  AISP_RETURN_IF_ERROR(
      Check(LaunchOverlapped(scan, slices, kScanThreads, 0, stream, c), "scanning logits"));
  if (one) return {};
  if (c.filters) {
    const auto count = wide ? CountKernel<true> : CountKernel<false>;
    const auto list = wide ? ListKernel<true> : ListKernel<false>;
    AISP_RETURN_IF_ERROR(
        Check(LaunchOverlapped(count, slices, kScanThreads, 0, stream, c), "counting logits"));
    AISP_RETURN_IF_ERROR(
        Check(LaunchOverlapped(list, slices, kScanThreads, 0, stream, c), "listing logits"));
  }
  return Check(LaunchOverlapped(FinishKernel, rows, kFinishThreads, 0, stream, c),
               "drawing tokens");
}

}  // namespace aisp::cuda
