#define AISP_LANES 4
#define AISP_ISA baseline
#include "kernels/cpu/linear_kernels_impl.h"

namespace aisp {
namespace {

constexpr PanelKernels kTable = {"baseline", baseline::kColumns,
                                 &baseline::Multiply<baseline::F32Unit>, nullptr};

}  // namespace

const PanelKernels& BaselinePanelKernels() { return kTable; }

const PanelKernels& BestPanelKernels() {
  if (const PanelKernels* k = Avx512Bf16PanelKernels()) return *k;
  if (const PanelKernels* k = Avx512PanelKernels()) return *k;
  if (const PanelKernels* k = Avx2PanelKernels()) return *k;
  return kTable;
}

}  // namespace aisp
