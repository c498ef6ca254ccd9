// TensorCutter: places tensors in one allocation. Columns: a column range of a tensor. For loading.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/buffer.h"
#include "kernels/device/device.h"

namespace aisp {

// Without memory it only computes the size needed.
class TensorCutter {
 public:
  explicit TensorCutter(std::byte* memory) : memory_(memory) {}
  TensorView Take(DType dtype, int64_t rows, int64_t cols) {
    std::byte* const at = memory_ != nullptr ? memory_ + used_ : nullptr;
    used_ += DeviceArena::Padded(static_cast<size_t>(rows * cols) * DTypeBytes(dtype));
    return TensorView::Dense(at, dtype, {rows, cols});
  }
  size_t used() const { return used_; }

 private:
  std::byte* const memory_;
  size_t used_ = 0;
};

// Columns [begin, begin + count) of a dense tensor.
inline TensorView Columns(const TensorView& whole, int64_t begin, int64_t count) {
  TensorView part = whole;
  part.shape[1] = count;
  part.data =
      static_cast<std::byte*>(whole.data) + static_cast<size_t>(begin) * DTypeBytes(whole.dtype);
  return part;
}

}  // namespace aisp
