// Relaxed loads and stores of memory that other multiprocessors access at the same time: words are
// atomic, nothing is ordered.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/token_slots.h"

namespace aisp::cuda {

__device__ __forceinline__ void StoreRelaxed(void* to, uint4 v) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void StoreRelaxed(void* to, uint2 v) {
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(v.x), "r"(v.y)
               : "memory");
}
__device__ __forceinline__ void StoreRelaxed(void* to, uint32_t v) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}
__device__ __forceinline__ uint4 LoadRelaxed(const void* from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ uint32_t LoadRelaxed32(const void* from) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}
// Whether one of the words is not written yet (token_slots.h).
__device__ __forceinline__ bool HasEmptySlot(const uint4& v) {
  return v.x == kTokenEmpty || v.y == kTokenEmpty || v.z == kTokenEmpty || v.w == kTokenEmpty;
}

}  // namespace aisp::cuda
