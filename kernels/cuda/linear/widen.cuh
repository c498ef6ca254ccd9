// Widening FP8 and NVFP4 weights to bf16 in registers, in the fewest integer instructions.
//
// Both formats become bf16 by moving their bits to bf16's places, which divides the value by a power of two (the exponent
// biases differ); one multiplication per two elements puts that right, and for NVFP4 applies the block scale in the same
// instruction. Every step is exact: e4m3 fits bf16, and e2m1 (2 significant bits) times e4m3 (4) needs 6 of bf16's 8.
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

// Byte `i` of a word of scales as a pair of equal bf16, times 2^106: one byte selection and one multiply-add.
__device__ __forceinline__ uint32_t WidenNvfp4Scale(uint32_t word, int i) {
  return __byte_perm(word, 0, 0x4440 + i) * 0x00100010u + 0x70007000u;
}

// Two of a word's scales as a pair of bf16, times 2^106: bytes 0 and 2, or with `odd` 1 and 3.
__device__ __forceinline__ uint32_t WidenNvfp4Scales(uint32_t word, bool odd) {
  return (odd ? __byte_perm(word, 0, 0x4341) : word & 0x00ff00ffu) * 16u + 0x70007000u;
}

// a times one half of b: the instruction takes the half by itself.
__device__ __forceinline__ uint32_t MulBf16x2ByHalf(uint32_t a, uint32_t b, bool high) {
  const auto pair = reinterpret_cast<const __nv_bfloat162&>(b);
  const __nv_bfloat162 d = __hmul2(reinterpret_cast<const __nv_bfloat162&>(a),
                                   high ? __high2bfloat162(pair) : __low2bfloat162(pair));
  return reinterpret_cast<const uint32_t&>(d);
}

// One word of nibbles without scales: the four registers of an A fragment.
__device__ __forceinline__ void PlaceNvfp4(uint32_t word, uint32_t (&a)[4]) {
  constexpr uint32_t kMask = 0x81c081c0;
  a[0] = word & kMask;
  a[1] = (word << 3) & kMask;
  a[2] = (word << 6) & kMask;
  a[3] = ((word << 1) & 0x80008000) | ((word >> 3) & 0x01800180) | ((word >> 7) & 0x00400040);
}

// One word: the four registers of an A fragment. top: scale of row g in both halves; bottom: of row g + 8.
__device__ __forceinline__ void WidenNvfp4(uint32_t word, uint32_t top, uint32_t bottom,
                                           uint32_t (&a)[4]) {
  PlaceNvfp4(word, a);
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = MulBf16x2(a[i], i % 2 == 0 ? top : bottom);
}

// The same with the scales in one half of `top` and of `bottom`.
__device__ __forceinline__ void WidenNvfp4ByHalf(uint32_t word, uint32_t top, uint32_t bottom,
                                                 bool high, uint32_t (&a)[4]) {
  PlaceNvfp4(word, a);
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = MulBf16x2ByHalf(a[i], i % 2 == 0 ? top : bottom, high);
}

}  // namespace aisp::cuda
