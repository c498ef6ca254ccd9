// Number formats on the device: quantises rows of activations, and fills memory with seeded random
// weights.
//
// Everything is enqueued on the stream and allocates nothing. Pointers are the caller's device
// memory. Any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/result.h"

namespace aisp::cuda {

// y[r, :] = e4m3(x[r, :] / scale[r]), scale[r] = max |x[r, :]| / 448 (1 for a row of zeros).
// Elements are permuted within each 16 like packed FP8 weights, so y is only for calls with
// InputFormat::kFp8. x: bf16 [rows, k], k a multiple of 16 up to 65,536.
Status QuantizeRows(const void* x, void* y, float* scales, int32_t rows, int64_t k,
                    cudaStream_t stream);

// Position of element i (0..15) of a group of 16 in packed FP8 rows: tensor-core fragments are then
// four adjacent bytes, in the order that converts to bf16 with the fewest instructions.
__host__ __device__ constexpr int Fp8Position(int i) {
  return 4 * (i % 8 / 2) + (i < 8 ? 1 : 0) + 2 * (i % 2);
}

// Seeded normal values with the given standard deviation, which depend only on (seed, index), not
// on the format they are packed to later: out[i] is bf16.
Status FillNormalBf16(void* out, int64_t count, float deviation, uint64_t seed,
                      cudaStream_t stream);

}  // namespace aisp::cuda
