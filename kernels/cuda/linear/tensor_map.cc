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
  CUtensorMap map = {};
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(columns) * element_bytes};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_columns),
                             static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  const CUresult result = encode_(
      &map, element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8,
      2, const_cast<void*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return Internal("linear layer: describing a matrix of " + std::to_string(rows) + " x " +
                    std::to_string(columns) + " failed with CUresult " + std::to_string(result));
  }
  return map;
}

}  // namespace aisp::cuda
