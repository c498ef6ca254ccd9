// Matrix products of the CPU backend. Weights are packed once, in the panels of linear_kernels.h.
//
// A row's result is bit-identical for any batch and number of threads: each output is one sum in a
// fixed order. See docs/decisions/003-cpu-matmul.md. Threads: Pack at load; Run by one caller at a
// time.
#pragma once

#include <memory>
#include <string>

#include "kernels/cpu/linear_kernels.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace aisp {

class LinearEngine {
 public:
  // Run uses the pool; pool and kernels outlive the engine.
  explicit LinearEngine(ThreadPool* pool, const PanelKernels& kernels = BestPanelKernels())
      : pool_(pool), kernels_(kernels) {}
  LinearEngine(const LinearEngine&) = delete;
  LinearEngine& operator=(const LinearEngine&) = delete;

  std::string Describe() const;
  // Whether this CPU has bf16 products.
  bool SupportsBf16() const { return kernels_.bf16 != nullptr; }
  Result<std::unique_ptr<PackedLinear>> Pack(const LinearSource& source);
  // x [rows, inputs] in the weight's compute dtype, y [rows, outputs] in f32, both dense. A weight
  // that accumulates adds to y.
  void Run(const PackedLinear& weight, const void* x, float* y, int64_t rows);

 private:
  Status CheckSource(const LinearSource& source) const;

  ThreadPool* const pool_;
  const PanelKernels& kernels_;
};

}  // namespace aisp
