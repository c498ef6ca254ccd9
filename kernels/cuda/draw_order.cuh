// Draws from a row cut by top_k, top_p or min_p. The row is never sorted; histograms of the scores
// find where the descending order is cut. Called by all threads of a block.
#pragma once

#include "kernels/cuda/draw_common.cuh"

namespace aisp::cuda {

inline constexpr int kBins = kDrawBins;

// Orders floats as unsigned numbers.
__device__ __forceinline__ uint32_t KeyOf(float v) {
  // -0 and +0 are equal scores.
  const uint32_t bits = __float_as_uint(v + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Weights relative to the largest are summed as integers, so that the sum does not depend on the
// order.
constexpr float kUnit = 0x1.0p45f;
__device__ __forceinline__ unsigned long long UnitsOf(float weight) {
  return static_cast<unsigned long long>(weight * kUnit);
}

// The scores that a row is drawn from, in token order: all of them or, if `listed`, a list, divided
// by the temperature already.
struct Filtered {
  const float* scores;
  const DrawCandidate* listed;
  int count;
  float temperature, max;
  int vocabulary;
  __device__ __forceinline__ float Score(int i) const {
    return listed != nullptr ? listed[i].score : __fdiv_rn(scores[i], temperature);
  }
  __device__ __forceinline__ int32_t Token(int i) const {
    return listed != nullptr ? listed[i].token : i;
  }
};

struct Bin {
  unsigned long long amount[kBins];  // tokens, or units of weight
  uint32_t least[kBins], greatest[kBins];
};

// A cut of the descending order by (score, token) where the amount reaches `target`. `key`: of the
// last one inside; `before`: the amount of all with larger keys.
struct Cut {
  uint32_t key;
  unsigned long long before;
};

// The bin (of 256) of a token at `level`, largest scores first: eighths of a nat below the maximum,
// then 1/256 of that bin, then the bytes of the key. Monotone in the score, so bins can be
// processed in order.
__device__ __forceinline__ int FirstBin(float below) {
  return min(kBins - 1, static_cast<int>(fminf(below * 8.0f, 1e6f)));
}
__device__ __forceinline__ int BinOf(const Filtered& f, float score, uint32_t key, int level,
                                     int first_bin) {
  const float below = f.max - score;
  if (level == 0) return FirstBin(below);
  if (level == 1) {
    const float rest = below * 8.0f - static_cast<float>(first_bin);
    return min(kBins - 1, static_cast<int>(fminf(fmaxf(rest, 0.0f) * 256.0f, 1e6f)));
  }
  return 255 - static_cast<int>(key >> (8 * (5 - level)) & 0xff);
}

// The bin in which `before` plus the amounts, added from the first bin on, reach the target, else
// the last non-empty one; `before` becomes the amount before it. Called by the first warp, eight
// bins per lane.
__device__ inline int TakeBins(const Bin& bins, unsigned long long target,
                               unsigned long long* before) {
  constexpr int kOwn = kBins / 32;
  const int lane = threadIdx.x;
  unsigned long long own = 0;
  bool any = false;
  for (int i = lane * kOwn; i < (lane + 1) * kOwn; ++i) {
    own += bins.amount[i];
    any = any || bins.greatest[i] != 0;  // no key is 0
  }
  unsigned long long through = own;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const unsigned long long other = __shfl_up_sync(~0u, through, o);
    if (lane >= o) through += other;
  }
  const unsigned long long start = *before;
  const unsigned reached = __ballot_sync(~0u, any && start + through >= target);
  const unsigned present = __ballot_sync(~0u, any);
  const int taker =
      reached != 0 ? __ffs(static_cast<int>(reached)) - 1 : 31 - __clz(static_cast<int>(present));
  __syncwarp();  // all lanes have read *before
  int last = 0;
  if (lane == taker) {
    unsigned long long sum = start + through - own;
    for (int i = lane * kOwn; i < (lane + 1) * kOwn; ++i) {
      if (bins.greatest[i] == 0) continue;
      last = i;
      *before = sum;
      sum += bins.amount[i];
      if (sum >= target) break;
    }
  }
  return __shfl_sync(~0u, last, taker);
}

// Finds the cut among tokens with keys of at least `floor_key`, whose total amount reaches `target`
// > 0. Called by all threads of the block; all get the result.
__device__ inline Cut FindCut(const Filtered& f, bool by_weight, unsigned long long target,
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
    for (int i = threadIdx.x; i < f.count; i += blockDim.x) {
      const float score = f.Score(i);
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
    if (threadIdx.x < 32) {
      const int bin = TakeBins(*bins, target, &before);
      if (threadIdx.x == 0) {
        chosen[level] = bin;
        least = bins->least[bin];
        greatest = bins->greatest[bin];
      }
    }
    __syncthreads();
    if (least == greatest) break;
  }
  const Cut cut{greatest, before};
  __syncthreads();
  return cut;
}

// The `count`-th tie with `key` in ascending token order; INT_MAX if there are no more than that.
__device__ inline int32_t TieBound(const Filtered& f, uint32_t key, unsigned long long count) {
  __shared__ int32_t bound;
  __shared__ int warp_ties[32];
  if (threadIdx.x == 0) bound = INT_MAX;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  unsigned long long seen = 0;
  for (int first = 0; first < f.count; first += blockDim.x) {
    const int at = first + threadIdx.x;
    const bool tie = at < f.count && KeyOf(f.Score(at)) == key;
    const unsigned ballot = __ballot_sync(~0u, tie);
    const int here = __syncthreads_count(tie);
    if (seen + here >= count) {
      if (lane == 0) warp_ties[warp] = __popc(ballot);
      __syncthreads();
      unsigned long long rank = seen + __popc(ballot & ((1u << lane) - 1));
      for (int w = 0; w < warp; ++w) rank += warp_ties[w];
      if (tie && rank + 1 == count) bound = at;
      break;
    }
    seen += here;
  }
  __syncthreads();
  return bound;
}

__device__ inline unsigned long long BlockUnits(unsigned long long v) {
  __shared__ unsigned long long total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
#pragma unroll
  for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(~0u, v, o);
  if (threadIdx.x % 32 == 0) atomicAdd(&total, v);
  __syncthreads();
  return total;
}

// A token's score plus its Gumbel noise.
__device__ __forceinline__ float WithNoise(const DrawRow& row, float score, int32_t token) {
  const auto id = static_cast<uint32_t>(token);
  const uint4 words = Philox(row.seed, {id / 4, row.position, row.choice, 0});
  return __fadd_rn(score, GumbelOf(WordOf(words, token % 4)));
}

// top_k, top_p and min_p each keep a prefix of the descending order; draws from what is left.
__device__ inline int32_t DrawFiltered(const Filtered& f, const DrawRow& row,
                                       unsigned long long all_units, Bin* bins, float* scores,
                                       int32_t* tokens) {
  uint32_t cut_key = 0;
  unsigned long long ties = ~0ull;  // number of tokens with cut_key that stay
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
    for (int i = threadIdx.x; i < f.count; i += blockDim.x) {
      const float score = f.Score(i);
      const uint32_t key = KeyOf(score);
      const unsigned long long mine = UnitsOf(expf(score - f.max));
      if (key > cut_key) units += mine;
      if (key == cut_key) tie_units = mine;  // equal for all of them
    }
    unsigned long long total = BlockUnits(units);
    if (cut_key != 0) total += tie_units * ties;
    if (cut_key == 0 && f.listed != nullptr) total = all_units;  // lists omit tokens
    const double wanted =
        ceil(static_cast<double>(fmaxf(row.top_p, 0.0f)) * static_cast<double>(total));
    const auto target = static_cast<unsigned long long>(fmax(wanted, 1.0));
    const Cut cut = FindCut(f, true, target, cut_key, bins);
    __shared__ unsigned long long unit;
    for (int i = threadIdx.x; i < f.count; i += blockDim.x) {
      const float score = f.Score(i);
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
  for (int i = threadIdx.x; i < f.count; i += blockDim.x) {
    const float score = f.Score(i);
    const int32_t token = f.Token(i);
    const uint32_t key = KeyOf(score);
    if (key < cut_key || (key == cut_key && i > bound)) continue;
    const float weight = expf(score - f.max);
    if (weight == 0.0f || weight < row.min_p) continue;
    const float sum = WithNoise(row, score, token);
    if (Better(sum, token, best, best_token)) {
      best = sum;
      best_token = token;
    }
  }
  BlockBest(best, best_token, scores, tokens);
  return best_token;
}

// ---- lists with at most one candidate per thread ----

constexpr int kFewCandidates = 512;

struct FewCandidates {
  alignas(16) float scores[kFewCandidates];
  unsigned long long units[kFewCandidates];  // in descending order; then prefix sums
  unsigned long long warps[32];
};

// As DrawFiltered, for at most kFewCandidates listed tokens and a block with more threads: a
// candidate's rank is the number of better ones, and each cut keeps a prefix of that order.
__device__ inline int32_t DrawFew(const Filtered& f, const DrawRow& row,
                                  unsigned long long all_units, FewCandidates* few, float* scores,
                                  int32_t* tokens) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const bool mine = thread < f.count;
  const DrawCandidate candidate = mine ? f.listed[thread] : DrawCandidate{-INFINITY, INT_MAX};
  const float score = candidate.score;
  if (thread < kFewCandidates) {
    few->scores[thread] = score;
    few->units[thread] = 0;
  }
  __syncthreads();
  int place = 0;
  if (mine) {
    // The list is in token order.
    for (int i = 0; i < f.count; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(few->scores + i);
      place += four.x > score || (four.x == score && i < thread) ? 1 : 0;
      place += four.y > score || (four.y == score && i + 1 < thread) ? 1 : 0;
      place += four.z > score || (four.z == score && i + 2 < thread) ? 1 : 0;
      place += four.w > score || (four.w == score && i + 3 < thread) ? 1 : 0;
    }
  }
  const bool counts = row.top_k > 0 && row.top_k < f.vocabulary;
  bool stays = mine && (!counts || place < row.top_k);
  const float weight = mine ? expf(score - f.max) : 0.0f;
  if (row.top_p < 1.0f) {
    if (stays) few->units[place] = UnitsOf(weight);
    __syncthreads();
    const unsigned long long own = thread < kFewCandidates ? few->units[thread] : 0;
    unsigned long long through = own;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
      const unsigned long long other = __shfl_up_sync(~0u, through, o);
      if (lane >= o) through += other;
    }
    if (lane == 31) few->warps[warp] = through;
    __syncthreads();
    unsigned long long before = 0, total = 0;
    for (int w = 0; w < kFewCandidates / 32; ++w) {
      if (w < warp) before += few->warps[w];
      total += few->warps[w];
    }
    if (thread < kFewCandidates) few->units[thread] = before + through - own;
    __syncthreads();
    if (!counts) total = all_units;  // a list does not contain all tokens
    const double wanted =
        ceil(static_cast<double>(fmaxf(row.top_p, 0.0f)) * static_cast<double>(total));
    const auto target = static_cast<unsigned long long>(fmax(wanted, 1.0));
    stays = stays && few->units[place] < target;
  }
  float best = -INFINITY;
  int32_t best_token = INT_MAX;
  if (stays && weight != 0.0f && weight >= row.min_p) {
    best = WithNoise(row, score, candidate.token);
    best_token = candidate.token;
  }
  BlockBest(best, best_token, scores, tokens);
  return best_token;
}

}  // namespace aisp::cuda
