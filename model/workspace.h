// Workspace: memory of a step's intermediate tensors. At load, layers declare the width that they
// need of each slot; one allocation serves the widest, and during a step a tensor is only a view.
//
// One step at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "kernels/device/buffer.h"
#include "kernels/device/device.h"

namespace aisp {

enum class Scratch : uint8_t {
  kHidden,     // the residual stream
  kNormed,     // input of a sublayer
  kProjected,  // qkv, gate and up
  kMixed,      // output of attention, activation of an MLP
  kLatent,     // latent attention: compressed q and kv
  kLatentNormed,
  kLatentKv,  // latent attention: expanded keys and values
  kRouter,    // expert scores
  kExperts,   // chosen experts
  kExpertWeights,
  kCount,
};

class Workspace {
 public:
  // At load: declares a need of `cols` elements of `dtype` per row.
  void Need(Scratch slot, DType dtype, int64_t cols) {
    size_t& bytes = row_bytes_[static_cast<size_t>(slot)];
    bytes = std::max(bytes, static_cast<size_t>(cols) * DTypeBytes(dtype));
  }
  // Call after the last Need. `rows`: the capacity of every tensor.
  Status Allocate(Device& device, int64_t rows) {
    size_t total = 0;
    for (size_t bytes : row_bytes_) total += DeviceArena::Padded(bytes * static_cast<size_t>(rows));
    AISP_ASSIGN_OR_RETURN(Buffer buffer,
                          device.Allocate(std::max<size_t>(total, 1), MemoryKind::kDevice));
    arena_.emplace(std::move(buffer));
    rows_ = rows;
    for (size_t i = 0; i < row_bytes_.size(); ++i) {
      AISP_ASSIGN_OR_RETURN(data_[i], arena_->Allocate(row_bytes_[i] * static_cast<size_t>(rows)));
    }
    return {};
  }
  TensorView View(Scratch slot, DType dtype, int64_t cols) const {
    const auto i = static_cast<size_t>(slot);
    AISP_CHECK(static_cast<size_t>(cols) * DTypeBytes(dtype) <= row_bytes_[i]);
    return TensorView::Dense(data_[i], dtype, {rows_, cols});
  }
  size_t bytes() const { return arena_ ? arena_->capacity() : 0; }

 private:
  std::array<size_t, static_cast<size_t>(Scratch::kCount)> row_bytes_{};
  std::array<void*, static_cast<size_t>(Scratch::kCount)> data_{};
  std::optional<DeviceArena> arena_;
  int64_t rows_ = 0;
};

}  // namespace aisp
