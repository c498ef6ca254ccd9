#include <immintrin.h>

#define AISP_LANES 16
#define AISP_ISA avx512_bf16
#include "kernels/cpu/linear_kernels_impl.h"

namespace aisp {
namespace {

// Two products and two additions in one instruction.
struct Bf16Pair {
  typedef avx512_bf16::V V;
  static inline __attribute__((always_inline)) V Splat(const std::byte* x) {
    int32_t pair;
    __builtin_memcpy(&pair, x, sizeof(pair));
    return (V)_mm512_set1_epi32(pair);
  }
  static inline __attribute__((always_inline)) V Add(V sum, V x, V w) {
    return (V)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)w);
  }
};

constexpr PanelKernels kTable = {"avx512_bf16", avx512_bf16::kColumns,
                                 &avx512_bf16::Multiply<avx512_bf16::F32Unit>,
                                 &avx512_bf16::Multiply<Bf16Pair>};

}  // namespace

const PanelKernels* Avx512Bf16PanelKernels() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16") ? &kTable
                                                                                   : nullptr;
}

}  // namespace aisp
