// TensorView: address and shape of a tensor. Owns nothing; its maker keeps the memory alive.
//
// Strides count elements; the last dimension's stride is 1 unless noted. Device memory is accessed
// only by the device's operations. Plain value: any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "common/check.h"
#include "kernels/device/dtype.h"

namespace aisp {

struct TensorView {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::kF32;
  int32_t rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> strides{};

  // Dense, row-major.
  static TensorView Dense(void* data, DType dtype, std::initializer_list<int64_t> shape) {
    AISP_CHECK(shape.size() <= kMaxRank);
    TensorView view;
    view.data = data;
    view.dtype = dtype;
    for (int64_t extent : shape) view.shape[static_cast<size_t>(view.rank++)] = extent;
    int64_t stride = 1;
    for (int32_t i = view.rank - 1; i >= 0; --i) {
      view.strides[static_cast<size_t>(i)] = stride;
      stride *= view.shape[static_cast<size_t>(i)];
    }
    return view;
  }

  int64_t elements() const {
    int64_t n = 1;
    for (int32_t i = 0; i < rank; ++i) n *= shape[static_cast<size_t>(i)];
    return n;
  }
  size_t bytes() const { return static_cast<size_t>(elements()) * DTypeBytes(dtype); }
  int64_t rows() const { return shape[0]; }
  int64_t cols() const { return shape[static_cast<size_t>(rank - 1)]; }

  // The rows [begin, begin + count) of a dense tensor.
  TensorView Rows(int64_t begin, int64_t count) const {
    AISP_CHECK(rank >= 1 && begin >= 0 && count >= 0 && begin + count <= shape[0]);
    TensorView view = *this;
    view.shape[0] = count;
    view.data =
        static_cast<std::byte*>(data) + static_cast<size_t>(begin * strides[0]) * DTypeBytes(dtype);
    return view;
  }

  template <typename T>
  T* as() const {
    AISP_CHECK(sizeof(T) == DTypeBytes(dtype));
    return static_cast<T*>(data);
  }
};

}  // namespace aisp
