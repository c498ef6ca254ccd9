// Byte layout of a packed NVFP4 weight. Constants, for host and device.
//
// A row group is 64 rows, a chunk 64 of K: 64 * 64 nibbles in the order of the tensor core's
// registers, then their scales; a group's chunks are consecutive. Lane l = 4 g + t of warp w owns
// the 16 bytes at (32 w + l) * 16: one word per 16 of K, which becomes the four registers of a
// fragment: rows 16 w + g and + 8, elements 2 t + {0, 1}, then the same rows, elements 2 t + {8,
// 9}. Scales: the eight bytes at 2048 + (8 w + g) * 8 are those of row 16 w + g (blocks 0, 1), row
// + 8 (0, 1), row (2, 3), row + 8 (2, 3).
//
// Bits of a register's elements within a half word (sign, magnitude 2, 1, 0), the even element in
// the low half: {15, 8, 7, 6}, {12, 5, 4, 3}, {9, 2, 1, 0}: shifts by 0 and 3 and a rotation by 6
// put them at bf16's bits 15 and 8..6. The fourth register uses the remaining bits, coded so that
// one multiplication puts them there after the same rotation, and in the other half, since the
// rotation exchanges the halves for these bits.
#pragma once

#include <cuda_runtime_api.h>  // __host__, __device__

#include <cstdint>

namespace aisp::cuda {

constexpr int kNvfp4GroupRows = 64;
constexpr int kNvfp4DataBytes = 2048;
constexpr int kNvfp4ChunkBytes = kNvfp4DataBytes + 256;
// K is padded to a multiple of this.
constexpr int kNvfp4PadK = 256;
// Scale byte: (exponent + 9) * 8 + 3 bits of mantissa: e4m3's range from its smallest subnormal
// 2^-9 on, without subnormals.
constexpr int kNvfp4ScaleBias = 9;
// Remaining factor of elements converted by the kernels; part of the row's f32 scale.
constexpr float kNvfp4Rescale = 1048576.0f;  // 2^20

constexpr int64_t Nvfp4GroupBytes(int64_t k) {
  return (k + kNvfp4PadK - 1) / kNvfp4PadK * (kNvfp4PadK / 64) * kNvfp4ChunkBytes;
}

// Offset of a row's scale in a chunk: `eight` is 8 * warp + g, `step` the block of 16.
__host__ __device__ constexpr int Nvfp4ScaleAt(int eight, int bottom, int step) {
  return kNvfp4DataBytes + eight * 8 + step / 2 * 4 + bottom * 2 + step % 2;
}

// The bits in a word that represent an element (e2m1) of register `place`, odd or even.
__host__ __device__ constexpr uint32_t Nvfp4Bits(int place, int odd, uint32_t nibble) {
  const uint32_t sign = nibble >> 3 & 1;
  const uint32_t high = nibble >> 2 & 1;
  const uint32_t middle = nibble >> 1 & 1;
  const uint32_t low = nibble & 1;
  if (place < 3) return (sign << 15 | (nibble & 7) << 6) >> 3 * place << 16 * odd;
  // See kNvfp4LeftFactor: bit 7 becomes sign ^ this, and bit 8 gets that sum's carry.
  const uint32_t third = middle ^ sign;
  return ((high ^ (sign & third)) << 14 | sign << 13 | third << 11 | low << 10) << 16 * (1 - odd);
}
// The inverse of Nvfp4Bits.
__host__ __device__ constexpr uint32_t Nvfp4Nibble(int place, int odd, uint32_t word) {
  if (place < 3) {
    const uint32_t half = word >> 16 * odd << 3 * place;
    return (half >> 15 & 1) << 3 | (half >> 6 & 7);
  }
  const uint32_t half = word >> 16 * (1 - odd);
  const uint32_t sign = half >> 13 & 1;
  const uint32_t third = half >> 11 & 1;
  return sign << 3 | ((half >> 14 & 1) ^ (sign & third)) << 2 | (third ^ sign) << 1 |
         (half >> 10 & 1);
}
// The fourth register's bits in the rotated word, and the factor for them.
constexpr uint32_t kNvfp4LeftMask = 0x001b001b;
constexpr uint32_t kNvfp4LeftFactor = 0x1050;

}  // namespace aisp::cuda
