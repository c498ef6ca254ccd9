// The number formats that the backend computes in; the same for a device and for a plan without
// one.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace aisp::cuda {

// bf16 suits tensor cores and memory. A small f32 checkpoint stays f32: that costs little, and its
// tokens then equal the CPU's.
inline DType PreferredDType(DType checkpoint, int64_t elements) {
  constexpr int64_t kLargeElements = int64_t{64} << 20;
  return checkpoint != DType::kF32 || elements > kLargeElements ? DType::kBF16 : DType::kF32;
}
// Whether a linear layer's kernel includes the epilogue.
inline bool FusesEpilogue(Epilogue epilogue, DType compute) {
  return epilogue != Epilogue::kGatedSilu || compute == DType::kBF16;
}
// Whether weights of the format can multiply activations of that dtype.
inline bool SupportsFormat(aisp::WeightFormat format, DType compute) {
  return format == aisp::WeightFormat::kCompute || compute == DType::kBF16;
}

}  // namespace aisp::cuda
