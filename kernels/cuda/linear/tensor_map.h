// Tensor maps: descriptions of matrices for the copy engine (TMA).
//
// TensorMaps holds the driver's encoder, looked up once; a plain value, any thread.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/result.h"

namespace aisp::cuda {

class TensorMaps {
 public:
  static Result<TensorMaps> Find();
  // A box of a row-major matrix, with rows of 128 bytes, swizzled in shared memory. Out-of-range
  // elements are zero.
  Result<CUtensorMap> Box(const void* data, size_t element_bytes, int64_t columns, int64_t rows,
                          int box_columns, int box_rows) const;

  struct Dimension {
    int64_t size = 0;
    int64_t stride = 0;  // in bytes; for the first dimension the element size
    int box = 0;
  };
  // A box of up to five dimensions, innermost first, with elements of 1, 2 or 4 bytes.
  Result<CUtensorMap> Box(const void* data, std::span<const Dimension> dimensions,
                          CUtensorMapSwizzle swizzle) const;

 private:
  PFN_cuTensorMapEncodeTiled_v12000 encode_ = nullptr;
};

}  // namespace aisp::cuda
