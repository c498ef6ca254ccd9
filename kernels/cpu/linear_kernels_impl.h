// The body of the PanelKernels tables: included once by each linear_kernels_<isa>.cc, which is
// compiled for its instruction set and defines AISP_LANES (floats in a vector: 4, 8, 16), AISP_ISA
// (a namespace). Internal linkage only, as in row_kernels_impl.h and for the same reason.

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/linear_kernels.h"

namespace aisp {
namespace {
namespace AISP_ISA {

typedef float V __attribute__((vector_size(4 * AISP_LANES)));

// Sums of 6 rows of a panel, its vectors and one input fill the registers: 32 of AVX-512, else 16.
constexpr int kPanelVectors = AISP_LANES == 16 ? 4 : 2;
constexpr int64_t kColumns = kPanelVectors * AISP_LANES;
constexpr int64_t kTileRows = 6;
// Few rows take several panels at once, so that enough sums are under way.
constexpr int kPanelsOfOneRow = AISP_LANES == 16 ? 2 : 4;
constexpr int kPanelsOfTwoRows = 2;

inline __attribute__((always_inline)) V Load(const void* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
inline __attribute__((always_inline)) void Store(float* p, V v) {
  __builtin_memcpy(p, &v, sizeof(v));
}

struct F32Unit {
  static inline __attribute__((always_inline)) V Splat(const std::byte* x) {
    float f;
    __builtin_memcpy(&f, x, sizeof(f));
    return f - V{};  // minus nothing is no instruction; plus would be one, for the zeros' signs
  }
  static inline __attribute__((always_inline)) V Add(V sum, V x, V w) { return sum + x * w; }
};

// kRows rows of kPanels panels; all loops but that over units are unrolled.
template <typename Unit, int kRows, int kPanels>
inline __attribute__((always_inline)) void Tile(const PanelTask& t, const std::byte* x,
                                                const std::byte* w, float* y, int64_t y_stride) {
  constexpr int kVectors = kPanels * kPanelVectors;
  V sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[r][v] = Load(y + r * y_stride + v * AISP_LANES);
  }
  for (int64_t u = 0; u < t.units; ++u) {
    V weights[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      weights[v] = Load(w + v / kPanelVectors * t.panel_stride +
                        static_cast<int64_t>(v % kPanelVectors) * static_cast<int64_t>(sizeof(V)));
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const V input = Unit::Splat(x + r * t.x_stride);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[r][v] = Unit::Add(sums[r][v], input, weights[v]);
    }
    w += kColumns * kPanelUnitBytes;
    x += kPanelUnitBytes;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) Store(y + r * y_stride + v * AISP_LANES, sums[r][v]);
  }
}

template <typename Unit>
void OnePanelTile(const PanelTask& t, const std::byte* x, const std::byte* w, float* y,
                  int64_t y_stride, int64_t rows) {
  switch (rows) {
    case 1:
      return Tile<Unit, 1, 1>(t, x, w, y, y_stride);
    case 2:
      return Tile<Unit, 2, 1>(t, x, w, y, y_stride);
    case 3:
      return Tile<Unit, 3, 1>(t, x, w, y, y_stride);
    case 4:
      return Tile<Unit, 4, 1>(t, x, w, y, y_stride);
    case 5:
      return Tile<Unit, 5, 1>(t, x, w, y, y_stride);
    default:
      return Tile<Unit, 6, 1>(t, x, w, y, y_stride);
  }
}

// One panel and all rows, of which `columns` columns exist in y.
template <typename Unit>
void Panel(const PanelTask& t, const std::byte* w, float* y, int64_t columns) {
  const int64_t tiles = (t.rows + kTileRows - 1) / kTileRows;
  const int64_t height = (t.rows + tiles - 1) / tiles;
  for (int64_t row = 0; row < t.rows; row += height) {
    const int64_t rows = t.rows - row < height ? t.rows - row : height;
    const std::byte* x = t.x + row * t.x_stride;
    float* to = y + row * t.y_stride;
    if (columns >= kColumns) {
      OnePanelTile<Unit>(t, x, w, to, t.y_stride, rows);
      continue;
    }
    float edge[kTileRows * kColumns] = {};
    for (int64_t i = 0; i < rows * columns; ++i)
      edge[i / columns * kColumns + i % columns] = to[i / columns * t.y_stride + i % columns];
    OnePanelTile<Unit>(t, x, w, edge, kColumns, rows);
    for (int64_t i = 0; i < rows * columns; ++i)
      to[i / columns * t.y_stride + i % columns] = edge[i / columns * kColumns + i % columns];
  }
}

template <typename Unit>
void Multiply(const PanelTask& t) {
  int64_t panel = 0;
  const int64_t whole = t.columns / kColumns;
  const auto w = [&] { return t.w + panel * t.panel_stride; };
  const auto y = [&] { return t.y + panel * kColumns; };
  if (t.rows == 1) {
    for (; panel + kPanelsOfOneRow <= whole; panel += kPanelsOfOneRow)
      Tile<Unit, 1, kPanelsOfOneRow>(t, t.x, w(), y(), t.y_stride);
  } else if (t.rows == 2) {
    for (; panel + kPanelsOfTwoRows <= whole; panel += kPanelsOfTwoRows)
      Tile<Unit, 2, kPanelsOfTwoRows>(t, t.x, w(), y(), t.y_stride);
  }
  for (; panel < t.panels; ++panel) Panel<Unit>(t, w(), y(), t.columns - panel * kColumns);
}

}  // namespace AISP_ISA
}  // namespace
}  // namespace aisp
