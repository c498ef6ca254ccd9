#define AISP_LANES 8
#define AISP_ISA avx2
#include "kernels/cpu/linear_kernels_impl.h"

namespace aisp {
namespace {

constexpr PanelKernels kTable = {"avx2", avx2::kColumns, &avx2::Multiply<avx2::F32Unit>, nullptr};

}  // namespace

const PanelKernels* Avx2PanelKernels() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kTable : nullptr;
}

}  // namespace aisp
