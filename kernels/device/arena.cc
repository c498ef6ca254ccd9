#include <fmt/format.h>

#include "kernels/device/buffer.h"

namespace aisp {

Result<void*> DeviceArena::Allocate(size_t bytes) {
  const size_t padded = Padded(bytes);
  if (padded < bytes || padded > buffer_.bytes() - used_) {
    return ResourceExhausted(
        fmt::format("arena: {} bytes wanted, {} of {} left; make the arena larger", bytes,
                    buffer_.bytes() - used_, buffer_.bytes()));
  }
  void* out = static_cast<std::byte*>(buffer_.data()) + used_;
  used_ += padded;
  return out;
}

Result<TensorView> DeviceArena::AllocateTensor(DType dtype, std::initializer_list<int64_t> shape) {
  TensorView view = TensorView::Dense(nullptr, dtype, shape);
  AISP_ASSIGN_OR_RETURN(view.data, Allocate(view.bytes()));
  return view;
}

}  // namespace aisp
