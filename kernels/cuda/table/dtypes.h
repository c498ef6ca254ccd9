// Which number formats the backend computes in: the same for a device and for a plan without one.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace aisp::cuda {

// bf16 is what the tensor cores and the memory want. A small f32 checkpoint stays f32: it costs
// nothing there, and its tokens are those of the CPU.
inline DType PreferredDType(DType checkpoint, int64_t elements) {
  constexpr int64_t kLargeElements = int64_t{64} << 20;
  return checkpoint != DType::kF32 || elements > kLargeElements ? DType::kBF16 : DType::kF32;
}
// Whether a linear layer has the epilogue in its own kernel.
inline bool FusesEpilogue(Epilogue epilogue, DType compute) {
  return epilogue != Epilogue::kGatedSilu || compute == DType::kBF16;
}
// Whether weights of the format multiply activations of that dtype.
inline bool SupportsFormat(aisp::WeightFormat format, DType compute) {
  return format == aisp::WeightFormat::kCompute || compute == DType::kBF16;
}

}  // namespace aisp::cuda
