// Buffer: the owner of a piece of a device's memory. DeviceArena: hands out parts of a Buffer,
// which are freed together.
//
// A Buffer must not outlive its Device. Steps allocate nothing: workspaces are cut from a
// DeviceArena at start-up. Owner's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <utility>

#include "common/result.h"
#include "kernels/device/dtype.h"
#include "kernels/device/tensor_view.h"

namespace aisp {

// A Device's state of an allocation; the destructor frees the memory.
class Allocation {
 public:
  virtual ~Allocation() = default;
};

class Buffer {
 public:
  Buffer() = default;
  Buffer(void* data, size_t bytes, int fd, std::unique_ptr<Allocation> allocation)
      : data_(data), bytes_(bytes), fd_(fd), allocation_(std::move(allocation)) {}
  Buffer(Buffer&& o) noexcept
      : data_(std::exchange(o.data_, nullptr)),
        bytes_(std::exchange(o.bytes_, 0)),
        fd_(std::exchange(o.fd_, -1)),
        allocation_(std::move(o.allocation_)) {}
  Buffer& operator=(Buffer&& o) noexcept {
    if (this != &o) {
      allocation_ = std::move(o.allocation_);
      data_ = std::exchange(o.data_, nullptr);
      bytes_ = std::exchange(o.bytes_, 0);
      fd_ = std::exchange(o.fd_, -1);
    }
    return *this;
  }

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // The file behind a shareable host allocation, which another process may map as a whole with
  // MAP_SHARED; -1 for other memory. Owned by the Buffer: duplicate it to keep it.
  int fd() const { return fd_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  int fd_ = -1;
  std::unique_ptr<Allocation> allocation_;
};

class DeviceArena {
 public:
  static constexpr size_t kAlignment = 256;

  explicit DeviceArena(Buffer buffer) : buffer_(std::move(buffer)) {}

  // `bytes` from the arena, aligned to kAlignment; RESOURCE_EXHAUSTED names what is wanted and what
  // is left.
  Result<void*> Allocate(size_t bytes);
  // A dense tensor from the arena.
  Result<TensorView> AllocateTensor(DType dtype, std::initializer_list<int64_t> shape);

  size_t used() const { return used_; }
  size_t capacity() const { return buffer_.bytes(); }
  // The size of an allocation of `bytes` within an arena.
  static constexpr size_t Padded(size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

 private:
  Buffer buffer_;
  size_t used_ = 0;
};

}  // namespace aisp
