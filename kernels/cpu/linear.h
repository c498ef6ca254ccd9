// Matrix products of the CPU backend. Weights are packed once, in the panels of linear_kernels.h.
//
// A row's result is the same bits whatever is multiplied beside it, and whatever the number of
// threads: each output is one sum in one order. See docs/decisions/003-cpu-matmul.md.
// Threads: Pack at load; Run by one caller at a time.
#pragma once

#include <memory>
#include <string>

#include "kernels/cpu/linear_kernels.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace aisp {

class LinearEngine {
 public:
  // The pool is used by Run and outlives the engine; so do the kernels.
  explicit LinearEngine(ThreadPool* pool, const PanelKernels& kernels = BestPanelKernels())
      : pool_(pool), kernels_(kernels) {}
  LinearEngine(const LinearEngine&) = delete;
  LinearEngine& operator=(const LinearEngine&) = delete;

  std::string Describe() const;
  // Whether bf16 products run on this CPU.
  bool SupportsBf16() const { return kernels_.bf16 != nullptr; }
  Result<std::unique_ptr<PackedLinear>> Pack(const LinearSource& source);
  // x and y are dense, with `rows` rows.
  void Run(const PackedLinear& weight, const void* x, float* y, int64_t rows);

 private:
  Status CheckSource(const LinearSource& source) const;

  ThreadPool* const pool_;
  const PanelKernels& kernels_;
};

}  // namespace aisp
