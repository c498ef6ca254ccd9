#include "kernels/cpu/convert.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/check.h"
#include "kernels/cpu/row_kernels.h"

namespace aisp {

float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u)
    return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude < 0x400u) {
    const float subnormal = static_cast<float>(magnitude) * 0x1.0p-24f;
    return sign != 0 ? -subnormal : subnormal;
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
}

void ConvertElements(const TensorView& from, int64_t begin, int64_t count, DType to, void* out) {
  const auto* source = static_cast<const std::byte*>(from.data) +
                       static_cast<size_t>(begin) * DTypeBytes(from.dtype);
  if (from.dtype == to) {
    std::memcpy(out, source, static_cast<size_t>(count) * DTypeBytes(to));
    return;
  }
  AISP_CHECK(to == DType::kF32 || to == DType::kBF16);
  const RowKernels& kernels = BestRowKernels();
  // Copies, because checkpoints may be mapped at unaligned addresses.
  constexpr int64_t kChunk = 1024;
  float values[kChunk];
  uint16_t halves[kChunk];
  for (int64_t done = 0; done < count; done += kChunk) {
    const int64_t n = std::min(kChunk, count - done);
    const std::byte* chunk = source + static_cast<size_t>(done) * DTypeBytes(from.dtype);
    switch (from.dtype) {
      case DType::kF32:
        std::memcpy(values, chunk, static_cast<size_t>(n) * sizeof(float));
        break;
      case DType::kBF16:
        std::memcpy(halves, chunk, static_cast<size_t>(n) * sizeof(uint16_t));
        kernels.from_bf16(halves, values, n);
        break;
      case DType::kF16:
        std::memcpy(halves, chunk, static_cast<size_t>(n) * sizeof(uint16_t));
        for (int64_t i = 0; i < n; ++i) values[i] = HalfToFloat(halves[i]);
        break;
      default:
        AISP_CHECK_MSG(false, "elements of this dtype cannot be converted");
    }
    if (to == DType::kF32) {
      std::memcpy(static_cast<float*>(out) + done, values, static_cast<size_t>(n) * sizeof(float));
    } else {
      kernels.to_bf16(values, static_cast<uint16_t*>(out) + done, n);
    }
  }
}

}  // namespace aisp
