#include <algorithm>
#include <cstdint>

#include "kernels/cuda/range_copy.h"

namespace aisp::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kAhead = 4;            // words in flight per thread
constexpr size_t kMaxRanges = 1024;  // a kernel's arguments have at most 32,764 bytes
constexpr size_t kBytesPerCta = 64u << 10;
constexpr size_t kMaxSlices = 64;

struct RangeList {
  CopyRange ranges[kMaxRanges];
};
static_assert(sizeof(RangeList) <= 32000);

__device__ void CopyBytes(const uint8_t* from, uint8_t* to, size_t bytes, size_t thread,
                          size_t threads) {
  for (size_t i = thread; i < bytes; i += threads) to[i] = from[i];
}

// One range per blockIdx.x, divided among gridDim.y CTAs.
__global__ void __launch_bounds__(kThreads)
    RangeCopyKernel(const __grid_constant__ RangeList list, const uint8_t* source,
                    uint8_t* target) {
  const CopyRange range = list.ranges[blockIdx.x];
  const uint8_t* from = source + range.source_offset;
  uint8_t* to = target + range.target_offset;
  const size_t threads = static_cast<size_t>(kThreads) * gridDim.y;
  const size_t thread = static_cast<size_t>(blockIdx.y) * kThreads + threadIdx.x;
  if ((reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) % 16 != 0)
    return CopyBytes(from, to, range.bytes, thread, threads);
  const size_t words = range.bytes / 16;
  const uint4* from16 = reinterpret_cast<const uint4*>(from);
  uint4* to16 = reinterpret_cast<uint4*>(to);
  size_t i = thread;
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

constexpr int kSmallThreads = 128;  // few enough to run beside any kernel
constexpr int kSmallWords = kSmallCopyBytes / 16 / kSmallThreads;

// One round trip over PCIe, with all words in flight.
__global__ void __launch_bounds__(kSmallThreads)
    SmallCopyKernel(const uint8_t* source, uint8_t* target, uint32_t bytes) {
  const uint32_t words = bytes / 16;
  const auto* from = reinterpret_cast<const int4*>(source);
  int4 v[kSmallWords];
#pragma unroll
  for (int k = 0; k < kSmallWords; ++k) {
    const uint32_t i = k * kSmallThreads + threadIdx.x;
    if (i < words) v[k] = __ldcv(from + i);  // the host writes it between launches
  }
  const uint32_t rest = words * 16 + threadIdx.x;
  if (rest < bytes) target[rest] = __ldcv(source + rest);
#pragma unroll
  for (int k = 0; k < kSmallWords; ++k) {
    const uint32_t i = k * kSmallThreads + threadIdx.x;
    if (i < words) reinterpret_cast<int4*>(target)[i] = v[k];
  }
  // A later kernel may read before it has waited: the data must be visible when this kernel has
  // ended.
  __threadfence();
}

}  // namespace

cudaError_t LaunchSmallCopy(void* target, const void* source, size_t bytes, cudaStream_t stream) {
  const bool aligned =
      (reinterpret_cast<uintptr_t>(source) | reinterpret_cast<uintptr_t>(target)) % 16 == 0;
  if (!aligned || bytes > kSmallCopyBytes) return cudaErrorInvalidValue;
  SmallCopyKernel<<<1, kSmallThreads, 0, stream>>>(static_cast<const uint8_t*>(source),
                                                   static_cast<uint8_t*>(target),
                                                   static_cast<uint32_t>(bytes));
  return cudaGetLastError();
}

cudaError_t LaunchRangeCopy(void* target, const void* source, std::span<const CopyRange> ranges,
                            cudaStream_t stream) {
  while (!ranges.empty()) {
    const size_t count = std::min(ranges.size(), kMaxRanges);
    RangeList list;
    std::copy_n(ranges.begin(), count, list.ranges);
    size_t longest = 0;
    for (size_t i = 0; i < count; ++i) longest = std::max(longest, list.ranges[i].bytes);
    const size_t slices =
        std::clamp<size_t>((longest + kBytesPerCta - 1) / kBytesPerCta, 1, kMaxSlices);
    const dim3 grid(static_cast<uint32_t>(count), static_cast<uint32_t>(slices));
    RangeCopyKernel<<<grid, kThreads, 0, stream>>>(list, static_cast<const uint8_t*>(source),
                                                   static_cast<uint8_t*>(target));
    if (const cudaError_t launched = cudaGetLastError(); launched != cudaSuccess) return launched;
    ranges = ranges.subspan(count);
  }
  return cudaSuccess;
}

}  // namespace aisp::cuda
