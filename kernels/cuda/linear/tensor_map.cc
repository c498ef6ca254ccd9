#include "kernels/cuda/linear/tensor_map.h"

#include <cuda_runtime_api.h>

#include <string>

namespace aisp::cuda {

Result<TensorMaps> TensorMaps::Find() {
  cudaDriverEntryPointQueryResult found = {};
  void* encode = nullptr;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode,
                                                             12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || encode == nullptr) {
    return Internal(std::string("linear layer: finding cuTensorMapEncodeTiled: ") +
                    cudaGetErrorString(error));
  }
  TensorMaps maps;
  maps.encode_ = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(encode);
  return maps;
}

Result<CUtensorMap> TensorMaps::Box(const void* data, size_t element_bytes, int64_t columns,
                                    int64_t rows, int box_columns, int box_rows) const {
  const auto bytes = static_cast<int64_t>(element_bytes);
  const Dimension dimensions[] = {{columns, bytes, box_columns}, {rows, columns * bytes, box_rows}};
  return Box(data, dimensions, CU_TENSOR_MAP_SWIZZLE_128B);
}

Result<CUtensorMap> TensorMaps::Box(const void* data, std::span<const Dimension> dimensions,
                                    CUtensorMapSwizzle swizzle) const {
  constexpr size_t kMost = 5;
  CUtensorMap map = {};
  cuuint64_t sizes[kMost] = {};
  cuuint64_t strides[kMost] = {};
  cuuint32_t box[kMost] = {};
  cuuint32_t steps[kMost] = {};
  for (size_t i = 0; i < dimensions.size() && i < kMost; ++i) {
    sizes[i] = static_cast<cuuint64_t>(dimensions[i].size);
    if (i > 0) strides[i - 1] = static_cast<cuuint64_t>(dimensions[i].stride);
    box[i] = static_cast<cuuint32_t>(dimensions[i].box);
    steps[i] = 1;
  }
  const int64_t bytes = dimensions[0].stride;
  const CUtensorMapDataType type = bytes == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                : CU_TENSOR_MAP_DATA_TYPE_UINT32;
  // No L2 promotion: fetching 256 bytes limits a stream of 128-byte rows to 4.35 TB/s, whatever is
  // in flight; without it the stream runs at memory speed.
  const CUresult result =
      encode_(&map, type, static_cast<cuuint32_t>(dimensions.size()), const_cast<void*>(data),
              sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
              CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    std::string shape;
    for (const Dimension& dimension : dimensions) {
      if (!shape.empty()) shape.insert(0, " x ");
      shape.insert(0, std::to_string(dimension.size));
    }
    return Internal("linear layer: describing a matrix of " + shape + " failed with CUresult " +
                    std::to_string(result));
  }
  return map;
}

}  // namespace aisp::cuda
