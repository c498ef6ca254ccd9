// Rotary positions and the append to the paged pool, for every head size and format, and attention
// likewise. The fast kernels for common shapes are in attention/.
#include <algorithm>

#include "common/check.h"
#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.h"

namespace aisp::cuda {
namespace {

constexpr int kMaxHeadDim = 256;

// Element strides of the pool.
struct Pool {
  void* base;
  int64_t block_elements, head_elements, part_elements;
  int32_t head_dim, block_tokens;
};

Pool PoolOf(const PagedKvView& kv) {
  const auto bytes = static_cast<int64_t>(DTypeBytes(kv.dtype));
  return {kv.layer,
          static_cast<int64_t>(kv.block_bytes()) / bytes,
          static_cast<int64_t>(kv.head_bytes()) / bytes,
          static_cast<int64_t>(kv.part_bytes()) / bytes,
          kv.head_dim,
          kv.block_tokens};
}

template <typename Kv>
__device__ Kv* SlotOf(const Pool& pool, int32_t slot, int head, bool value) {
  const int32_t block = slot / pool.block_tokens, in_block = slot % pool.block_tokens;
  return static_cast<Kv*>(pool.base) + block * pool.block_elements + head * pool.head_elements +
         (value ? pool.part_elements : 0) + int64_t{in_block} * pool.head_dim;
}

// One block per (row, head of q, k or v); one thread per element.
template <typename T, typename Kv>
__global__ void RopeAppendKernel(T* qkv, int64_t stride, const float* cos_sin, const float* q_norm,
                                 const float* k_norm, float epsilon, int num_heads,
                                 int num_kv_heads, const int32_t* positions,
                                 const int32_t* kv_slots, Pool pool) {
  __shared__ float scratch[32];
  __shared__ float values[kMaxHeadDim];
  BeginOverlapped();
  const int64_t row = blockIdx.x;
  const int32_t position = positions[row];
  if (position < 0) return;
  const int head = blockIdx.y, dim = pool.head_dim, half = dim / 2, i = threadIdx.x;
  const bool is_q = head < num_heads, is_v = head >= num_heads + num_kv_heads;
  T* x = qkv + row * stride + int64_t{head} * dim;
  float v = i < dim ? ToFloat(x[i]) : 0.0f;
  if (is_v) {
    if (i < dim)
      SlotOf<Kv>(pool, kv_slots[row], head - num_heads - num_kv_heads, true)[i] = FromFloat<Kv>(v);
    return;
  }
  const float* norm = is_q ? q_norm : k_norm;
  if (norm != nullptr) {
    const float sum = BlockSum(v * v, scratch);
    if (i < dim) v = v * rsqrtf(sum / static_cast<float>(dim) + epsilon) * norm[i];
  }
  if (i < dim) values[i] = v;
  __syncthreads();
  if (i >= dim) return;
  const float* cosine = cos_sin + int64_t{position} * dim;
  const int pair = i < half ? i : i - half;
  const float c = cosine[pair], s = cosine[half + pair];
  const float out = i < half ? v * c - values[i + half] * s : v * c + values[i - half] * s;
  if (is_q) {
    x[i] = FromFloat<T>(out);
  } else {
    SlotOf<Kv>(pool, kv_slots[row], head - num_heads, false)[i] = FromFloat<Kv>(out);
  }
}

struct LatentShape {
  int nope, rope, v;
};

template <typename Kv>
__global__ void LatentAppendKernel(float* q, int64_t q_stride, const float* kv, int64_t kv_stride,
                                   const float* k_rope, int64_t k_rope_stride, const float* cos_sin,
                                   LatentShape shape, const int32_t* positions,
                                   const int32_t* kv_slots, Pool pool) {
  __shared__ float values[kMaxHeadDim];
  BeginOverlapped();
  const int64_t row = blockIdx.x;
  const int32_t position = positions[row];
  if (position < 0) return;
  const int head = blockIdx.y, half = shape.rope / 2, i = threadIdx.x;
  const float* cosine = cos_sin + int64_t{position} * shape.rope;
  const float* sine = cosine + half;
  // The result is de-interleaved, for q and k alike, which does not change any dot product.
  const auto rotate = [&](const float* x) {
    const int pair = i < half ? i : i - half;
    const float a = x[2 * pair], b = x[2 * pair + 1];
    return i < half ? a * cosine[pair] - b * sine[pair] : b * cosine[pair] + a * sine[pair];
  };
  float* q_head = q + row * q_stride + int64_t{head} * (shape.nope + shape.rope) + shape.nope;
  if (i < shape.rope) values[i] = rotate(q_head);
  __syncthreads();
  if (i < shape.rope) q_head[i] = values[i];
  const float* kv_head = kv + row * kv_stride + int64_t{head} * (shape.nope + shape.v);
  if (i >= pool.head_dim) return;
  Kv* key = SlotOf<Kv>(pool, kv_slots[row], head, false);
  Kv* value = SlotOf<Kv>(pool, kv_slots[row], head, true);
  value[i] = FromFloat<Kv>(i < shape.v ? kv_head[shape.nope + i] : 0.0f);
  if (i < shape.nope) {
    key[i] = FromFloat<Kv>(kv_head[i]);
  } else if (i >= shape.nope + shape.rope) {
    key[i] = FromFloat<Kv>(0.0f);
  }
  if (i < shape.rope) key[shape.nope + i] = FromFloat<Kv>(rotate(k_rope + row * k_rope_stride));
}

template <typename Q, typename Out>
struct AttentionArgs {
  const Q* q;
  int64_t q_stride;
  Out* out;
  int64_t out_stride;
  int q_dim, v_dim, group, window, num_sequences;
  float scale;
  const RowSpan* sequences;
  const int32_t* positions;
  const int32_t* tables;
  Pool pool;
};

constexpr int kWarps = 8;
constexpr int kPerLane = kMaxHeadDim / 32;

// The last non-empty sequence that begins at or before `row`.
__device__ int SequenceOf(const RowSpan* sequences, int count, int row) {
  int low = 0, high = count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (sequences[middle].num_rows > 0 && sequences[middle].row_begin <= row) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Each warp handles every eighth key with its own softmax (Milakov and Gimelshein,
// arXiv:1805.02867); the block merges them.
// Long: splitting the function changes its scheduling.
template <typename Q, typename Kv, typename Out>
__global__ void __launch_bounds__(kWarps * 32) PlainAttentionKernel(AttentionArgs<Q, Out> a) {
  __shared__ float part_out[kWarps][kMaxHeadDim];
  __shared__ float part_max[kWarps], part_sum[kWarps];
  BeginOverlapped();
  const int row = blockIdx.x, head = blockIdx.y, kv_head = head / a.group;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int32_t position = a.positions[row];
  if (position < 0) return;
  const int32_t* table =
      a.tables + a.sequences[SequenceOf(a.sequences, a.num_sequences, row)].table_begin;
  float q[kPerLane], out[kPerLane] = {};
  const Q* q_head = a.q + int64_t{row} * a.q_stride + int64_t{head} * a.q_dim;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j)
    q[j] = j * 32 + lane < a.q_dim ? ToFloat(q_head[j * 32 + lane]) * a.scale : 0.0f;
  float max = -INFINITY, sum = 0;
  const int first = a.window > 0 ? ::max(0, position - a.window + 1) : 0;
  for (int p = first + warp; p <= position; p += kWarps) {
    const int32_t slot =
        table[p / a.pool.block_tokens] * a.pool.block_tokens + p % a.pool.block_tokens;
    const Kv* key = SlotOf<Kv>(a.pool, slot, kv_head, false);
    const Kv* value = SlotOf<Kv>(a.pool, slot, kv_head, true);
    float score = 0;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      if (j * 32 + lane < a.q_dim) score += q[j] * ToFloat(key[j * 32 + lane]);
    }
    score = WarpSum(score);
    // Not fmaxf, which would drop a NaN: a corrupt row must show.
    const float new_max = score > max || score != score ? score : max;
    const float keep = max == -INFINITY ? 0.0f : expf(max - new_max);
    const float weight = expf(score - new_max);
    sum = sum * keep + weight;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      if (j * 32 + lane < a.v_dim) out[j] = out[j] * keep + weight * ToFloat(value[j * 32 + lane]);
    }
    max = new_max;
  }
  if (lane == 0) {
    part_max[warp] = max;
    part_sum[warp] = sum;
  }
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) part_out[warp][j * 32 + lane] = out[j];
  __syncthreads();
  for (int i = threadIdx.x; i < a.v_dim; i += blockDim.x) {
    float best = -INFINITY, total = 0, value = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (part_max[w] > best || part_max[w] != part_max[w]) best = part_max[w];
    }
    for (int w = 0; w < kWarps; ++w) {
      if (part_max[w] == -INFINITY) continue;
      const float scale = expf(part_max[w] - best);
      total += part_sum[w] * scale;
      value += part_out[w][i] * scale;
    }
    a.out[int64_t{row} * a.out_stride + int64_t{head} * a.v_dim + i] =
        FromFloat<Out>(value / total);
  }
}

template <typename Q, typename Kv, typename Out>
Status Attend(const AttentionParams& p, cudaStream_t stream) {
  AttentionArgs<Q, Out> a;
  a.q = static_cast<const Q*>(p.q.data);
  a.q_stride = p.q.strides[0];
  a.out = static_cast<Out*>(p.out.data);
  a.out_stride = p.out.strides[0];
  a.q_dim = p.q_head_dim;
  a.v_dim = p.v_head_dim;
  a.group = p.num_heads / p.kv.num_kv_heads;
  a.window = p.window;
  a.num_sequences = p.batch.num_sequences;
  a.scale = p.scale;
  a.sequences = p.batch.sequences;
  a.positions = p.batch.positions;
  a.tables = p.batch.block_tables;
  a.pool = PoolOf(p.kv);
  const dim3 grid(static_cast<unsigned>(p.batch.rows), static_cast<unsigned>(p.num_heads));
  return Check(LaunchOverlapped(PlainAttentionKernel<Q, Kv, Out>, grid, kWarps * 32, 0, stream, a),
               "plain attention");
}

template <typename Q, typename Kv>
Status AttendTo(const AttentionParams& p, cudaStream_t stream) {
  return p.out.dtype == DType::kBF16 ? Attend<Q, Kv, __nv_bfloat16>(p, stream)
                                     : Attend<Q, Kv, float>(p, stream);
}

template <typename Q>
Status AttendOver(const AttentionParams& p, cudaStream_t stream) {
  switch (p.kv.dtype) {
    case DType::kBF16:
      return AttendTo<Q, __nv_bfloat16>(p, stream);
    case DType::kF8E4M3:
      return AttendTo<Q, __nv_fp8_e4m3>(p, stream);
    default:
      return AttendTo<Q, float>(p, stream);
  }
}

unsigned ThreadsFor(int dim) { return static_cast<unsigned>((dim + 31) / 32 * 32); }

template <typename T, typename Kv>
Status RopeAppend(const RopeAppendParams& p, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(p.batch.rows),
                  static_cast<unsigned>(p.num_heads + 2 * p.kv.num_kv_heads));
  const auto norm = [](const TensorView& v) {
    return v.data != nullptr ? v.as<const float>() : nullptr;
  };
  return Check(
      LaunchOverlapped(RopeAppendKernel<T, Kv>, grid, ThreadsFor(p.kv.head_dim), 0, stream,
                       static_cast<T*>(p.qkv.data), p.qkv.strides[0], p.cos_sin.as<const float>(),
                       norm(p.q_norm), norm(p.k_norm), p.norm_epsilon, p.num_heads,
                       p.kv.num_kv_heads, p.batch.positions, p.batch.kv_slots, PoolOf(p.kv)),
      "RoPE and append");
}

template <typename T>
Status RopeAppendTo(const RopeAppendParams& p, cudaStream_t stream) {
  switch (p.kv.dtype) {
    case DType::kBF16:
      return RopeAppend<T, __nv_bfloat16>(p, stream);
    case DType::kF8E4M3:
      return RopeAppend<T, __nv_fp8_e4m3>(p, stream);
    default:
      return RopeAppend<T, float>(p, stream);
  }
}

template <typename Kv>
Status LatentAppend(const LatentAppendParams& p, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(p.batch.rows), static_cast<unsigned>(p.num_heads));
  return Check(LaunchOverlapped(
                   LatentAppendKernel<Kv>, grid, ThreadsFor(std::max(p.pool.head_dim, p.rope_dim)),
                   0, stream, p.q.as<float>(), p.q.strides[0], p.kv.as<const float>(),
                   p.kv.strides[0], p.k_rope.as<const float>(), p.k_rope.strides[0],
                   p.cos_sin.as<const float>(), LatentShape{p.nope_dim, p.rope_dim, p.v_dim},
                   p.batch.positions, p.batch.kv_slots, PoolOf(p.pool)),
               "latent append");
}

}  // namespace

Status LaunchPlainRopeAppend(const RopeAppendParams& p, cudaStream_t stream) {
  AISP_CHECK(p.kv.head_dim <= kMaxHeadDim);
  return p.qkv.dtype == DType::kBF16 ? RopeAppendTo<__nv_bfloat16>(p, stream)
                                     : RopeAppendTo<float>(p, stream);
}

Status LaunchLatentAppend(const LatentAppendParams& p, cudaStream_t stream) {
  AISP_CHECK(p.pool.head_dim <= kMaxHeadDim && p.rope_dim <= kMaxHeadDim);
  switch (p.pool.dtype) {
    case DType::kBF16:
      return LatentAppend<__nv_bfloat16>(p, stream);
    case DType::kF8E4M3:
      return LatentAppend<__nv_fp8_e4m3>(p, stream);
    default:
      return LatentAppend<float>(p, stream);
  }
}

Status LaunchPlainAttention(const AttentionParams& p, cudaStream_t stream) {
  AISP_CHECK(p.kv.head_dim <= kMaxHeadDim);
  return p.q.dtype == DType::kBF16 ? AttendOver<__nv_bfloat16>(p, stream)
                                   : AttendOver<float>(p, stream);
}

}  // namespace aisp::cuda
