// The wide products of the kernels for many rows: d[64 x kTokens] += A[64 x 16 or 32] B (wgmma.cuh
// describes the register layout of d).
//
// One thin function each; `keep` 0 starts a new sum.
#pragma once

#include <cstdint>

namespace aisp::cuda {

// clang-format off
#define AISP_SUMS8(i)                                                                              \
  "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]),              \
      "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define AISP_SUMS16(i) AISP_SUMS8(i), AISP_SUMS8((i) + 8)
#define AISP_SUMS32(i) AISP_SUMS16(i), AISP_SUMS16((i) + 16)
#define AISP_REGS0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define AISP_REGS16 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define AISP_REGS32 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define AISP_REGS48 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define AISP_REGS64 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define AISP_REGS80 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define AISP_REGS96 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define AISP_REGS112 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
// clang-format on

template <int kTokens>
struct WideWgmma;

template <>
struct WideWgmma<64> {
  // bf16, both operands in shared memory, 16 of K.
  static __device__ __forceinline__ void Bf16(float (&d)[32], uint64_t a, uint64_t b, int keep) {
    asm volatile(
        "{.reg .pred p;setp.ne.b32 p, %34, 0;"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" AISP_REGS0 ", " AISP_REGS16
        "}, %32, %33, p, 1, 1, 0, 0;}"
        : AISP_SUMS32(0)
        : "l"(a), "l"(b), "r"(keep));
  }
  // bf16, A in registers, 16 of K.
  static __device__ __forceinline__ void Bf16(float (&d)[32], const uint32_t (&a)[4], uint64_t b,
                                              int keep) {
    asm volatile(
        "{.reg .pred p;setp.ne.b32 p, %37, 0;"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" AISP_REGS0 ", " AISP_REGS16
        "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;}"
        : AISP_SUMS32(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
  }
  // e4m3, both operands in shared memory, 32 of K.
  static __device__ __forceinline__ void Fp8(float (&d)[32], uint64_t a, uint64_t b, int keep) {
    asm volatile(
        "{.reg .pred p;setp.ne.b32 p, %34, 0;"
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" AISP_REGS0 ", " AISP_REGS16
        "}, %32, %33, p, 1, 1;}"
        : AISP_SUMS32(0)
        : "l"(a), "l"(b), "r"(keep));
  }
};

template <>
struct WideWgmma<96> {
  // bf16, both operands in shared memory, 16 of K.
  static __device__ __forceinline__ void Bf16(float (&d)[48], uint64_t a, uint64_t b, int keep) {
    asm volatile(
        "{.reg .pred p;setp.ne.b32 p, %50, 0;"
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" AISP_REGS0 ", " AISP_REGS16
        ", " AISP_REGS32 "}, %48, %49, p, 1, 1, 0, 0;}"
        : AISP_SUMS32(0), AISP_SUMS16(32)
        : "l"(a), "l"(b), "r"(keep));
  }
  // bf16, A in registers, 16 of K.
  static __device__ __forceinline__ void Bf16(float (&d)[48], const uint32_t (&a)[4], uint64_t b,
                                              int keep) {
    asm volatile(
        "{.reg .pred p;setp.ne.b32 p, %53, 0;"
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" AISP_REGS0 ", " AISP_REGS16
        ", " AISP_REGS32 "}, {%48, %49, %50, %51}, %52, p, 1, 1, 0;}"
        : AISP_SUMS32(0), AISP_SUMS16(32)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
  }
  // e4m3, both operands in shared memory, 32 of K.
  static __device__ __forceinline__ void Fp8(float (&d)[48], uint64_t a, uint64_t b, int keep) {
    asm volatile(
        "{.reg .pred p;setp.ne.b32 p, %50, 0;"
        "wgmma.mma_async.sync.aligned.m64n96k32.f32.e4m3.e4m3 {" AISP_REGS0 ", " AISP_REGS16
        ", " AISP_REGS32 "}, %48, %49, p, 1, 1;}"
        : AISP_SUMS32(0), AISP_SUMS16(32)
        : "l"(a), "l"(b), "r"(keep));
  }
};

template <>
struct WideWgmma<128> {
  // bf16, both operands in shared memory, 16 of K.
  static __device__ __forceinline__ void Bf16(float (&d)[64], uint64_t a, uint64_t b, int keep) {
    asm volatile(
        "{.reg .pred p;setp.ne.b32 p, %66, 0;"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" AISP_REGS0 ", " AISP_REGS16
        ", " AISP_REGS32 ", " AISP_REGS48 "}, %64, %65, p, 1, 1, 0, 0;}"
        : AISP_SUMS32(0), AISP_SUMS32(32)
        : "l"(a), "l"(b), "r"(keep));
  }
  // bf16, A in registers, 16 of K.
  static __device__ __forceinline__ void Bf16(float (&d)[64], const uint32_t (&a)[4], uint64_t b,
                                              int keep) {
    asm volatile(
        "{.reg .pred p;setp.ne.b32 p, %69, 0;"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" AISP_REGS0 ", " AISP_REGS16
        ", " AISP_REGS32 ", " AISP_REGS48 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;}"
        : AISP_SUMS32(0), AISP_SUMS32(32)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
  }
  // e4m3, both operands in shared memory, 32 of K.
  static __device__ __forceinline__ void Fp8(float (&d)[64], uint64_t a, uint64_t b, int keep) {
    asm volatile(
        "{.reg .pred p;setp.ne.b32 p, %66, 0;"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" AISP_REGS0 ", " AISP_REGS16
        ", " AISP_REGS32 ", " AISP_REGS48 "}, %64, %65, p, 1, 1;}"
        : AISP_SUMS32(0), AISP_SUMS32(32)
        : "l"(a), "l"(b), "r"(keep));
  }
};

template <>
struct WideWgmma<160> {
  // bf16, both operands in shared memory, 16 of K.
  static __device__ __forceinline__ void Bf16(float (&d)[80], uint64_t a, uint64_t b, int keep) {
    asm volatile(
        "{.reg .pred p;setp.ne.b32 p, %82, 0;"
        "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 {" AISP_REGS0 ", " AISP_REGS16
        ", " AISP_REGS32 ", " AISP_REGS48 ", " AISP_REGS64 "}, %80, %81, p, 1, 1, 0, 0;}"
        : AISP_SUMS32(0), AISP_SUMS32(32), AISP_SUMS16(64)
        : "l"(a), "l"(b), "r"(keep));
  }
  // bf16, A in registers, 16 of K.
  static __device__ __forceinline__ void Bf16(float (&d)[80], const uint32_t (&a)[4], uint64_t b,
                                              int keep) {
    asm volatile(
        "{.reg .pred p;setp.ne.b32 p, %85, 0;"
        "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 {" AISP_REGS0 ", " AISP_REGS16
        ", " AISP_REGS32 ", " AISP_REGS48 ", " AISP_REGS64
        "}, {%80, %81, %82, %83}, %84, p, 1, 1, 0;}"
        : AISP_SUMS32(0), AISP_SUMS32(32), AISP_SUMS16(64)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
  }
  // e4m3, both operands in shared memory, 32 of K.
  static __device__ __forceinline__ void Fp8(float (&d)[80], uint64_t a, uint64_t b, int keep) {
    asm volatile(
        "{.reg .pred p;setp.ne.b32 p, %82, 0;"
        "wgmma.mma_async.sync.aligned.m64n160k32.f32.e4m3.e4m3 {" AISP_REGS0 ", " AISP_REGS16
        ", " AISP_REGS32 ", " AISP_REGS48 ", " AISP_REGS64 "}, %80, %81, p, 1, 1;}"
        : AISP_SUMS32(0), AISP_SUMS32(32), AISP_SUMS16(64)
        : "l"(a), "l"(b), "r"(keep));
  }
};

template <>
struct WideWgmma<192> {
  // bf16, both operands in shared memory, 16 of K.
  static __device__ __forceinline__ void Bf16(float (&d)[96], uint64_t a, uint64_t b, int keep) {
    asm volatile(
        "{.reg .pred p;setp.ne.b32 p, %98, 0;"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" AISP_REGS0 ", " AISP_REGS16
        ", " AISP_REGS32 ", " AISP_REGS48 ", " AISP_REGS64 ", " AISP_REGS80
        "}, %96, %97, p, 1, 1, 0, 0;}"
        : AISP_SUMS32(0), AISP_SUMS32(32), AISP_SUMS32(64)
        : "l"(a), "l"(b), "r"(keep));
  }
  // bf16, A in registers, 16 of K.
  static __device__ __forceinline__ void Bf16(float (&d)[96], const uint32_t (&a)[4], uint64_t b,
                                              int keep) {
    asm volatile(
        "{.reg .pred p;setp.ne.b32 p, %101, 0;"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" AISP_REGS0 ", " AISP_REGS16
        ", " AISP_REGS32 ", " AISP_REGS48 ", " AISP_REGS64 ", " AISP_REGS80
        "}, {%96, %97, %98, %99}, %100, p, 1, 1, 0;}"
        : AISP_SUMS32(0), AISP_SUMS32(32), AISP_SUMS32(64)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
  }
  // e4m3, both operands in shared memory, 32 of K.
  static __device__ __forceinline__ void Fp8(float (&d)[96], uint64_t a, uint64_t b, int keep) {
    asm volatile(
        "{.reg .pred p;setp.ne.b32 p, %98, 0;"
        "wgmma.mma_async.sync.aligned.m64n192k32.f32.e4m3.e4m3 {" AISP_REGS0 ", " AISP_REGS16
        ", " AISP_REGS32 ", " AISP_REGS48 ", " AISP_REGS64 ", " AISP_REGS80 "}, %96, %97, p, 1, 1;}"
        : AISP_SUMS32(0), AISP_SUMS32(32), AISP_SUMS32(64)
        : "l"(a), "l"(b), "r"(keep));
  }
};

template <>
struct WideWgmma<224> {
  // bf16, both operands in shared memory, 16 of K.
  static __device__ __forceinline__ void Bf16(float (&d)[112], uint64_t a, uint64_t b, int keep) {
    asm volatile(
        "{.reg .pred p;setp.ne.b32 p, %114, 0;"
        "wgmma.mma_async.sync.aligned.m64n224k16.f32.bf16.bf16 {" AISP_REGS0 ", " AISP_REGS16
        ", " AISP_REGS32 ", " AISP_REGS48 ", " AISP_REGS64 ", " AISP_REGS80 ", " AISP_REGS96
        "}, %112, %113, p, 1, 1, 0, 0;}"
        : AISP_SUMS32(0), AISP_SUMS32(32), AISP_SUMS32(64), AISP_SUMS16(96)
        : "l"(a), "l"(b), "r"(keep));
  }
  // bf16, A in registers, 16 of K.
  static __device__ __forceinline__ void Bf16(float (&d)[112], const uint32_t (&a)[4], uint64_t b,
                                              int keep) {
    asm volatile(
        "{.reg .pred p;setp.ne.b32 p, %117, 0;"
        "wgmma.mma_async.sync.aligned.m64n224k16.f32.bf16.bf16 {" AISP_REGS0 ", " AISP_REGS16
        ", " AISP_REGS32 ", " AISP_REGS48 ", " AISP_REGS64 ", " AISP_REGS80 ", " AISP_REGS96
        "}, {%112, %113, %114, %115}, %116, p, 1, 1, 0;}"
        : AISP_SUMS32(0), AISP_SUMS32(32), AISP_SUMS32(64), AISP_SUMS16(96)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
  }
  // e4m3, both operands in shared memory, 32 of K.
  static __device__ __forceinline__ void Fp8(float (&d)[112], uint64_t a, uint64_t b, int keep) {
    asm volatile(
        "{.reg .pred p;setp.ne.b32 p, %114, 0;"
        "wgmma.mma_async.sync.aligned.m64n224k32.f32.e4m3.e4m3 {" AISP_REGS0 ", " AISP_REGS16
        ", " AISP_REGS32 ", " AISP_REGS48 ", " AISP_REGS64 ", " AISP_REGS80 ", " AISP_REGS96
        "}, %112, %113, p, 1, 1;}"
        : AISP_SUMS32(0), AISP_SUMS32(32), AISP_SUMS32(64), AISP_SUMS16(96)
        : "l"(a), "l"(b), "r"(keep));
  }
};

template <>
struct WideWgmma<256> {
  // bf16, both operands in shared memory, 16 of K.
  static __device__ __forceinline__ void Bf16(float (&d)[128], uint64_t a, uint64_t b, int keep) {
    asm volatile(
        "{.reg .pred p;setp.ne.b32 p, %130, 0;"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" AISP_REGS0 ", " AISP_REGS16
        ", " AISP_REGS32 ", " AISP_REGS48 ", " AISP_REGS64 ", " AISP_REGS80 ", " AISP_REGS96
        ", " AISP_REGS112 "}, %128, %129, p, 1, 1, 0, 0;}"
        : AISP_SUMS32(0), AISP_SUMS32(32), AISP_SUMS32(64), AISP_SUMS32(96)
        : "l"(a), "l"(b), "r"(keep));
  }
  // bf16, A in registers, 16 of K.
  static __device__ __forceinline__ void Bf16(float (&d)[128], const uint32_t (&a)[4], uint64_t b,
                                              int keep) {
    asm volatile(
        "{.reg .pred p;setp.ne.b32 p, %133, 0;"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" AISP_REGS0 ", " AISP_REGS16
        ", " AISP_REGS32 ", " AISP_REGS48 ", " AISP_REGS64 ", " AISP_REGS80 ", " AISP_REGS96
        ", " AISP_REGS112 "}, {%128, %129, %130, %131}, %132, p, 1, 1, 0;}"
        : AISP_SUMS32(0), AISP_SUMS32(32), AISP_SUMS32(64), AISP_SUMS32(96)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
  }
  // e4m3, both operands in shared memory, 32 of K.
  static __device__ __forceinline__ void Fp8(float (&d)[128], uint64_t a, uint64_t b, int keep) {
    asm volatile(
        "{.reg .pred p;setp.ne.b32 p, %130, 0;"
        "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 {" AISP_REGS0 ", " AISP_REGS16
        ", " AISP_REGS32 ", " AISP_REGS48 ", " AISP_REGS64 ", " AISP_REGS80 ", " AISP_REGS96
        ", " AISP_REGS112 "}, %128, %129, p, 1, 1;}"
        : AISP_SUMS32(0), AISP_SUMS32(32), AISP_SUMS32(64), AISP_SUMS32(96)
        : "l"(a), "l"(b), "r"(keep));
  }
};

#undef AISP_SUMS8
#undef AISP_SUMS16
#undef AISP_SUMS32
#undef AISP_REGS0
#undef AISP_REGS16
#undef AISP_REGS32
#undef AISP_REGS48
#undef AISP_REGS64
#undef AISP_REGS80
#undef AISP_REGS96
#undef AISP_REGS112

}  // namespace aisp::cuda
