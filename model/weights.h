// WeightReader: weights of a checkpoint by name and expected shape, out of whatever format they are
// stored in. Quantised weights are expanded to f32 here; everything else is a view of the mapped
// file.
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

// The elements of a dense tensor of f32, bf16, f16 or e4m3 as f32; `out` has as many.
void ReadFloats(const TensorView& tensor, std::span<float> out);

// A quantised matrix as the checkpoint has it.
struct StoredMatrix {
  TensorView codes;  // e4m3 [out, in], or kU8 [out, in / 2] with two e2m1 each
  PartScales scales;
};

class WeightReader {
 public:
  // The checkpoint may be null if MakeRandom follows.
  WeightReader(const Checkpoint* checkpoint, const QuantSpec& quant)
      : checkpoint_(checkpoint), quant_(quant) {}

  // From now on matrices are random: made in host memory by `ops`, or, without it, views without
  // data, which Ops::PackLinear fills. Vectors are ones (norms) or zeros (biases).
  void MakeRandom(uint64_t seed, Ops* ops, Stream* stream) {
    random_seed_ = seed;
    ops_ = ops;
    stream_ = stream;
  }
  // `on_bytes` hears the size of each matrix that is asked for, as it is stored; random ones count
  // as bf16.
  void Watch(std::function<void(uint64_t bytes)> on_bytes) { on_bytes_ = std::move(on_bytes); }
  // Of the matrix `name`.
  uint64_t SeedOf(const std::string& name) const;

  // [out, in] as f32, bf16 or f16. `name` is without ".weight". Plain: never a quantised one.
  Result<TensorView> Plain(const std::string& name, int64_t out, int64_t in);
  Result<TensorView> Matrix(const std::string& name, int64_t out, int64_t in);
  // How `name`.weight is quantised; nothing: it is not.
  std::optional<WeightFormat> StoredFormat(const std::string& name) const;
  // A matrix with a StoredFormat.
  Result<StoredMatrix> AsStored(const std::string& name, int64_t out, int64_t in);
  // [n], f32, bf16 or f16; `name` is the tensor's whole name.
  Result<TensorView> Vector(const std::string& name, int64_t n);
  bool Has(const std::string& name) const {
    return checkpoint_ == nullptr || checkpoint_->Find(name) != nullptr;
  }
  // Forgets expanded weights; the views of them end.
  void Release() { expanded_.clear(); }

 private:
  Result<TensorView> ExpandFp8(const std::string& name, const TensorView& weight);
  Result<TensorView> ExpandNvfp4(const std::string& name, int64_t out, int64_t in);
  // The elements of a stored tensor as f32.
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
