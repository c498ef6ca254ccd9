// WeightReader: reads a checkpoint's weights by name and expected shape from any stored format.
// Quantised weights are expanded to f32; everything else is a view of the mapped file.
//
// For loading only; one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/result.h"
#include "kernels/ops.h"
#include "model/safetensors.h"
#include "model/spec.h"

namespace aisp {

// Converts a dense tensor of f32, bf16, f16 or e4m3 to f32; `out` has as many elements.
void ReadFloats(const TensorView& tensor, std::span<float> out);

// A quantised matrix in its stored form.
struct StoredMatrix {
  TensorView codes;  // e4m3 [out, in], or kU8 [out, in / 2] with two e2m1 each
  PartScales scales;
};

class WeightReader {
 public:
  // The checkpoint may be null if MakeRandom follows.
  WeightReader(const Checkpoint* checkpoint, const QuantSpec& quant)
      : checkpoint_(checkpoint), quant_(quant) {}

  // Makes matrices random: generated in host memory by `ops`, or without `ops` views without data,
  // which Ops::PackLinear fills. Vectors become ones (norms) or zeros (biases).
  void MakeRandom(uint64_t seed, Ops* ops, Stream* stream) {
    random_seed_ = seed;
    ops_ = ops;
    stream_ = stream;
  }
  // `on_bytes` gets the stored size of each matrix read; random ones count as bf16.
  void Watch(std::function<void(uint64_t bytes)> on_bytes) { on_bytes_ = std::move(on_bytes); }
  // The random seed of matrix `name`.
  uint64_t SeedOf(const std::string& name) const;

  // [out, in] as f32, bf16 or f16, never quantised. `name` is without ".weight".
  Result<TensorView> Plain(const std::string& name, int64_t out, int64_t in);
  Result<TensorView> Matrix(const std::string& name, int64_t out, int64_t in);
  // How `name`.weight is quantised; nullopt: not quantised.
  std::optional<WeightFormat> StoredFormat(const std::string& name) const;
  // Reads a matrix with a StoredFormat.
  Result<StoredMatrix> AsStored(const std::string& name, int64_t out, int64_t in);
  // [n] in f32, bf16 or f16; `name` is the tensor's full name.
  Result<TensorView> Vector(const std::string& name, int64_t n);
  bool Has(const std::string& name) const {
    return checkpoint_ == nullptr || checkpoint_->Find(name) != nullptr;
  }
  // Frees expanded weights, which invalidates their views.
  void Release() { expanded_.clear(); }

 private:
  Result<TensorView> ExpandFp8(const std::string& name, const TensorView& weight);
  Result<TensorView> ExpandNvfp4(const std::string& name, int64_t out, int64_t in);
  // A stored tensor as f32.
  Result<std::vector<float>> Floats(const std::string& name);
  float* NewMatrix(int64_t out, int64_t in, TensorView* view);
  Result<TensorView> Random(const std::string& name, int64_t out, int64_t in);
  void Count(const std::string& weight) const;

  const Checkpoint* const checkpoint_;
  const QuantSpec quant_;
  uint64_t random_seed_ = 0;
  Ops* ops_ = nullptr;
  Stream* stream_ = nullptr;
  std::deque<std::vector<float>> expanded_;
  std::function<void(uint64_t bytes)> on_bytes_;
};

}  // namespace aisp
