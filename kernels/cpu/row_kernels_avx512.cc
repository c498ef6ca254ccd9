#define AISP_LANES 16
#define AISP_ISA avx512
#include "kernels/cpu/row_kernels_impl.h"

#include "kernels/cpu/row_attention_impl.h"

namespace aisp {
namespace {

constexpr RowKernels kTable = {
    "avx512",           &avx512::RmsNorm, &avx512::SiluMul,     &avx512::RotateHalf,
    &avx512::AddScaled, &avx512::ToBf16,  &avx512::FromBf16Row, &avx512::Attend,
};

}  // namespace

const RowKernels* Avx512RowKernels() {
  const bool supported = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return supported ? &kTable : nullptr;
}

}  // namespace aisp
