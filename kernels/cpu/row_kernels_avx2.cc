#define AISP_LANES 8
#define AISP_ISA avx2
#include "kernels/cpu/row_kernels_impl.h"

#include "kernels/cpu/row_attention_impl.h"

namespace aisp {
namespace {

constexpr RowKernels kTable = {
    "avx2",           &avx2::RmsNorm, &avx2::SiluMul,     &avx2::RotateHalf,
    &avx2::AddScaled, &avx2::ToBf16,  &avx2::FromBf16Row, &avx2::Attend,
};

}  // namespace

const RowKernels* Avx2RowKernels() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kTable : nullptr;
}

}  // namespace aisp
