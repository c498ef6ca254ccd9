// Weights of the CUDA backend in device memory: packing at load.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/table/facts.h"
#include "kernels/ops.h"

namespace aisp::cuda {

// Row-major and unpacked, in the compute dtype, for the plain kernels.
class PlainWeight final : public PackedLinear {
 public:
  LinearTraits traits() const override {
    LinearTraits t;
    t.input = type;
    t.output = output_type;
    t.epilogue = epilogue;
    t.bias = bias.bytes() > 0;
    t.n = n;
    t.k = k;
    t.family = static_cast<uint8_t>(LinearFamily::kPlain);
    t.bytes = data.bytes();
    return t;
  }
  size_t bytes() const override { return data.bytes() + bias.bytes(); }

  Buffer data, bias;
  DType type = DType::kF32;
  DType output_type = DType::kF32;
  Epilogue epilogue = Epilogue::kStore;
  int64_t n = 0, k = 0;
};

class PlainExperts final : public PackedExperts {
 public:
  int32_t num_experts() const override { return experts; }
  size_t bytes() const override { return gate_up.bytes() + down.bytes(); }

  Buffer gate_up, down;  // layout as in ExpertsCall
  DType type = DType::kF32;
  int32_t experts = 0;
  int32_t top_k = 0;
  int64_t hidden = 0, intermediate = 0;
};

// Standard deviation for random weights with `k` inputs that keeps activations in a realistic
// range.
float RandomDeviation(int64_t k);

// Loads matrices of any float dtype from host memory with conversion on the device, or generates
// random ones. For loading only.
class WeightLoader {
 public:
  WeightLoader(Device& device, CudaStream& stream) : device_(device), stream_(stream) {}

  // Loads `part` (host memory; without data: random from `seed`) as `type` to `target`.
  Status Load(const TensorView& part, DType type, uint64_t seed, void* target);
  // The stacked biases as f32; an empty Buffer if there are none.
  Result<Buffer> LoadBiases(const LinearSource& source);
  // The same, in host memory.
  static std::vector<float> StackBiases(const LinearSource& source);

 private:
  Device& device_;
  CudaStream& stream_;
  Buffer staging_;  // device memory for data to be converted
};

// INVALID_ARGUMENT: inconsistent parts.
Status CheckSource(const LinearSource& source);
Result<std::unique_ptr<PackedLinear>> PackPlain(const LinearSource& source, Device& device,
                                                CudaStream& stream);
Result<std::unique_ptr<PackedExperts>> PackPlainExperts(const ExpertsSource& source, Device& device,
                                                        CudaStream& stream);

// Converts a dense host tensor of f32, bf16 or f16.
void ReadFloats(const TensorView& from, float* out);

}  // namespace aisp::cuda
