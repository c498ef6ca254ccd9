// PanelKernels: the inner loops of matrix products, one table for each instruction set. A weight
// lies in panels: `columns` outputs side by side, unit by unit. A unit of f32 is one input, a unit
// of bf16 two neighbouring ones.
//
// Every output is one chain of sums over the units in ascending order, whatever the number of rows,
// its place among them and the split over calls: that makes rows independent of the batch.
// Pure functions over caller's memory: any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aisp {

inline constexpr int64_t kPanelUnitBytes = 4;

// y[r][c] += sum over `units` of x[r] * w[c], for all columns of `panels` panels.
struct PanelTask {
  const std::byte* x = nullptr;  // first unit of the first row
  int64_t x_stride = 0;          // bytes from row to row
  const std::byte* w = nullptr;  // first unit of the first panel; aligned to 64
  int64_t panel_stride = 0;      // bytes from panel to panel
  float* y = nullptr;
  int64_t y_stride = 0;  // floats from row to row
  int64_t rows = 0;
  int64_t units = 0;
  int64_t panels = 0;
  int64_t columns = 0;  // of y that exist; the last panel may be wider than that
};

struct PanelKernels {
  const char* isa;
  int64_t columns;  // of a panel
  void (*f32)(const PanelTask& task);
  void (*bf16)(const PanelTask& task);  // null where this CPU has no products of bf16
};

// nullptr where this CPU cannot run it.
const PanelKernels* Avx512Bf16PanelKernels();
const PanelKernels* Avx512PanelKernels();
const PanelKernels* Avx2PanelKernels();
const PanelKernels& BaselinePanelKernels();

// The widest that this CPU can run.
const PanelKernels& BestPanelKernels();

}  // namespace aisp
