// Decode attention in one launch: the slots in which CTAs publish parts of an item to each other
// (fused.cuh).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/poll.cuh"
#include "kernels/cuda/relaxed.cuh"

namespace aisp::cuda::fused {

__device__ __forceinline__ uint32_t NotEmpty(uint32_t bits) {
  return bits == 0xffffffffu ? 0x7fffffffu : bits;
}
__device__ __forceinline__ void StorePart(float4* to, float4 v) {
  asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to),
               "r"(NotEmpty(__float_as_uint(v.x))), "r"(NotEmpty(__float_as_uint(v.y))),
               "r"(NotEmpty(__float_as_uint(v.z))), "r"(NotEmpty(__float_as_uint(v.w)))
               : "memory");
}
__device__ __forceinline__ void StorePart(float2* to, float2 v) {
  asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};" ::"l"(to),
               "r"(NotEmpty(__float_as_uint(v.x))), "r"(NotEmpty(__float_as_uint(v.y)))
               : "memory");
}
// Loads if `there`; otherwise `v` is unchanged.
__device__ __forceinline__ void LoadPart(bool there, const float4* from, float4& v) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
      "@p ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
      : "+f"(v.x), "+f"(v.y), "+f"(v.z), "+f"(v.w)
      : "l"(from), "r"(static_cast<int>(there))
      : "memory");
}
__device__ __forceinline__ void LoadPart(bool there, const float2* from, float2& v) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n"
      "@p ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];\n}"
      : "+f"(v.x), "+f"(v.y)
      : "l"(from), "r"(static_cast<int>(there))
      : "memory");
}
// All ones if a slot is empty.
__device__ __forceinline__ uint32_t Emptiest(float2 v) {
  return max(__float_as_uint(v.x), __float_as_uint(v.y));
}
__device__ __forceinline__ uint32_t Emptiest(float4 v) {
  return max(max(__float_as_uint(v.x), __float_as_uint(v.y)),
             max(__float_as_uint(v.z), __float_as_uint(v.w)));
}

}  // namespace aisp::cuda::fused
