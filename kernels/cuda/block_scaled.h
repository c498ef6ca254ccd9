// Linear layers in NVFP4 on GPUs whose tensor cores support it (10.0, 12.0): weights and
// activations in e2m1 with an e4m3 scale per 16 elements, by cuBLASLt's block-scaled mode.
// Activations are quantised on the fly, with a tensor scale of one. Compiled for these GPUs, never
// run on one.
//
// Owns the library's handle and scratch memory for activations. One caller at a time, one stream;
// Pack is for loading.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/table/facts.h"
#include "kernels/ops.h"

namespace aisp::cuda {

class BlockScaledWeight final : public PackedLinear {
 public:
  // Rows with a common scale; each part is one product.
  struct Part {
    Buffer codes;   // [n, k / 2]
    Buffer scales;  // tiled
    float scale = 1.0f;
    int64_t n = 0;
  };

  LinearTraits traits() const override {
    LinearTraits t;
    t.format = aisp::WeightFormat::kNvfp4;
    t.input = DType::kBF16;
    t.output = output;
    t.epilogue = epilogue;
    t.n = n;
    t.k = k;
    t.family = static_cast<uint8_t>(LinearFamily::kBlockScaled);
    t.bytes = bytes();
    return t;
  }
  size_t bytes() const override;

  std::vector<Part> parts;
  Epilogue epilogue = Epilogue::kStore;
  DType output = DType::kF32;
  int64_t n = 0, k = 0;
};

class BlockScaledLinear {
 public:
  static Result<std::unique_ptr<BlockScaledLinear>> Create(Device& device, CudaStream& load_stream,
                                                           int32_t max_rows);
  virtual ~BlockScaledLinear() = default;

  // UNIMPLEMENTED, at load: sources that are not NVFP4, biases, and sizes or outputs for which the
  // library has no algorithm.
  virtual Result<std::unique_ptr<BlockScaledWeight>> Pack(const LinearSource& source) = 0;
  virtual Status Run(const BlockScaledWeight& weight, const LinearParams& params,
                     cudaStream_t stream) = 0;
};

}  // namespace aisp::cuda
