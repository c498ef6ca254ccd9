// Where the bytes of a packed NVFP4 weight lie. Constants, for host and device.
//
// A row group is 64 rows, a chunk 64 of K: 64 * 64 nibbles in the order of the tensor core's registers, then their scales; a
// group's chunks lie one after the other. Lane l = 4 g + t of warp w owns the 16 bytes at (32 w + l) * 16: one word per 16 of
// K, whose low half holds the even and whose high half the odd elements of its four registers: rows 16 w + g and + 8, elements
// 2 t + {0, 1}, then the same rows, elements 2 t + {8, 9}. Scales: those of rows 16 w + g and + 8 are the eight bytes at
// 2048 + (8 w + g) * 8.
//
// Bits of the four registers' elements within a half word (sign, magnitude 2, 1, 0): {15, 8, 7, 6}, {12, 5, 4, 3}, {9, 2, 1, 0},
// {14, 11, 10, 13}. A shift by 0, 3, 6 puts the first three at bf16's bits 15 and 8..6; the fourth takes what is left.
#pragma once

#include <cstdint>

namespace aisp::cuda {

constexpr int kNvfp4GroupRows = 64;
constexpr int kNvfp4DataBytes = 2048;
constexpr int kNvfp4ChunkBytes = kNvfp4DataBytes + 256;
// K is padded to a multiple of this.
constexpr int kNvfp4PadK = 256;
// Scale byte: (exponent + 9) * 8 + 3 bits of mantissa: e4m3's range from its smallest subnormal 2^-9 on, without subnormals.
constexpr int kNvfp4ScaleBias = 9;
// What an element that the kernels widened must still be multiplied by; part of the row's f32 scale.
constexpr float kNvfp4Rescale = 1048576.0f;  // 2^20

constexpr int64_t Nvfp4GroupBytes(int64_t k) {
  return (k + kNvfp4PadK - 1) / kNvfp4PadK * (kNvfp4PadK / 64) * kNvfp4ChunkBytes;
}

}  // namespace aisp::cuda
