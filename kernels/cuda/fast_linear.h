// Weights and calls of linear/ behind the Ops interface: bf16, FP8 and NVFP4 weights with bf16 inputs.
#pragma once

#include <memory>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/ops.h"

namespace aisp::cuda {

class FastWeight final : public PackedLinear {
 public:
  int64_t in_features() const override { return weight.k; }
  int64_t out_features() const override { return weight.out_features(); }
  DType input_dtype() const override { return DType::kBF16; }
  DType output_dtype() const override {
    return store == Store::kF32 || store == Store::kAccumulateF32 ? DType::kF32 : DType::kBF16;
  }
  size_t bytes() const override { return weight.streamed_bytes(); }

  Buffer memory;
  PackedWeight weight;
  Store store = Store::kBf16;
};

class FastLinear {
 public:
  static Result<std::unique_ptr<FastLinear>> Create(const LinearOptions& options, Device& device,
                                                    CudaStream& load_stream);

  // What a call of `rows` rows computes: more rows are rounded up, so that few sizes need a choice of algorithm.
  static constexpr int64_t PaddedRows(int64_t rows) {
    const int64_t step = rows <= 64 ? 1 : rows <= 256 ? 32 : 128;
    return (rows + step - 1) / step * step;
  }

  // Whether linear/ has kernels for such a weight; everything else about `source` was checked.
  static bool Serves(const LinearSource& source);
  // Host memory has been read when this returns; the weight is in place at the first Run after it.
  Result<std::unique_ptr<FastWeight>> Pack(const LinearSource& source);
  // Waits for the weights and lets go what only loading needs. Before the first step, which is never captured.
  Status FinishPacking();
  bool pending() const { return pending_; }
  Status Run(const FastWeight& weight, const LinearParams& params, cudaStream_t stream);
  // As many of the first steps as one launch takes, at least two; their number, 0 where they have to be launched one by one. A norm
  // in front of the first is left to the caller.
  Result<size_t> RunChain(std::span<const LinearStep> steps, cudaStream_t stream);
  LinearKernels& kernels() { return *kernels_; }
  // What serves a call of `rows` rows.
  std::string Describe(const FastWeight& weight, int32_t rows) const;

 private:
  FastLinear(Device& device, CudaStream& stream, int32_t max_rows)
      : device_(device), stream_(stream), max_rows_(max_rows) {}
  Status GrowWorkspace(size_t bytes);
  Status PlacePart(const LinearSource& source, size_t i, std::byte* landing, size_t* used,
                   std::vector<Buffer>* random, WeightPart* part);
  Result<std::byte*> Landing(const LinearSource& source, Buffer* own);
  Status Tune(const FastWeight& weight);

  Device& device_;
  CudaStream& stream_;
  const int32_t max_rows_;
  std::set<std::tuple<int64_t, int64_t, Store, WeightFormat>> tuned_;  // shapes
  std::unique_ptr<LinearKernels> kernels_;
  Buffer workspace_;
  Buffer landing_;  // while weights are loaded
  bool pending_ = false;
};

}  // namespace aisp::cuda
