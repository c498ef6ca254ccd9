// Weights and calls of linear/ behind the Ops interface: bf16, FP8 and NVFP4 weights with bf16
// inputs.
#pragma once

#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/linear/linear_kernels.h"
#include "kernels/ops.h"

namespace aisp::cuda {

class FastWeight final : public PackedLinear {
 public:
  LinearTraits traits() const override {
    LinearCall call;
    call.weight = &weight;
    call.store = store;
    return TraitsOf(call);
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

  // Whether linear/ has kernels for such a weight; the rest of `source` was checked before.
  static bool Serves(const LinearSource& source);
  // Host memory has been read on return; the weight is valid in the first Run after it.
  Result<std::unique_ptr<FastWeight>> Pack(const LinearSource& source);
  // Waits for the weights and frees memory for loading. Before the first step, outside any capture.
  Status FinishPacking();
  bool pending() const { return pending_; }
  // The call for a layer; `rows` may be rounded up.
  static LinearCall CallOf(const FastWeight& weight, const LinearParams& params, int32_t rows);
  LinearKernels& kernels() { return *kernels_; }

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
  std::vector<Buffer> outgrown_;  // by weights packed after the first step
  Buffer landing_;                // staging memory, while weights are loaded
  bool pending_ = false;
  bool stepped_ = false;  // a step may have been prepared
};

}  // namespace aisp::cuda
