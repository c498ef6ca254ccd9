// WeightReader: weights of a checkpoint by name and expected shape, out of whatever format they are stored in. Quantised
// weights are expanded to f32 here; everything else is a view of the mapped file.
//
// For loading only; one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "common/result.h"
#include "model/safetensors.h"
#include "model/spec.h"

namespace aisp {

// The elements of a dense tensor of f32, bf16, f16 or e4m3 as f32; `out` has as many.
void ReadFloats(const TensorView& tensor, std::span<float> out);

class WeightReader {
 public:
  WeightReader(const Checkpoint& checkpoint, const QuantSpec& quant)
      : checkpoint_(checkpoint), quant_(quant) {}

  // [out, in] as f32, bf16 or f16. `name` is without ".weight".
  Result<TensorView> Matrix(const std::string& name, int64_t out, int64_t in);
  // [n], f32, bf16 or f16; `name` is the tensor's whole name.
  Result<TensorView> Vector(const std::string& name, int64_t n);
  bool Has(const std::string& name) const { return checkpoint_.Find(name) != nullptr; }
  // Forgets expanded weights; the views of them end.
  void Release() { expanded_.clear(); }

 private:
  Result<TensorView> ExpandFp8(const std::string& name, const TensorView& weight);
  Result<TensorView> ExpandNvfp4(const std::string& name, int64_t out, int64_t in);
  // The elements of a stored tensor as f32.
  Result<std::vector<float>> Floats(const std::string& name);
  float* NewMatrix(int64_t out, int64_t in, TensorView* view);

  const Checkpoint& checkpoint_;
  const QuantSpec quant_;
  std::deque<std::vector<float>> expanded_;
};

}  // namespace aisp
