#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/draw_kernels.h"
#include "kernels/cuda/launch.cuh"

#include <climits>

namespace aisp::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kFinishThreads = 1024;
constexpr int kBins = 256;

// ---- common/random.h, word for word ----

__device__ __forceinline__ uint4 Philox(uint64_t key, uint4 c) {
  auto key0 = static_cast<uint32_t>(key);
  auto key1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, c.x), low0 = 0xD2511F53u * c.x;
    const uint32_t high1 = __umulhi(0xCD9E8D57u, c.z), low1 = 0xCD9E8D57u * c.z;
    c = uint4{high1 ^ c.y ^ key0, low1, high0 ^ c.w ^ key1, low0};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

__device__ __forceinline__ float GumbelOf(uint32_t word) {
  const float u = (static_cast<float>(word >> 9) + 0.5f) * 0x1.0p-23f;
  return -logf(-logf(u));
}

__device__ __forceinline__ uint32_t WordOf(const uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// ---- comparing ----

// The greater score; of equal ones the lower token. A token of INT_MAX is none.
__device__ __forceinline__ bool Better(float a, int32_t a_token, float b, int32_t b_token) {
  return a > b || (a == b && a_token < b_token);
}

__device__ __forceinline__ void WarpBest(float& score, int32_t& token) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) {
    const float other = __shfl_xor_sync(~0u, score, o);
    const int32_t other_token = __shfl_xor_sync(~0u, token, o);
    if (Better(other, other_token, score, token)) {
      score = other;
      token = other_token;
    }
  }
}

// `scores` and `tokens`: 32 of each in shared memory. Everybody gets the result.
__device__ __forceinline__ void BlockBest(float& score, int32_t& token, float* scores,
                                          int32_t* tokens) {
  WarpBest(score, token);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __syncthreads();
  if (lane == 0) {
    scores[warp] = score;
    tokens[warp] = token;
  }
  __syncthreads();
  const int warps = blockDim.x / 32;
  score = lane < warps ? scores[lane] : -INFINITY;
  token = lane < warps ? tokens[lane] : INT_MAX;
  WarpBest(score, token);
}

__device__ __forceinline__ bool Greedy(const DrawRow& row) { return row.temperature <= 0.0f; }

__device__ __forceinline__ bool Filters(const DrawRow& row, int vocabulary) {
  return (row.top_k > 0 && row.top_k < vocabulary) || row.top_p < 1.0f || row.min_p > 0.0f;
}

__device__ __forceinline__ const float* ScoresOf(const DrawCall& c, const DrawRow& row, int index) {
  return row.edit_count > 0 ? c.edited + int64_t{index} * c.vocabulary
                            : c.logits + int64_t{row.logit_index} * c.stride;
}

// ---- edit ----

__global__ void __launch_bounds__(kThreads) EditKernel(DrawCall c) {
  BeginOverlapped();
  const DrawRow row = c.rows[blockIdx.y];
  if (row.logit_index < 0 || row.edit_count == 0) return;
  const int width = (c.vocabulary + gridDim.x - 1) / gridDim.x;
  const int begin = blockIdx.x * width, end = min(c.vocabulary, begin + width);
  const float* from = c.logits + int64_t{row.logit_index} * c.stride;
  float* to = c.edited + int64_t{blockIdx.y} * c.vocabulary;
  for (int i = begin + threadIdx.x; i < end; i += blockDim.x) to[i] = from[i];
  __syncthreads();
  for (int i = threadIdx.x; i < row.edit_count; i += blockDim.x) {
    const TokenEdit edit = c.edits[row.edit_begin + i];
    if (edit.token < begin || edit.token >= end) continue;
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
}

// ---- scan ----

__global__ void __launch_bounds__(kThreads) ScanKernel(DrawCall c) {
  __shared__ float scores[32];
  __shared__ int32_t tokens[32];
  BeginOverlapped();
  const DrawRow row = c.rows[blockIdx.y];
  if (row.logit_index < 0) return;
  // Slices begin at multiples of four, so that a Philox draw serves four tokens of one thread.
  const int width = (c.vocabulary + 4 * kDrawSlices - 1) / (4 * kDrawSlices) * 4;
  const int begin = min(c.vocabulary, static_cast<int>(blockIdx.x) * width);
  const int end = min(c.vocabulary, begin + width);
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

// ---- finish ----

// Orders floats as unsigned numbers.
__device__ __forceinline__ uint32_t KeyOf(float v) {
  // -0 and +0 are equal scores.
  const uint32_t bits = __float_as_uint(v + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Weights relative to the greatest are summed as whole numbers, so that the sum does not depend on the order.
constexpr float kUnit = 0x1.0p45f;
__device__ __forceinline__ unsigned long long UnitsOf(float weight) {
  return static_cast<unsigned long long>(weight * kUnit);
}

struct Filtered {
  const float* scores;
  float temperature, max;
  int vocabulary;
  __device__ __forceinline__ float Score(int token) const {
    return __fdiv_rn(scores[token], temperature);
  }
};

struct Bin {
  unsigned long long amount[kBins];  // tokens, or units of weight
  uint32_t least[kBins], greatest[kBins];
};

// The descending order by (score, token) is cut where the amount reaches `target`. `key`: of the last one inside; `before`: the
// amount of all with a greater key.
struct Cut {
  uint32_t key;
  unsigned long long before;
};

// Which of 256 bins a token falls into at `level`, the greatest scores first: eighths of a nat below the maximum, then 256th
// parts of the bin, then the bytes of the key. Levels are monotone in the score, so that bins can be taken one after the other.
__device__ __forceinline__ int BinOf(const Filtered& f, float score, uint32_t key, int level,
                                     int first_bin) {
  const float below = f.max - score;
  if (level == 0) return min(kBins - 1, static_cast<int>(fminf(below * 8.0f, 1e6f)));
  if (level == 1) {
    const float rest = below * 8.0f - static_cast<float>(first_bin);
    return min(kBins - 1, static_cast<int>(fminf(fmaxf(rest, 0.0f) * 256.0f, 1e6f)));
  }
  return 255 - static_cast<int>(key >> (8 * (5 - level)) & 0xff);
}

// Finds the cut among tokens with keys of at least `floor_key`, whose whole amount reaches `target` > 0. All threads of the block
// call it and get the result.
__device__ Cut FindCut(const Filtered& f, bool by_weight, unsigned long long target,
                       uint32_t floor_key, Bin* bins) {
  constexpr int kLevels = 6;
  __shared__ int chosen[kLevels];
  __shared__ unsigned long long before;
  __shared__ uint32_t least, greatest;
  if (threadIdx.x == 0) before = 0;
  for (int level = 0; level < kLevels; ++level) {
    for (int i = threadIdx.x; i < kBins; i += blockDim.x) {
      bins->amount[i] = 0;
      bins->least[i] = ~0u;
      bins->greatest[i] = 0;
    }
    __syncthreads();
    for (int token = threadIdx.x; token < f.vocabulary; token += blockDim.x) {
      const float score = f.Score(token);
      const uint32_t key = KeyOf(score);
      bool inside = key >= floor_key;
      for (int l = 0; l < level && inside; ++l)
        inside = BinOf(f, score, key, l, chosen[0]) == chosen[l];
      if (!inside) continue;
      const int bin = BinOf(f, score, key, level, chosen[0]);
      atomicAdd(&bins->amount[bin], by_weight ? UnitsOf(expf(score - f.max)) : 1ull);
      atomicMin(&bins->least[bin], key);
      atomicMax(&bins->greatest[bin], key);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int last = 0;
      unsigned long long sum = before;
      for (int bin = 0; bin < kBins; ++bin) {
        if (bins->greatest[bin] == 0) continue;  // no key is 0
        last = bin;
        before = sum;
        sum += bins->amount[bin];
        if (sum >= target) break;
      }
      chosen[level] = last;
      least = bins->least[last];
      greatest = bins->greatest[last];
    }
    __syncthreads();
    if (least == greatest) break;
  }
  const Cut cut{greatest, before};
  __syncthreads();
  return cut;
}

// The token of the `count`-th tie with `key`, in ascending order of tokens; INT_MAX when there are not more than that.
__device__ int32_t TieBound(const Filtered& f, uint32_t key, unsigned long long count) {
  __shared__ int32_t bound;
  __shared__ int warp_ties[32];
  if (threadIdx.x == 0) bound = INT_MAX;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  unsigned long long seen = 0;
  for (int first = 0; first < f.vocabulary; first += blockDim.x) {
    const int token = first + threadIdx.x;
    const bool tie = token < f.vocabulary && KeyOf(f.Score(token)) == key;
    const unsigned ballot = __ballot_sync(~0u, tie);
    const int here = __syncthreads_count(tie);
    if (seen + here >= count) {
      if (lane == 0) warp_ties[warp] = __popc(ballot);
      __syncthreads();
      unsigned long long rank = seen + __popc(ballot & ((1u << lane) - 1));
      for (int w = 0; w < warp; ++w) rank += warp_ties[w];
      if (tie && rank + 1 == count) bound = token;
      break;
    }
    seen += here;
  }
  __syncthreads();
  return bound;
}

__device__ unsigned long long BlockUnits(unsigned long long v) {
  __shared__ unsigned long long total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
#pragma unroll
  for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(~0u, v, o);
  if (threadIdx.x % 32 == 0) atomicAdd(&total, v);
  __syncthreads();
  return total;
}

// top_k, top_p and min_p each keep a beginning of the descending order; the draw is among what is left.
__device__ int32_t DrawFiltered(const Filtered& f, const DrawRow& row, Bin* bins, float* scores,
                                int32_t* tokens) {
  uint32_t cut_key = 0;
  unsigned long long ties = ~0ull;  // of the tokens with cut_key, how many stay
  if (row.top_k > 0 && row.top_k < f.vocabulary) {
    const Cut cut = FindCut(f, false, static_cast<unsigned long long>(row.top_k), 0, bins);
    cut_key = cut.key;
    ties = static_cast<unsigned long long>(row.top_k) - cut.before;
  }
  if (row.top_p < 1.0f) {
    unsigned long long units = 0;
    __shared__ unsigned long long tie_units;
    if (threadIdx.x == 0) tie_units = 0;
    __syncthreads();
    for (int token = threadIdx.x; token < f.vocabulary; token += blockDim.x) {
      const float score = f.Score(token);
      const uint32_t key = KeyOf(score);
      const unsigned long long mine = UnitsOf(expf(score - f.max));
      if (key > cut_key) units += mine;
      if (key == cut_key) tie_units = mine;  // the same for all of them
    }
    unsigned long long total = BlockUnits(units);
    if (cut_key != 0) total += tie_units * ties;
    const double wanted =
        ceil(static_cast<double>(fmaxf(row.top_p, 0.0f)) * static_cast<double>(total));
    const auto target = static_cast<unsigned long long>(fmax(wanted, 1.0));
    const Cut cut = FindCut(f, true, target, cut_key, bins);
    __shared__ unsigned long long unit;
    for (int token = threadIdx.x; token < f.vocabulary; token += blockDim.x) {
      const float score = f.Score(token);
      if (KeyOf(score) == cut.key) unit = UnitsOf(expf(score - f.max));
    }
    __syncthreads();
    const unsigned long long left = target > cut.before ? target - cut.before : 1;
    const unsigned long long needed = unit > 0 ? (left + unit - 1) / unit : 1;
    ties = cut.key == cut_key ? min(ties, needed) : needed;
    cut_key = cut.key;
  }
  const int32_t bound = cut_key != 0 ? TieBound(f, cut_key, ties) : INT_MAX;
  float best = -INFINITY;
  int32_t best_token = INT_MAX;
  for (int token = threadIdx.x; token < f.vocabulary; token += blockDim.x) {
    const float score = f.Score(token);
    const uint32_t key = KeyOf(score);
    if (key < cut_key || (key == cut_key && token > bound)) continue;
    const float weight = expf(score - f.max);
    if (weight == 0.0f || weight < row.min_p) continue;
    const auto id = static_cast<uint32_t>(token);
    const uint4 words = Philox(row.seed, {id / 4, row.position, row.choice, 0});
    const float sum = __fadd_rn(score, GumbelOf(WordOf(words, token % 4)));
    if (Better(sum, token, best, best_token)) {
      best = sum;
      best_token = token;
    }
  }
  BlockBest(best, best_token, scores, tokens);
  return best_token;
}

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
    const Filtered f{ScoresOf(c, row, blockIdx.x), row.temperature, __fdiv_rn(max, row.temperature),
                     c.vocabulary};
    out.token = DrawFiltered(f, row, &bins, scores, tokens);
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
  c.drawn[blockIdx.x] = out;
  if (out.token >= 0) c.slot_tokens[row.slot] = out.token;
}

}  // namespace

Status LaunchDraw(const DrawCall& c, cudaStream_t stream) {
  if (c.num_rows == 0) return {};
  const auto rows = static_cast<unsigned>(c.num_rows);
  const dim3 slices(kDrawSlices, rows);
  AISP_RETURN_IF_ERROR(
      Check(LaunchOverlapped(EditKernel, slices, kThreads, 0, stream, c), "editing logits"));
  AISP_RETURN_IF_ERROR(
      Check(LaunchOverlapped(ScanKernel, slices, kThreads, 0, stream, c), "scanning logits"));
  return Check(LaunchOverlapped(FinishKernel, rows, kFinishThreads, 0, stream, c),
               "drawing tokens");
}

}  // namespace aisp::cuda
