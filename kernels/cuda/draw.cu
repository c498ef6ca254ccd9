#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/draw_common.cuh"
#include "kernels/cuda/draw_kernels.h"
#include "kernels/cuda/draw_order.cuh"
#include "kernels/cuda/launch.cuh"

namespace aisp::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kFinishThreads = 1024;

// ---- scan ----

// The slice's logits with the row's edits applied; by all threads of the block.
__device__ void EditSlice(const DrawCall& c, const DrawRow& row, const Range& slice) {
  const float* from = c.logits + int64_t{row.logit_index} * c.stride;
  float* to = c.edited + int64_t{blockIdx.y} * c.vocabulary;
  for (int i = slice.begin + threadIdx.x; i < slice.end; i += blockDim.x) to[i] = from[i];
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
}

__global__ void __launch_bounds__(kThreads) ScanKernel(DrawCall c) {
  __shared__ float scores[32];
  __shared__ int32_t tokens[32];
  BeginOverlapped();
  const DrawRow row = c.rows[blockIdx.y];
  if (row.logit_index < 0) return;
  const Range slice = SliceOf(c.vocabulary, static_cast<int>(blockIdx.x));
  const int begin = slice.begin, end = slice.end;
  if (row.edit_count > 0) EditSlice(c, row, slice);
  const float* logits = c.logits + int64_t{row.logit_index} * c.stride;
  const float* edited = ScoresOf(c, row, blockIdx.y);
  const bool noise = !Greedy(row) && !Filters(row, c.vocabulary);
  DrawSlice out;
  out.max_score = out.best = out.max_logit = -INFINITY;
  out.max_token = out.best_token = INT_MAX;
  bool finite = true;
  for (int group = begin + 4 * threadIdx.x; group < end; group += 4 * kThreads) {
    uint4 words{};
    if (noise)
      words = Philox(row.seed, {static_cast<uint32_t>(group) / 4, row.position, row.choice, 0});
    const int count = min(4, end - group);
    for (int j = 0; j < count; ++j) {
      const int token = group + j;
      const float logit = logits[token];
      finite = finite && (__float_as_uint(logit) & 0x7f800000u) != 0x7f800000u;
      out.max_logit = fmaxf(out.max_logit, logit);
      const float score = edited[token];
      if (Better(score, token, out.max_score, out.max_token)) {
        out.max_score = score;
        out.max_token = token;
      }
      if (noise) {
        const float sum = __fadd_rn(__fdiv_rn(score, row.temperature), GumbelOf(WordOf(words, j)));
        if (Better(sum, token, out.best, out.best_token)) {
          out.best = sum;
          out.best_token = token;
        }
      }
    }
  }
  finite = __syncthreads_and(finite);
  BlockBest(out.max_score, out.max_token, scores, tokens);
  if (noise) BlockBest(out.best, out.best_token, scores, tokens);
  if (row.num_logprobs >= 0) {
    int32_t ignored = 0;
    BlockBest(out.max_logit, ignored, scores, tokens);
    float sum = 0;
    for (int i = begin + threadIdx.x; i < end; i += kThreads)
      sum += expf(logits[i] - out.max_logit);
    __syncthreads();
    out.sum = BlockSum(sum, scores);
  }
  out.finite = finite ? 1 : 0;
  if (threadIdx.x == 0) c.slices[int64_t{blockIdx.y} * kDrawSlices + blockIdx.x] = out;
}

// ---- narrowing: rows that filter get a list of the few tokens that can be left ----

__device__ bool Narrows(const DrawCall& c, const DrawRow& row) {
  return row.logit_index >= 0 && !Greedy(row) && Filters(row, c.vocabulary);
}

__device__ bool CutsByCount(const DrawCall& c, const DrawRow& row) {
  return row.top_k > 0 && row.top_k < c.vocabulary;
}

__device__ float MaxOf(const DrawCall& c) {
  float max = -INFINITY;
  const DrawSlice* slices = c.slices + int64_t{blockIdx.y} * kDrawSlices;
  for (int i = 0; i < kDrawSlices; ++i) max = fmaxf(max, slices[i].max_score);
  return max;
}

// How many tokens of the slice, and what weight, lie in each of the first level's bins.
__global__ void __launch_bounds__(kThreads) CountKernel(DrawCall c) {
  __shared__ unsigned long long units[kBins];
  __shared__ uint32_t counts[kBins];
  BeginOverlapped();
  const DrawRow row = c.rows[blockIdx.y];
  if (!Narrows(c, row)) return;
  static_assert(kThreads == kBins);
  units[threadIdx.x] = 0;
  counts[threadIdx.x] = 0;
  __syncthreads();
  const Range slice = SliceOf(c.vocabulary, static_cast<int>(blockIdx.x));
  const float* edited = ScoresOf(c, row, blockIdx.y);
  const float max = __fdiv_rn(MaxOf(c), row.temperature);
  // Where top_k cuts first, it is the number of tokens that bounds the list.
  const bool weighs = !CutsByCount(c, row) && row.top_p < 1.0f;
  for (int i = slice.begin + threadIdx.x; i < slice.end; i += kThreads) {
    const float score = __fdiv_rn(edited[i], row.temperature);
    const int bin = FirstBin(max - score);
    atomicAdd(&counts[bin], 1u);
    if (weighs) atomicAdd(&units[bin], UnitsOf(expf(score - max)));
  }
  __syncthreads();
  const int64_t at = (int64_t{blockIdx.y} * kDrawSlices + blockIdx.x) * kBins + threadIdx.x;
  c.bin_counts[at] = counts[threadIdx.x];
  c.bin_units[at] = units[threadIdx.x];
}

// Inclusive sums over the block's 256 threads.
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

// Lists the slice's tokens in the bins that matter, behind those of the slices before it.
__global__ void __launch_bounds__(kThreads) ListKernel(DrawCall c) {
  __shared__ unsigned long long wide[kThreads / 32];
  __shared__ int narrow[kThreads / 32];
  __shared__ unsigned long long all_units;
  __shared__ int last_bin, entries, first;
  BeginOverlapped();
  const DrawRow row = c.rows[blockIdx.y];
  if (!Narrows(c, row)) return;
  const int bin = threadIdx.x;
  int count = 0, earlier = 0;
  unsigned long long units = 0;
  for (int s = 0; s < kDrawSlices; ++s) {
    const int64_t at = (int64_t{blockIdx.y} * kDrawSlices + s) * kBins + bin;
    const int own = static_cast<int>(c.bin_counts[at]);
    count += own;
    if (s < static_cast<int>(blockIdx.x)) earlier += own;
    units += c.bin_units[at];
  }
  const int through = ScanBlock(count, narrow);
  const unsigned long long units_through = ScanBlock(units, wide);
  const int earlier_through = ScanBlock(earlier, narrow);
  if (bin == kBins - 1) {
    all_units = units_through;
    last_bin = kBins - 1;
  }
  __syncthreads();
  bool enough = false;
  if (CutsByCount(c, row)) {
    enough = through >= row.top_k;
  } else if (row.top_p < 1.0f) {
    const double wanted =
        ceil(static_cast<double>(fmaxf(row.top_p, 0.0f)) * static_cast<double>(all_units));
    enough = units_through >= static_cast<unsigned long long>(fmax(wanted, 1.0));
  } else {
    // A bin more than exact arithmetic would ask for.
    enough = static_cast<float>(bin - 1) > -8.0f * logf(row.min_p);
  }
  if (enough) atomicMin(&last_bin, bin);
  __syncthreads();
  if (bin == last_bin) {
    entries = through;
    first = earlier_through;
  }
  __syncthreads();
  const bool fits = entries <= kDrawCandidates;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    c.lists[blockIdx.y] = DrawList{fits ? entries : -1, 0, all_units};
  }
  if (!fits) return;
  const Range slice = SliceOf(c.vocabulary, static_cast<int>(blockIdx.x));
  const float* edited = ScoresOf(c, row, blockIdx.y);
  const float max = __fdiv_rn(MaxOf(c), row.temperature);
  DrawCandidate* const list = c.candidates + int64_t{blockIdx.y} * kDrawCandidates;
  int at = first;
  for (int begin = slice.begin; begin < slice.end; begin += kThreads) {
    const int token = begin + threadIdx.x;
    const float score = token < slice.end ? __fdiv_rn(edited[token], row.temperature) : -INFINITY;
    const bool taken = token < slice.end && FirstBin(max - score) <= last_bin;
    const int here = __syncthreads_count(taken);
    if (here == 0) continue;
    const int rank = ScanBlock(static_cast<int>(taken), narrow);
    if (taken) list[at + rank - 1] = {score, token};
    at += here;
  }
}

// ---- finish ----

__global__ void __launch_bounds__(kFinishThreads) FinishKernel(DrawCall c) {
  __shared__ Bin bins;
  __shared__ float scores[32];
  __shared__ int32_t tokens[32];
  BeginOverlapped();
  const DrawRow row = c.rows[blockIdx.x];
  if (row.logit_index < 0) return;
  const DrawSlice* slices = c.slices + int64_t{blockIdx.x} * kDrawSlices;
  float max = -INFINITY, best = -INFINITY;
  int32_t max_token = INT_MAX, best_token = INT_MAX;
  bool finite = true;
  for (int i = 0; i < kDrawSlices; ++i) {
    const DrawSlice& slice = slices[i];
    finite = finite && slice.finite != 0;
    if (Better(slice.max_score, slice.max_token, max, max_token)) {
      max = slice.max_score;
      max_token = slice.max_token;
    }
    if (Better(slice.best, slice.best_token, best, best_token)) {
      best = slice.best;
      best_token = slice.best_token;
    }
  }
  DrawnToken out;
  if (!finite) {
    out.status = DrawStatus::kNotFinite;
  } else if (max == -INFINITY) {
    out.status = DrawStatus::kNothingLeft;
  } else if (Greedy(row)) {
    out.token = max_token;
  } else if (!Filters(row, c.vocabulary)) {
    out.token = best_token;
  } else {
    const DrawList list = c.lists[blockIdx.x];
    const bool listed = list.count >= 0;
    const Filtered f{ScoresOf(c, row, blockIdx.x),
                     listed ? c.candidates + int64_t{blockIdx.x} * kDrawCandidates : nullptr,
                     listed ? list.count : c.vocabulary,
                     row.temperature,
                     __fdiv_rn(max, row.temperature),
                     c.vocabulary};
    out.token = DrawFiltered(f, row, list.units, &bins, scores, tokens);
  }
  if (threadIdx.x != 0) return;
  if (out.token >= 0 && row.num_logprobs >= 0) {
    const float* logits = c.logits + int64_t{row.logit_index} * c.stride;
    float top = -INFINITY;
    for (int i = 0; i < kDrawSlices; ++i) top = fmaxf(top, slices[i].max_logit);
    double sum = 0;
    for (int i = 0; i < kDrawSlices; ++i) {
      if (slices[i].sum > 0)
        sum += static_cast<double>(slices[i].sum) * exp(double{slices[i].max_logit} - top);
    }
    const double log_sum = top + log(sum);
    out.log_sum = static_cast<float>(log_sum);
    out.logprob = static_cast<float>(static_cast<double>(logits[out.token]) - log_sum);
  }
  c.drawn[row.drawn_at] = out;
  if (out.token >= 0) c.slot_tokens[row.slot] = out.token;
}

}  // namespace

Status LaunchDraw(const DrawCall& c, cudaStream_t stream) {
  if (c.num_rows == 0) return {};
  const auto rows = static_cast<unsigned>(c.num_rows);
  const dim3 slices(kDrawSlices, rows);
  AISP_RETURN_IF_ERROR(
      Check(LaunchOverlapped(ScanKernel, slices, kThreads, 0, stream, c), "scanning logits"));
  AISP_RETURN_IF_ERROR(
      Check(LaunchOverlapped(CountKernel, slices, kThreads, 0, stream, c), "counting logits"));
  AISP_RETURN_IF_ERROR(
      Check(LaunchOverlapped(ListKernel, slices, kThreads, 0, stream, c), "listing logits"));
  return Check(LaunchOverlapped(FinishKernel, rows, kFinishThreads, 0, stream, c),
               "drawing tokens");
}

}  // namespace aisp::cuda
