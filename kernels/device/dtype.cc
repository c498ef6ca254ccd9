#include "kernels/device/dtype.h"

namespace aisp {
namespace {

struct NamedDType {
  DType dtype;
  std::string_view name;
};
constexpr NamedDType kNames[] = {
    {DType::kF32, "f32"},         {DType::kBF16, "bf16"}, {DType::kF16, "f16"},
    {DType::kF8E4M3, "fp8_e4m3"}, {DType::kU8, "u8"},     {DType::kI32, "i32"},
    {DType::kI64, "i64"},
};

}  // namespace

std::string_view DTypeName(DType t) {
  for (const NamedDType& n : kNames) {
    if (n.dtype == t) return n.name;
  }
  return "unknown";
}

std::optional<DType> ParseDType(std::string_view name) {
  for (const NamedDType& n : kNames) {
    if (n.name == name) return n.dtype;
  }
  return std::nullopt;
}

}  // namespace aisp
