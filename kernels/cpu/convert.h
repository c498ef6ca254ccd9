// Conversion of elements between number formats, for loading. Pure functions.
#pragma once

#include <cstdint>

#include "kernels/device/tensor_view.h"

namespace aisp {

// Converts elements [begin, begin + count) of a dense f32, bf16 or f16 tensor to f32, or to bf16
// rounded to nearest, ties to even.
void ConvertElements(const TensorView& from, int64_t begin, int64_t count, DType to, void* out);

float HalfToFloat(uint16_t half);

}  // namespace aisp
