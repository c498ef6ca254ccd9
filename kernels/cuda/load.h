// Opens the CUDA backend, which is a shared object of its own (libaisp_cuda.so), so that this
// program starts on hosts without any CUDA library. No CUDA header here.
//
// The object stays open until the process ends; devices and operations may live as long. Any
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

// Destroyed from the last to the first.
struct CudaBackend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
};

struct CudaBackendOptions {
  int32_t index = 0;
  int32_t max_rows = 0;       // of a step
  int32_t max_sequences = 0;  // of a step
  // Nothing else in this process computes on this GPU. Only then may kernels run all of whose parts
  // wait for all, and so have to be on the GPU together (linear/chain.cuh, linear/one_token.cuh).
  bool exclusive = true;
  // From so many rows of a step on, layers with FP8 weights round their activations to FP8; 0:
  // never.
  int32_t fp8_activation_rows = 0;
  // File in which the choices among the vendor's matrix kernels are kept between runs; a folder,
  // ending in /: a file named after the GPU in it; empty: nowhere.
  std::string tuning_cache;
};

// What --fp8-activations auto takes for CudaBackendOptions::fp8_activation_rows: measured on an
// H200 (docs/performance.md). Weights with a scale for each block have slower kernels for it.
inline constexpr int32_t kAutoFp8ActivationRows = 65;
inline constexpr int32_t kAutoFp8BlockActivationRows = 1024;

// Looks for libaisp_cuda.so in `folders`, in order.
// NOT_FOUND: no driver or no libaisp_cuda.so; FAILED_PRECONDITION: the driver is too old, or
// another build's backend; UNAVAILABLE: no such GPU, or it does not answer.
Result<CudaBackend> OpenCudaBackend(const CudaBackendOptions& options,
                                    std::span<const std::string> folders);

// Whether there is a driver and a backend that loads; it says nothing about a GPU.
bool CudaBackendPresent(std::span<const std::string> folders);

// What a GPU can do at most, for comparing with what is reached.
struct CudaLimits {
  std::string device;
  double read_bytes_per_s = 0;  // a kernel that only reads
  double copy_bytes_per_s = 0;  // device to device, read and written bytes together
  double host_bytes_per_s = 0;  // page-locked host memory to the device
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
// NOT_FOUND: no driver, no libaisp_cuda.so, or one that was built without NVTX.
Result<ProfilerRanges> FindProfilerRanges(std::span<const std::string> folders);

// A function that `library`, a file in one of `folders`, exports, once the library turned out to be
// of this build. Errors as OpenCudaBackend's.
Result<void*> FindCudaFunction(const std::string& library, const char* symbol,
                               std::span<const std::string> folders);

// What libaisp_cuda.so exports. Both sides are of one build: `abi` is compared first.
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
