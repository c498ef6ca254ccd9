#define AISP_LANES 16
#define AISP_ISA avx512
#include "kernels/cpu/linear_kernels_impl.h"

namespace aisp {
namespace {

constexpr PanelKernels kTable = {"avx512", avx512::kColumns, &avx512::Multiply<avx512::F32Unit>,
                                 nullptr};

}  // namespace

const PanelKernels* Avx512PanelKernels() {
  return __builtin_cpu_supports("avx512f") ? &kTable : nullptr;
}

}  // namespace aisp
