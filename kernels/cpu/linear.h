// Matrix products of the CPU backend, through oneDNN (linear_dnnl.cc is the only file that knows
// it).
//
// A row's result must not depend on how many rows are multiplied at once. oneDNN does not promise
// that, so it is checked when a weight is packed: for its shape, every tile height is compared
// bitwise with single rows. Where they differ (AVX2), all products run in tiles of one height. See
// docs/decisions/003-cpu-matmul.md. Threads: Pack at load; Run by one caller at a time.
#pragma once

#include <memory>
#include <string>

#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace aisp {

class LinearEngine {
 public:
  // The pool is used by Run and outlives the engine.
  static Result<std::unique_ptr<LinearEngine>> Create(ThreadPool* pool);
  virtual ~LinearEngine() = default;

  virtual std::string Describe() const = 0;
  // Whether bf16 products run on this CPU.
  virtual bool SupportsBf16() const = 0;
  virtual Result<std::unique_ptr<PackedLinear>> Pack(const LinearSource& source) = 0;
  // y has `rows` rows of memory up to LinearRowCapacity(rows); x too.
  virtual Status Run(const PackedLinear& weight, const void* x, float* y, int64_t rows) = 0;
};

// Rows of memory for up to `rows` rows: enough for every tiling.
constexpr int64_t LinearRowCapacity(int64_t rows) {
  const int64_t tile = rows <= 64 ? 16 : 64;
  return (rows + tile - 1) / tile * tile;
}

}  // namespace aisp
