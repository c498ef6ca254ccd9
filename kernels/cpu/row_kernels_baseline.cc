#define AISP_LANES 4
#define AISP_ISA baseline
#include "kernels/cpu/row_kernels_impl.h"

#include "kernels/cpu/row_attention_impl.h"

namespace aisp {
namespace {

constexpr RowKernels kTable = {
    "baseline",           &baseline::RmsNorm, &baseline::SiluMul,     &baseline::RotateHalf,
    &baseline::AddScaled, &baseline::ToBf16,  &baseline::FromBf16Row, &baseline::Attend,
};

}  // namespace

const RowKernels& BaselineRowKernels() { return kTable; }

const RowKernels& BestRowKernels() {
  if (const RowKernels* k = Avx512RowKernels()) return *k;
  if (const RowKernels* k = Avx2RowKernels()) return *k;
  return kTable;
}

}  // namespace aisp
