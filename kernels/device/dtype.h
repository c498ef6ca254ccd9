// Element types of tensors. Pure values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace aisp {

enum class DType : uint8_t { kF32, kBF16, kF16, kF8E4M3, kU8, kI32, kI64 };

constexpr size_t DTypeBytes(DType t) {
  switch (t) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kF8E4M3:
    case DType::kU8:
      return 1;
    case DType::kI64:
      return 8;
  }
  return 0;
}

// "f32", "bf16", "f16", "fp8_e4m3", "u8", "i32", "i64".
std::string_view DTypeName(DType t);
std::optional<DType> ParseDType(std::string_view name);

}  // namespace aisp
