// Converts FP8 and NVFP4 weights to 16 bits in registers with the fewest instructions.
//
// Both formats become bf16 by moving their bits to bf16's positions, which divides the value by a
// power of two (the exponent biases differ). One multiplication per two elements corrects that and,
// for NVFP4, also applies the block scale. Every step is exact: e4m3 fits in bf16, and e2m1 (2
// significant bits) times e4m3 (4) needs 6 of bf16's 8. To f16 the hardware converts two e4m3 at a
// time, also exactly.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear/nvfp4_layout.h"

namespace aisp::cuda {

__device__ __forceinline__ uint32_t MulBf16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// Bytes 1 and 3 of `high`, 0 and 2 of `low`, as pairs of bf16.
__device__ __forceinline__ void WidenFp8(uint32_t word, uint32_t& high, uint32_t& low) {
  constexpr uint32_t kSign = 0x80008000;
  constexpr uint32_t kMagnitude = 0x07f007f0;
  constexpr uint32_t kTwoTo120 = 0x7b807b80;
  high = MulBf16x2((word & kSign) | ((word >> 4) & kMagnitude), kTwoTo120);
  low = MulBf16x2(((word << 8) & kSign) | ((word << 4) & kMagnitude), kTwoTo120);
}

// Bytes 0 and 1 of `low`, 2 and 3 of `high`, as pairs of f16.
__device__ __forceinline__ void WidenFp8ToF16(uint32_t word, uint32_t& low, uint32_t& high) {
  asm("{.reg .b16 l, h;\n"
      "mov.b32 {l, h}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, l;\n"
      "cvt.rn.f16x2.e4m3x2 %1, h;}"
      : "=r"(low), "=r"(high)
      : "r"(word));
}

// (v << shift) + more as a multiplication, which runs beside the masks and shifts that limit
// conversion. The compiler would turn a constant factor back into a shift, so it involves the
// grid's second dimension, always 1.
__device__ __forceinline__ uint32_t ShiftByMultiplying(uint32_t v, int shift, uint32_t more) {
  uint32_t one;
  asm("mov.u32 %0, %nctaid.y;" : "=r"(one));
  uint32_t d;
  asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(v), "r"(one << shift), "r"(more));
  return d;
}

// Two of a word's scales as a pair of bf16, times 2^106: bytes 0 and 2, with `odd` 1 and 3.
__device__ __forceinline__ uint32_t WidenNvfp4Scales(uint32_t word, bool odd) {
  return ShiftByMultiplying(odd ? __byte_perm(word, 0, 0x4341) : word & 0x00ff00ffu, 4,
                            0x70007000u);
}

// a times one half of b: the instruction selects the half.
__device__ __forceinline__ uint32_t MulBf16x2ByHalf(uint32_t a, uint32_t b, bool high) {
  const auto pair = reinterpret_cast<const __nv_bfloat162&>(b);
  const __nv_bfloat162 d = __hmul2(reinterpret_cast<const __nv_bfloat162&>(a),
                                   high ? __high2bfloat162(pair) : __low2bfloat162(pair));
  return reinterpret_cast<const uint32_t&>(d);
}

// Converts one word of nibbles, without scales, to the four registers of an A fragment, times
// 2^-126.
__device__ __forceinline__ void PlaceNvfp4(uint32_t word, uint32_t (&a)[4]) {
  constexpr uint32_t kMask = 0x81c081c0;
  const uint32_t turned = __funnelshift_l(word, word, 6);
  a[0] = word & kMask;
  a[1] = (word << 3) & kMask;
  a[2] = turned & kMask;
  a[3] = (turned & kNvfp4LeftMask) * kNvfp4LeftFactor & kMask;
}

// A lane's part of 16 rows x 64 of K: the A fragments of four steps of 16.
__device__ __forceinline__ void WidenNvfp4(uint4 words, uint2 scales, uint32_t (&a)[4][4]) {
  const uint32_t word[4] = {words.x, words.y, words.z, words.w};
  // Rows g and g + 8 in the two halves, one block each.
  const uint32_t scale[4] = {WidenNvfp4Scales(scales.x, false), WidenNvfp4Scales(scales.x, true),
                             WidenNvfp4Scales(scales.y, false), WidenNvfp4Scales(scales.y, true)};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    PlaceNvfp4(word[k], a[k]);
#pragma unroll
    for (int i = 0; i < 4; ++i) a[k][i] = MulBf16x2ByHalf(a[k][i], scale[k], i % 2 == 1);
  }
}

}  // namespace aisp::cuda
