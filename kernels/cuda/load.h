// Opens the CUDA backend, which is a shared object of its own (libaisp_cuda.so), so that this program starts on hosts without
// any CUDA library. No CUDA header here.
//
// The object stays open until the process ends; devices and operations may live as long. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/result.h"
#include "kernels/device/device.h"
#include "kernels/ops.h"

namespace aisp {

// Destroyed from the last to the first.
struct CudaBackend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
};

struct CudaBackendOptions {
  int32_t index = 0;
  int32_t max_rows = 0;       // of a step
  int32_t max_sequences = 0;  // of a step
  // Where the choices among the vendor's matrix kernels are kept between runs; empty: nowhere.
  std::string tuning_cache;
};

// Looks for libaisp_cuda.so in `folders`, in order.
// NOT_FOUND: no driver or no libaisp_cuda.so; FAILED_PRECONDITION: the driver is too old, or another build's backend;
// UNAVAILABLE: no such GPU, or it does not answer.
Result<CudaBackend> OpenCudaBackend(const CudaBackendOptions& options,
                                    std::span<const std::string> folders);

// What libaisp_cuda.so exports. Both sides are of one build: `abi` is compared first.
inline constexpr int32_t kCudaBackendAbi = 1;
inline constexpr const char* kCudaBackendAbiSymbol = "aisp_cuda_abi";
inline constexpr const char* kCudaBackendOpenSymbol = "aisp_cuda_open";
using CudaBackendAbiFn = int32_t (*)();
using CudaBackendOpenFn = void (*)(const CudaBackendOptions* options, Result<CudaBackend>* backend);

}  // namespace aisp
