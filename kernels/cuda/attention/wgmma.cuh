// Warpgroup matrix products (wgmma) with bf16 or f16 operands and f32 sums, and descriptors of
// operands in shared memory. An operand is stored in rows of 128 bytes, in the copy engine's
// 128-byte swizzle, in columns of 64 elements.
#pragma once

#include <cstdint>

namespace aisp::cuda::wgmma {

// Rows are rows of the operand (K is contiguous): groups of 8 rows are contiguous.
__device__ __forceinline__ uint64_t RowsDescriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | (1ULL << 16) | (64ULL << 32) |
         (1ULL << 62);
}
// Rows run along the contracted dimension (V: keys); columns of 64 elements are `column_bytes`
// apart.
__device__ __forceinline__ uint64_t ColumnsDescriptor(uint32_t address, uint32_t column_bytes) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) |
         (static_cast<uint64_t>(column_bytes >> 4) << 16) | (64ULL << 32) | (1ULL << 62);
}
// The same operand, `bytes` further.
__device__ __forceinline__ uint64_t Plus(uint64_t descriptor, uint32_t bytes) {
  return (descriptor & 0xffffffff00000000ULL) | (static_cast<uint32_t>(descriptor) + (bytes >> 4));
}

// Keeps the compiler from moving uses of registers that an asynchronous product reads or writes.
template <int kCount>
__device__ __forceinline__ void Pin(float (&r)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(r[i])::"memory");
}

// The sums' registers as named in an instruction and as passed to asm.
// clang-format off
#define AISP_NAMES32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define AISP_NAMES64 \
  AISP_NAMES32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define AISP_NAMES128 \
  AISP_NAMES64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define AISP_SUMS8(d, i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define AISP_SUMS32(d, i) \
  AISP_SUMS8(d, i), AISP_SUMS8(d, i + 8), AISP_SUMS8(d, i + 16), AISP_SUMS8(d, i + 24)
#define AISP_SUMS64(d) AISP_SUMS32(d, 0), AISP_SUMS32(d, 32)
#define AISP_SUMS128(d) AISP_SUMS64(d), AISP_SUMS32(d, 64), AISP_SUMS32(d, 96)
// d[64 x n] (+)= a[64 x 16] b with a in registers. The numbers are operand indices.
#define AISP_PRODUCT(n, type, names, sums, a0, a1, a2, a3, b_at, add_at, columns_at) \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" add_at ", 0;\n" \
      "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" names "}, " \
      "{%" a0 ", %" a1 ", %" a2 ", %" a3 "}, %" b_at ", p, 1, 1, %" columns_at ";\n}" \
      : sums : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kInColumns ? 1 : 0))
// The same with a and b in shared memory, in rows.
#define AISP_PRODUCT_SHARED(n, type, names, sums, a_at, b_at, add_at) \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" add_at ", 0;\n" \
      "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" names "}, " \
      "%" a_at ", %" b_at ", p, 1, 1, 0, 0;\n}" : sums : "l"(a), "l"(b), "r"(add))
// clang-format on

// d[64 x 64, 128 or 256] (+)= a[64 x 16] b[16 x as many]; a in registers, b in columns or rows;
// kHalf: f16, else bf16. `add` false: the sums start from zero.
template <bool kHalf, bool kInColumns>
__device__ __forceinline__ void Product(float (&d)[32], const uint32_t (&a)[4], uint64_t b,
                                        int add) {
  if constexpr (kHalf) {
    AISP_PRODUCT("64", "f16", AISP_NAMES32, AISP_SUMS32(d, 0), "32", "33", "34", "35", "36", "37",
                 "38");
  } else {
    AISP_PRODUCT("64", "bf16", AISP_NAMES32, AISP_SUMS32(d, 0), "32", "33", "34", "35", "36", "37",
                 "38");
  }
}
template <bool kHalf, bool kInColumns>
__device__ __forceinline__ void Product(float (&d)[64], const uint32_t (&a)[4], uint64_t b,
                                        int add) {
  if constexpr (kHalf) {
    AISP_PRODUCT("128", "f16", AISP_NAMES64, AISP_SUMS64(d), "64", "65", "66", "67", "68", "69",
                 "70");
  } else {
    AISP_PRODUCT("128", "bf16", AISP_NAMES64, AISP_SUMS64(d), "64", "65", "66", "67", "68", "69",
                 "70");
  }
}
template <bool kHalf, bool kInColumns>
__device__ __forceinline__ void Product(float (&d)[128], const uint32_t (&a)[4], uint64_t b,
                                        int add) {
  if constexpr (kHalf) {
    AISP_PRODUCT("256", "f16", AISP_NAMES128, AISP_SUMS128(d), "128", "129", "130", "131", "132",
                 "133", "134");
  } else {
    AISP_PRODUCT("256", "bf16", AISP_NAMES128, AISP_SUMS128(d), "128", "129", "130", "131", "132",
                 "133", "134");
  }
}
// d[64 x 64 or 128] (+)= a[64 x 16] b[as many x 16]^T, both in shared memory, in rows.
template <bool kHalf>
__device__ __forceinline__ void Product(float (&d)[32], uint64_t a, uint64_t b, int add) {
  if constexpr (kHalf) {
    AISP_PRODUCT_SHARED("64", "f16", AISP_NAMES32, AISP_SUMS32(d, 0), "32", "33", "34");
  } else {
    AISP_PRODUCT_SHARED("64", "bf16", AISP_NAMES32, AISP_SUMS32(d, 0), "32", "33", "34");
  }
}
template <bool kHalf>
__device__ __forceinline__ void Product(float (&d)[64], uint64_t a, uint64_t b, int add) {
  if constexpr (kHalf) {
    AISP_PRODUCT_SHARED("128", "f16", AISP_NAMES64, AISP_SUMS64(d), "64", "65", "66");
  } else {
    AISP_PRODUCT_SHARED("128", "bf16", AISP_NAMES64, AISP_SUMS64(d), "64", "65", "66");
  }
}

#undef AISP_NAMES32
#undef AISP_NAMES64
#undef AISP_NAMES128
#undef AISP_SUMS8
#undef AISP_SUMS32
#undef AISP_SUMS64
#undef AISP_SUMS128
#undef AISP_PRODUCT
#undef AISP_PRODUCT_SHARED

}  // namespace aisp::cuda::wgmma
