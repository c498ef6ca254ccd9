// PanelKernels: the inner loops of matrix products, one table per instruction set. Weights are
// stored in panels: `columns` outputs side by side, unit by unit. A unit is one input in f32, or
// two neighbouring inputs in bf16.
//
// Every output is one sum over the units in ascending order, for any number of rows, position of
// the row and split over calls. So rows do not depend on the batch. Pure functions over the
// caller's memory: any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aisp {

inline constexpr int64_t kPanelUnitBytes = 4;

// y[r][c] += sum over `units` of x[r] * w[c], for all columns of `panels` panels.
struct PanelTask {
  const std::byte* x = nullptr;  // first unit of the first row
  int64_t x_stride = 0;          // bytes between rows
  const std::byte* w = nullptr;  // first unit of the first panel; 64-byte aligned
  int64_t panel_stride = 0;      // bytes between panels
  float* y = nullptr;
  int64_t y_stride = 0;  // floats between rows
  int64_t rows = 0;
  int64_t units = 0;
  int64_t panels = 0;
  int64_t columns = 0;  // columns of y; the last panel may be wider
};

struct PanelKernels {
  const char* isa;
  int64_t columns;  // per panel
  void (*f32)(const PanelTask& task);
  void (*bf16)(const PanelTask& task);  // null if this CPU has no bf16 products
};

// nullptr if this CPU cannot run it.
const PanelKernels* Avx512Bf16PanelKernels();
const PanelKernels* Avx512PanelKernels();
const PanelKernels* Avx2PanelKernels();
const PanelKernels& BaselinePanelKernels();

// The widest table that this CPU can run.
const PanelKernels& BestPanelKernels();

}  // namespace aisp
