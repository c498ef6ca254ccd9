#include "kernels/cuda/limits.h"

#include <cublasLt.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/random_fill.h"

namespace aisp::cuda {
namespace {

constexpr size_t kBytes = size_t{4} << 30;  // many times the size of L2
constexpr int kRepeats = 9;

__global__ void __launch_bounds__(512) ReadKernel(const uint4* data, size_t words, uint32_t* out) {
  constexpr int kAtOnce = 8;
  uint32_t sum = 0;
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + (kAtOnce - 1) * stride < words; i += kAtOnce * stride) {
    uint4 v[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) v[j] = __ldcs(data + i + j * stride);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (sum == 0x12345678u) *out = sum;
}

__global__ void EmptyKernel() { BeginOverlapped(); }

class Meter {
 public:
  Meter(Device& device, Stream& stream) : device_(device), stream_(stream) {}
  // Median seconds of `work` by the device's clock.
  Result<double> Seconds(const std::function<Status()>& work) {
    AISP_ASSIGN_OR_RETURN(auto begin, device_.CreateEvent());
    AISP_ASSIGN_OR_RETURN(auto end, device_.CreateEvent());
    std::vector<double> seconds;
    for (int i = -2; i < kRepeats; ++i) {
      AISP_RETURN_IF_ERROR(device_.Record(*begin, stream_));
      AISP_RETURN_IF_ERROR(work());
      AISP_RETURN_IF_ERROR(device_.Record(*end, stream_));
      AISP_RETURN_IF_ERROR(device_.Synchronize(*end));
      AISP_ASSIGN_OR_RETURN(const double ms, device_.ElapsedMs(*begin, *end));
      if (i >= 0) seconds.push_back(ms * 1e-3);
    }
    std::nth_element(seconds.begin(), seconds.begin() + kRepeats / 2, seconds.end());
    return seconds[kRepeats / 2];
  }

 private:
  Device& device_;
  Stream& stream_;
};

Status CheckBlas(cublasStatus_t code) {
  if (code == CUBLAS_STATUS_SUCCESS) return {};
  return Internal(std::string("cuBLASLt: ") + cublasLtGetStatusString(code));
}

// Writes two e4m3 matrices of [n, n] to `out`; `scratch` holds one in bf16.
Status FillFp8(std::byte* out, std::byte* scratch, float* scales, int64_t n, CudaStream& stream) {
  for (int64_t i = 0; i < 2; ++i) {
    AISP_RETURN_IF_ERROR(LaunchFillNormal(scratch, DType::kBF16, n * n, 1.0f,
                                          static_cast<uint64_t>(i), stream.handle));
    AISP_RETURN_IF_ERROR(
        QuantizeRows(scratch, out + i * n * n, scales, static_cast<int32_t>(n), n, stream.handle));
  }
  return {};
}

// y = x W^T in bf16 or e4m3, with bf16 output and cuBLASLt's first heuristic choice.
Result<double> MatmulSeconds(Device& device, CudaStream& stream, Meter& meter, int64_t n,
                             bool fp8) {
  const size_t bytes = static_cast<size_t>(n * n) * 2;  // of y; the factors have at most as many
  constexpr size_t kWorkspace = size_t{64} << 20;
  AISP_ASSIGN_OR_RETURN(const Buffer memory,
                        device.Allocate(3 * bytes + kWorkspace, MemoryKind::kDevice));
  auto* base = static_cast<std::byte*>(memory.data());
  if (fp8) {
    AISP_RETURN_IF_ERROR(
        FillFp8(base, base + 2 * bytes, reinterpret_cast<float*>(base + 3 * bytes), n, stream));
  } else {
    AISP_RETURN_IF_ERROR(LaunchFillNormal(base, DType::kBF16, 2 * n * n, 1.0f, 1, stream.handle));
  }
  std::byte* const second = base + (fp8 ? bytes / 2 : bytes);
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t factor = nullptr, product = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  const cublasOperation_t transposed = CUBLAS_OP_T;
  cublasLtMatmulHeuristicResult_t choice{};
  int found = 0;
  const auto prepare = [&]() -> Status {
    AISP_RETURN_IF_ERROR(CheckBlas(cublasLtCreate(&handle)));
    AISP_RETURN_IF_ERROR(
        CheckBlas(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F)));
    AISP_RETURN_IF_ERROR(CheckBlas(cublasLtMatmulDescSetAttribute(
        operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed))));
    const auto side = static_cast<uint64_t>(n);
    AISP_RETURN_IF_ERROR(CheckBlas(
        cublasLtMatrixLayoutCreate(&factor, fp8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF, side, side, n)));
    AISP_RETURN_IF_ERROR(
        CheckBlas(cublasLtMatrixLayoutCreate(&product, CUDA_R_16BF, side, side, n)));
    AISP_RETURN_IF_ERROR(CheckBlas(cublasLtMatmulPreferenceCreate(&preference)));
    AISP_RETURN_IF_ERROR(CheckBlas(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace, sizeof(kWorkspace))));
    return CheckBlas(cublasLtMatmulAlgoGetHeuristic(handle, operation, factor, factor, product,
                                                    product, preference, 1, &choice, &found));
  };
  Result<double> seconds = Internal("cuBLASLt has no algorithm");
  const Status prepared = prepare();
  if (!prepared) {
    seconds = tl::unexpected(prepared.error());
  } else if (found > 0) {
    const float one = 1, zero = 0;
    seconds = meter.Seconds([&] {
      return CheckBlas(cublasLtMatmul(handle, operation, &one, base, factor, second, factor, &zero,
                                      base + 2 * bytes, product, base + 2 * bytes, product,
                                      &choice.algo, base + 3 * bytes, kWorkspace, stream.handle));
    });
  }
  if (preference != nullptr) cublasLtMatmulPreferenceDestroy(preference);
  if (factor != nullptr) cublasLtMatrixLayoutDestroy(factor);
  if (product != nullptr) cublasLtMatrixLayoutDestroy(product);
  if (operation != nullptr) cublasLtMatmulDescDestroy(operation);
  if (handle != nullptr) cublasLtDestroy(handle);
  return seconds;
}

Result<double> GraphKernelSeconds(Device& device, CudaStream& stream, Meter& meter) {
  constexpr int kKernels = 1000;
  AISP_RETURN_IF_ERROR(device.BeginCapture(stream));
  Status launched;
  for (int i = 0; i < kKernels && launched; ++i)
    launched = Check(LaunchOverlapped(EmptyKernel, 1, 32, 0, stream.handle), "empty kernel");
  AISP_ASSIGN_OR_RETURN(auto graph, device.EndCapture(stream));
  AISP_RETURN_IF_ERROR(launched);
  AISP_ASSIGN_OR_RETURN(const double seconds,
                        meter.Seconds([&] { return device.LaunchGraph(*graph, stream); }));
  return seconds / kKernels;
}

}  // namespace

Result<CudaLimits> MeasureLimits(int32_t index) {
  AISP_ASSIGN_OR_RETURN(auto device, MakeCudaDevice(index));
  AISP_ASSIGN_OR_RETURN(auto made, device->CreateStream());
  auto& stream = static_cast<CudaStream&>(*made);
  Meter meter(*device, stream);
  CudaLimits limits;
  limits.device = device->info().name;
  {
    AISP_ASSIGN_OR_RETURN(const Buffer a, device->Allocate(kBytes, MemoryKind::kDevice));
    AISP_ASSIGN_OR_RETURN(const Buffer b, device->Allocate(kBytes, MemoryKind::kDevice));
    AISP_RETURN_IF_ERROR(LaunchFillNormal(a.data(), DType::kBF16, kBytes / 2, 1, 1, stream.handle));
    AISP_ASSIGN_OR_RETURN(const double read, meter.Seconds([&] {
      ReadKernel<<<132 * 4, 512, 0, stream.handle>>>(static_cast<const uint4*>(a.data()),
                                                     kBytes / sizeof(uint4),
                                                     static_cast<uint32_t*>(b.data()));
      return CheckLaunch("reading");
    }));
    limits.read_bytes_per_s = static_cast<double>(kBytes) / read;
    AISP_ASSIGN_OR_RETURN(const double copy, meter.Seconds([&] {
      return device->Copy(b.data(), a.data(), kBytes, stream);
    }));
    limits.copy_bytes_per_s = 2.0 * static_cast<double>(kBytes) / copy;
    constexpr size_t kHost = size_t{256} << 20;
    AISP_ASSIGN_OR_RETURN(const Buffer host, device->Allocate(kHost, MemoryKind::kHost));
    AISP_ASSIGN_OR_RETURN(const double up, meter.Seconds([&] {
      return device->Copy(a.data(), host.data(), kHost, stream);
    }));
    limits.host_bytes_per_s = static_cast<double>(kHost) / up;
  }
  constexpr int64_t kMatrix = 8192;
  constexpr double kFlops = 2.0 * kMatrix * kMatrix * kMatrix;
  AISP_ASSIGN_OR_RETURN(const double bf16, MatmulSeconds(*device, stream, meter, kMatrix, false));
  limits.bf16_flops_per_s = kFlops / bf16;
  AISP_ASSIGN_OR_RETURN(const double fp8, MatmulSeconds(*device, stream, meter, kMatrix, true));
  limits.fp8_flops_per_s = kFlops / fp8;
  AISP_ASSIGN_OR_RETURN(limits.graph_kernel_s, GraphKernelSeconds(*device, stream, meter));
  return limits;
}

}  // namespace aisp::cuda
