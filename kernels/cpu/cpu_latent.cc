#include <algorithm>

#include "common/check.h"
#include "kernels/cpu/cpu_ops_impl.h"

namespace aisp {
namespace {

constexpr int32_t kMaxRope = 256;

// Element 2i pairs with 2i + 1. The result is written de-interleaved; dot products do not change if
// q and k agree.
void RotatePairs(const float* x, const float* cosine, const float* sine, int32_t half, float* out) {
  for (int32_t i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    out[i] = a * cosine[i] - b * sine[i];
    out[half + i] = b * cosine[i] + a * sine[i];
  }
}

}  // namespace

Status CpuOps::LatentAppend(const LatentAppendParams& p, Stream&) {
  const int32_t q_dim = p.nope_dim + p.rope_dim;
  const int32_t half = p.rope_dim / 2;
  AISP_CHECK(p.rope_dim <= kMaxRope && q_dim <= p.pool.head_dim && p.v_dim <= p.pool.head_dim &&
             p.pool.head_dim <= kMaxHeadDim);
  AISP_CHECK(p.pool.num_kv_heads == p.num_heads);
  ForRows(p.batch.rows, [&](int64_t row) {
    const int32_t position = p.batch.positions[row];
    AISP_CHECK(position >= 0 && position < p.cos_sin.rows());
    const float* cosine = p.cos_sin.as<float>() + static_cast<int64_t>(position) * p.rope_dim;
    const float* sine = cosine + half;
    float rope[kMaxRope];
    float key[kMaxHeadDim] = {};
    float value[kMaxHeadDim] = {};
    RotatePairs(p.k_rope.as<float>() + row * p.k_rope.strides[0], cosine, sine, half,
                key + p.nope_dim);
    for (int32_t h = 0; h < p.num_heads; ++h) {
      float* q =
          p.q.as<float>() + row * p.q.strides[0] + static_cast<int64_t>(h) * q_dim + p.nope_dim;
      RotatePairs(q, cosine, sine, half, rope);
      std::copy(rope, rope + p.rope_dim, q);
      const float* kv = p.kv.as<float>() + row * p.kv.strides[0] +
                        static_cast<int64_t>(h) * (p.nope_dim + p.v_dim);
      std::copy(kv, kv + p.nope_dim, key);
      std::copy(kv + p.nope_dim, kv + p.nope_dim + p.v_dim, value);
      StoreKv(kernels_, p.pool, p.batch.kv_slots[row], h, false, key, p.pool.head_dim);
      StoreKv(kernels_, p.pool, p.batch.kv_slots[row], h, true, value, p.pool.head_dim);
    }
  });
  return {};
}

}  // namespace aisp
