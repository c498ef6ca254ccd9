// Products with many rows by cuBLASLt: y = x W^T (+ y), with the algorithm that was measured as
// fastest.
//
// Only blas_lt.cc uses the library. Threads: one caller at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "common/result.h"

namespace aisp::cuda {

struct LtProduct {
  const void* weight = nullptr;  // [n, k]
  const void* x = nullptr;       // [rows, k]
  void* y = nullptr;             // [rows, n], y_stride elements between rows
  int64_t n = 0;
  int64_t k = 0;
  int64_t y_stride = 0;
  int32_t rows = 0;
  bool fp8 = false;  // both operands e4m3 with scales [n] and [rows]; false: both bf16
  bool f32 = false;  // y is f32, else bf16
  bool add = false;  // y += ..
  const float* weight_scales = nullptr;
  const float* x_scales = nullptr;
};

class BlasLt {
 public:
  // `cache` may be "" or a file that does not exist yet.
  static Result<std::unique_ptr<BlasLt>> Create(const std::string& cache);
  virtual ~BlasLt() = default;

  // Uses the algorithm tuned for a similar number of rows, or the heuristics' first choice.
  virtual Status Run(const LtProduct& product, void* workspace, size_t workspace_bytes,
                     cudaStream_t stream) = 0;
  // Checks what Run would use. NOT_FOUND: the library has no algorithm for the product.
  virtual Status LookUp(const LtProduct& product, size_t workspace_bytes) = 0;
  // Measures the heuristics' candidates unless the cache has the winner; overwrites y.
  // Synchronises.
  virtual Status Tune(const LtProduct& product, void* workspace, size_t workspace_bytes,
                      cudaStream_t stream) = 0;
  // Whether such a product was tuned, now or in an earlier run.
  virtual bool Tuned(const LtProduct& product) const = 0;
  // What Run would use: "tuned: 3 of 12, 61.3 us", "heuristic".
  virtual std::string Describe(const LtProduct& product) const = 0;
};

}  // namespace aisp::cuda
