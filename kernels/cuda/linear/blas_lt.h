// Products of many rows, by cuBLASLt: y = x W^T (+ y), with the algorithm that was fastest when it
// was tuned.
//
// blas_lt.cc is the only file that knows the library. Threads: one caller at a time.
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
  bool fp8 = false;  // both operands e4m3 with scales [n] and [rows]; else both bf16
  bool f32 = false;  // y is f32, else bf16
  bool add = false;  // y += ..
  const float* weight_scales = nullptr;
  const float* x_scales = nullptr;
};

class BlasLt {
 public:
  // `cache` may be empty or not exist yet.
  static Result<std::unique_ptr<BlasLt>> Create(const std::string& cache);
  virtual ~BlasLt() = default;

  // Takes what was tuned for a number of rows near these, or the heuristics' first choice.
  virtual Status Run(const LtProduct& product, void* workspace, size_t workspace_bytes,
                     cudaStream_t stream) = 0;
  // Finds what Run would take. NOT_FOUND: the library has no algorithm for the product.
  virtual Status LookUp(const LtProduct& product, size_t workspace_bytes) = 0;
  // Times the heuristics' candidates unless the cache knows the winner; y is overwritten.
  // Synchronises.
  virtual Status Tune(const LtProduct& product, void* workspace, size_t workspace_bytes,
                      cudaStream_t stream) = 0;
  // Whether the choice for such a product was measured, now or in an earlier run.
  virtual bool Tuned(const LtProduct& product) const = 0;
  // What Run would take: "tuned: 3 of 12, 61.3 us", "heuristic".
  virtual std::string Describe(const LtProduct& product) const = 0;
};

}  // namespace aisp::cuda
