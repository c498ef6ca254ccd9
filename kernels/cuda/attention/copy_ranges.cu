// Copies of byte ranges: KV blocks that are gathered for a transfer, scattered after one, or copied.
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/ptx.cuh"
#include "kernels/cuda/cuda_error.h"

namespace aisp::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kAhead = 4;   // words in flight per thread
constexpr int kSlices = 8;  // CTAs that share a range

__device__ __forceinline__ void CopyBytes(const uint8_t* from, uint8_t* to, int64_t bytes,
                                          int64_t thread, int64_t threads) {
  for (int64_t i = thread; i < bytes; i += threads) to[i] = from[i];
}

__global__ void __launch_bounds__(kThreads)
    CopyRangesKernel(const ByteRange* ranges, const uint8_t* source, uint8_t* target) {
  ptx::WaitForPredecessor();
  ptx::LetSuccessorStart();
  const ByteRange range = ranges[blockIdx.x];
  const uint8_t* from = source + range.source;
  uint8_t* to = target + range.target;
  const int64_t threads = static_cast<int64_t>(kThreads) * gridDim.y;
  const int64_t thread = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if ((reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) % 16 != 0) {
    CopyBytes(from, to, range.bytes, thread, threads);
    return;
  }
  const int64_t words = range.bytes / 16;
  const uint4* from16 = reinterpret_cast<const uint4*>(from);
  uint4* to16 = reinterpret_cast<uint4*>(to);
  int64_t i = thread;
  for (; i + (kAhead - 1) * threads < words; i += kAhead * threads) {
    uint4 v[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) v[k] = from16[i + k * threads];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) to16[i + k * threads] = v[k];
  }
  for (; i < words; i += threads) to16[i] = from16[i];
  CopyBytes(from + words * 16, to + words * 16, range.bytes % 16, thread, threads);
}

}  // namespace

Status CopyRanges(const ByteRange* ranges, int32_t count, const void* source, void* target,
                  cudaStream_t stream) {
  if (count < 0)
    return InvalidArgument("a negative count of ranges to copy: " + std::to_string(count));
  if (count == 0) return {};
  // Few ranges are cut finer, so that the machine is full.
  const uint32_t slices = count >= 1024  ? 1
                          : count >= 256 ? kSlices / 2
                          : count >= 32  ? kSlices
                                         : 4 * kSlices;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<uint32_t>(count), slices);
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return Check(
      cudaLaunchKernelEx(&config, CopyRangesKernel, ranges, static_cast<const uint8_t*>(source),
                         static_cast<uint8_t*>(target)),
      "launch the copy of ranges");
}

}  // namespace aisp::cuda
