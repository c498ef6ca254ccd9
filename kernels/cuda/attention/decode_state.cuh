// Decode attention, per-warp state of rows: the running softmax, loading query rows, writing
// results.
#pragma once

#include "kernels/cuda/attention/kernel_args.cuh"
#include "kernels/cuda/attention/ptx.cuh"

namespace aisp::cuda::decode {

// Running softmax of a warp's rows. Row 8 * j + lane / 4 of row tile i has index 2 * i + j. Maxima
// are in log2 units; every thread of a row holds its own part of the sum until Finish.
template <int kDim, int kRowTiles>
struct State {
  float o[kRowTiles][kDim / 8][4];
  float m[2 * kRowTiles];
  float l[2 * kRowTiles];

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
        for (int k = 0; k < 4; ++k) o[i][n][k] = 0.0f;
      }
    }
#pragma unroll
    for (int r = 0; r < 2 * kRowTiles; ++r) {
      m[r] = -INFINITY;
      l[r] = 0.0f;
    }
  }
  __device__ __forceinline__ void SumRows() {
#pragma unroll
    for (int r = 0; r < 2 * kRowTiles; ++r) {
      l[r] += __shfl_xor_sync(~0u, l[r], 1);
      l[r] += __shfl_xor_sync(~0u, l[r], 2);
    }
  }
  // `to`: one float4 per lane, lanes interleaved by 32.
  __device__ __forceinline__ void Store(float4* to) const {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        to[(i * (kDim / 8) + n) * 32] = make_float4(o[i][n][0], o[i][n][1], o[i][n][2], o[i][n][3]);
      }
      to[(kRowTiles * (kDim / 8) + i) * 32] =
          make_float4(m[2 * i], m[2 * i + 1], l[2 * i], l[2 * i + 1]);
    }
  }
};

// Four elements of a query row for one thread in a 16-wide step, packed for the matrix instruction:
// with FP8 keys four adjacent elements per thread, with bf16 two, and two more eight further on.
template <bool kFp8>
__device__ __forceinline__ uint2 LoadQ4(const void* q, bool is_f32, int64_t offset, int step,
                                        int c) {
  const int low = 16 * step + (kFp8 ? 4 * c : 2 * c);
  const int high = low + (kFp8 ? 2 : 8);
  if (is_f32) {
    const float* row = static_cast<const float*>(q) + offset;
    const float2 x = *reinterpret_cast<const float2*>(row + low);
    const float2 y = *reinterpret_cast<const float2*>(row + high);
    return make_uint2(ptx::Pack2<kFp8>(x.x, x.y), ptx::Pack2<kFp8>(y.x, y.y));
  }
  const __nv_bfloat16* row = static_cast<const __nv_bfloat16*>(q) + offset;
  const uint32_t x = *reinterpret_cast<const uint32_t*>(row + low);
  const uint32_t y = *reinterpret_cast<const uint32_t*>(row + high);
  if constexpr (!kFp8) return make_uint2(x, y);
  return make_uint2(ptx::Pack2<kFp8>(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u)),
                    ptx::Pack2<kFp8>(__uint_as_float(y << 16), __uint_as_float(y & 0xffff0000u)));
}

// Finds token and head of row `index` of a warp (State) in an item; false: there is no such row.
__device__ __forceinline__ bool FindRow(const KernelArgs& a, const RowSpan& span, int32_t item,
                                        int32_t chunk_rows, int32_t first_row, int index, int lane,
                                        int32_t& token, int32_t& head) {
  const int32_t chunk = item / a.num_kv_heads;
  const int32_t row = chunk * chunk_rows + first_row + index * 8 + lane / 4;
  token = row / a.group;
  head = (item % a.num_kv_heads) * a.group + row % a.group;
  return token < span.num_rows;
}

// Writes a pair of columns of row `index`, divided by the row's sum. x and y: the row's two
// elements of each product. With FP8 they are interleaved: the first product has the even elements,
// the second the odd ones.
template <int kDim, bool kFp8>
__device__ __forceinline__ void WriteRow(const KernelArgs& a, const RowSpan& span, int32_t token,
                                         int32_t head, int pair, const float* x, const float* y,
                                         float inverse) {
  const int c = static_cast<int>(threadIdx.x) % 4;
  const int64_t base = (span.row_begin + static_cast<int64_t>(token)) * a.out_row_stride +
                       static_cast<int64_t>(head) * kDim;
  const float v[4] = {x[0] * inverse, (kFp8 ? y[0] : x[1]) * inverse,
                      (kFp8 ? x[1] : y[0]) * inverse, y[1] * inverse};
  const int at0 = 16 * pair + (kFp8 ? 4 * c : 2 * c);
  const int at1 = at0 + (kFp8 ? 2 : 8);
  if (a.out_is_f32) {
    float* out = static_cast<float*>(a.out) + base;
    *reinterpret_cast<float2*>(out + at0) = make_float2(v[0], v[1]);
    *reinterpret_cast<float2*>(out + at1) = make_float2(v[2], v[3]);
  } else {
    __nv_bfloat16* out = static_cast<__nv_bfloat16*>(a.out) + base;
    *reinterpret_cast<uint32_t*>(out + at0) = ptx::Pack2<false>(v[0], v[1]);
    *reinterpret_cast<uint32_t*>(out + at1) = ptx::Pack2<false>(v[2], v[3]);
  }
}

}  // namespace aisp::cuda::decode
