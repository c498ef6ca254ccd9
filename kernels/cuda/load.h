// Opens the CUDA backend, a separate shared object (libaisp_cuda.so), so that this program also
// starts on hosts without CUDA libraries. Includes no CUDA header.
//
// The object stays open until the process ends, so devices and operations may live as long. Any
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/result.h"
#include "kernels/device/device.h"
#include "kernels/ops.h"

namespace aisp {

// Members are destroyed from last to first.
struct CudaBackend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
};

struct CudaBackendOptions {
  int32_t index = 0;
  int32_t max_rows = 0;       // per step
  int32_t max_sequences = 0;  // per step
  // No other code of this process computes on this GPU. Only then may kernels run whose CTAs wait
  // for each other and must all be resident (linear/chain.cuh, linear/one_token.cuh).
  bool exclusive = true;
  // Steps with at least so many rows round activations to FP8 in layers with FP8 weights; 0: never.
  int32_t fp8_activation_rows = 0;
  // File for measured choices of cuBLASLt's algorithms; a folder (ending in /): a file in it named
  // after the GPU; "": not kept.
  std::string tuning_cache;
};

// CudaBackendOptions::fp8_activation_rows for --fp8-activations auto: measured on an H200
// (docs/performance.md). Not for weights with block scales, whose kernels are slower.
inline constexpr int32_t kAutoFp8ActivationRows = 33;
inline constexpr int32_t kAutoFp8BlockActivationRows = 1024;

// Looks for libaisp_cuda.so in `folders`, in order. NOT_FOUND: no driver or no libaisp_cuda.so;
// FAILED_PRECONDITION: the driver is too old, or the backend is of another build; UNAVAILABLE: no
// such GPU, or it does not respond.
Result<CudaBackend> OpenCudaBackend(const CudaBackendOptions& options,
                                    std::span<const std::string> folders);

// Whether a driver and a loadable backend exist; does not check for a GPU.
bool CudaBackendPresent(std::span<const std::string> folders);

// Measured limits of a GPU, to compare achieved rates with.
struct CudaLimits {
  std::string device;
  double read_bytes_per_s = 0;  // a kernel that only reads
  double copy_bytes_per_s = 0;  // device to device, read plus written bytes
  double host_bytes_per_s = 0;  // from page-locked host memory to the device
  double bf16_flops_per_s = 0;  // cuBLASLt, 8192 x 8192 x 8192, random data
  double fp8_flops_per_s = 0;   // the same in e4m3
  double graph_kernel_s = 0;    // an empty kernel in a graph
};
Result<CudaLimits> MeasureCudaLimits(int32_t index, std::span<const std::string> folders);

// Named ranges of the calling thread on a profiler's timeline (NVTX). Cheap without a profiler.
struct ProfilerRanges {
  void (*push)(const char* name) = nullptr;
  void (*pop)() = nullptr;
};
// NOT_FOUND: no driver, no libaisp_cuda.so, or built without NVTX.
Result<ProfilerRanges> FindProfilerRanges(std::span<const std::string> folders);

// A function exported by `library`, a file in one of `folders`, after checking that it is of this
// build. Errors as in OpenCudaBackend.
Result<void*> FindCudaFunction(const std::string& library, const char* symbol,
                               std::span<const std::string> folders);

// Exports of libaisp_cuda.so. Both sides must be of one build: `abi` is compared first.
inline constexpr int32_t kCudaBackendAbi = 4;
inline constexpr const char* kCudaBackendAbiSymbol = "aisp_cuda_abi";
inline constexpr const char* kCudaBackendOpenSymbol = "aisp_cuda_open";
using CudaBackendAbiFn = int32_t (*)();
inline constexpr const char* kCudaLimitsSymbol = "aisp_cuda_limits";
using CudaLimitsFn = void (*)(int32_t index, Result<CudaLimits>* limits);
inline constexpr const char* kCudaRangesSymbol = "aisp_cuda_ranges";
using CudaRangesFn = bool (*)(ProfilerRanges* ranges);
using CudaBackendOpenFn = void (*)(const CudaBackendOptions* options, Result<CudaBackend>* backend);

}  // namespace aisp
