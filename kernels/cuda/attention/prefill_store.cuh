// Prefill attention: storing a consumer's results. Row r of a query tile belongs to warp r / 16 of
// the consumers; `inverse`: factors for a thread's two rows.
#pragma once

#include "kernels/cuda/attention/prefill_core.cuh"

namespace aisp::cuda::prefill {

// Directly from the registers. `thread`: among the consumers.
template <class T>
__device__ __forceinline__ void StoreWide(const KernelArgs& a, const Work& w, int32_t thread,
                                          const float (&o)[T::kParts][T::kOut],
                                          const float (&inverse)[2]) {
  const int32_t tokens = kPrefillRows / a.group;
  const uint32_t divisor = DivisorOf(a.group);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int32_t row = thread / 32 * 16 + j * 8 + thread % 32 / 4;
    const int32_t local = Divide(row, divisor);
    const int32_t token = w.token_begin + local;
    if (local >= tokens || token >= w.span.num_rows) continue;
    const int64_t base =
        (w.span.row_begin + static_cast<int64_t>(token)) * a.out_row_stride +
        static_cast<int64_t>(w.kv_head * a.group + row - local * a.group) * T::kDim +
        2 * (thread % 4);
#pragma unroll
    for (int n = 0; n < T::kDim / 8; ++n) {
      const int part = n / (T::kOut / 4);
      const int at = n % (T::kOut / 4) * 4 + 2 * j;
      const float x = o[part][at] * inverse[j];
      const float y = o[part][at + 1] * inverse[j];
      if (a.out_is_f32) {
        *reinterpret_cast<float2*>(static_cast<float*>(a.out) + base + 8 * n) = make_float2(x, y);
      } else {
        *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(a.out) + base + 8 * n) =
            ptx::Pack2<false>(x, y);
      }
    }
  }
}

// As bf16 through the warp's rows of a query buffer, so that rows are stored in pieces of 16 bytes.
template <class T>
__device__ __forceinline__ void StoreStaged(const KernelArgs& a, const Work& w, int32_t thread,
                                            const float (&o)[T::kParts][T::kOut],
                                            const float (&inverse)[2], uint32_t buffer) {
  constexpr int kChunks = T::kDim / 8;  // per row, 16 bytes each
  constexpr int kRows = 32 / kChunks;   // stored by a warp at a time
  constexpr int kPasses = 16 / kRows;
  const int32_t lane = thread % 32;
  const int32_t first_row = thread / 32 * 16;
  const uint32_t divisor = DivisorOf(a.group);
  const int32_t tokens = min(Divide(kPrefillRows, divisor), w.span.num_rows - w.token_begin);
  const auto stride = static_cast<int32_t>(a.out_row_stride);
  __nv_bfloat16* out = static_cast<__nv_bfloat16*>(a.out) +
                       (w.span.row_begin + static_cast<int64_t>(w.token_begin)) * a.out_row_stride +
                       static_cast<int64_t>(w.kv_head) * a.group * T::kDim;
  const auto place = [&](int32_t row, int32_t chunk) {
    return buffer + chunk / 8 * T::kQColumnBytes + row * 128 + (((chunk % 8) ^ (row & 7)) << 4);
  };
#pragma unroll
  for (int n = 0; n < kChunks; n += 2) {
    uint32_t r[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int part = (n + i / 2) / (T::kOut / 4);
      const int from = (n + i / 2) % (T::kOut / 4) * 4 + 2 * (i % 2);
      r[i] = ptx::Pack2<false>(o[part][from] * inverse[i % 2], o[part][from + 1] * inverse[i % 2]);
    }
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     place(first_row + lane % 16, n + lane / 16)),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
  }
  __syncwarp();
  const int32_t chunk = lane % kChunks;
  const int32_t row0 = first_row + lane / kChunks;
  uint4 words[kPasses];  // all loaded before the first store, to hide latency
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[i].x), "=r"(words[i].y), "=r"(words[i].z), "=r"(words[i].w)
                 : "r"(place(row0 + i * kRows, chunk))
                 : "memory");
  }
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const int32_t row = row0 + i * kRows;
    const int32_t local = Divide(row, divisor);
    if (local >= tokens) continue;
    // Offsets within a tile's rows are below 2^31 elements.
    *reinterpret_cast<uint4*>(out + local * stride + (row - local * a.group) * T::kDim +
                              chunk * 8) = words[i];
  }
}

}  // namespace aisp::cuda::prefill
