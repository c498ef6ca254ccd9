// The body of the PanelKernels tables. Each linear_kernels_<isa>.cc includes it once; it is
// compiled for its instruction set and defines AISP_LANES (floats per vector: 4, 8, 16) and
// AISP_ISA (a namespace). Internal linkage only, for the reason given in row_kernels_impl.h.

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/linear_kernels.h"

namespace aisp {
namespace {
namespace AISP_ISA {

typedef float V __attribute__((vector_size(4 * AISP_LANES)));

// The sums of 6 rows of a panel, the panel's vectors and one input fill the registers: 32 with
// AVX-512, else 16.
constexpr int kPanelVectors = AISP_LANES == 16 ? 4 : 2;
constexpr int64_t kColumns = kPanelVectors * AISP_LANES;
constexpr int64_t kTileRows = 6;
// One row covers several panels at once, to have enough independent sums.
constexpr int kPanelsOfOneRow = AISP_LANES == 16 ? 2 : 4;
// Weights are prefetched this many bytes ahead into the second-level cache. The hardware prefetcher
// suffices for one row, but not for several.
constexpr int64_t kAhead = 16384;
constexpr int kLine = 64;
constexpr int kUnitLines = static_cast<int>(kColumns * kPanelUnitBytes / kLine);

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
    return f - V{};  // x - 0 compiles to nothing; x + 0 does not, because of signed zeros
  }
  static inline __attribute__((always_inline)) V Add(V sum, V x, V w) { return sum + x * w; }
};

// kRows rows of kPanels panels; all loops except that over units are unrolled. With each unit,
// kLines cache lines are prefetched that lie `ahead` bytes behind it.
template <typename Unit, int kRows, int kPanels, int kLines>
inline __attribute__((always_inline)) void Tile(const PanelTask& t, const std::byte* x,
                                                const std::byte* w, float* y, int64_t y_stride,
                                                int64_t ahead) {
  constexpr int kVectors = kPanels * kPanelVectors;
  V sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[r][v] = Load(y + r * y_stride + v * AISP_LANES);
  }
  for (int64_t u = 0; u < t.units; ++u) {
#pragma GCC unroll 8
    for (int i = 0; i < kLines; ++i) __builtin_prefetch(w + ahead + i * kLine, 0, 2);
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

template <typename Unit, int kLines>
void OnePanelTile(const PanelTask& t, const std::byte* x, const std::byte* w, float* y,
                  int64_t y_stride, int64_t rows, int64_t ahead) {
  switch (rows) {
    case 1:
      return Tile<Unit, 1, 1, kLines>(t, x, w, y, y_stride, ahead);
    case 2:
      return Tile<Unit, 2, 1, kLines>(t, x, w, y, y_stride, ahead);
    case 3:
      return Tile<Unit, 3, 1, kLines>(t, x, w, y, y_stride, ahead);
    case 4:
      return Tile<Unit, 4, 1, kLines>(t, x, w, y, y_stride, ahead);
    case 5:
      return Tile<Unit, 5, 1, kLines>(t, x, w, y, y_stride, ahead);
    default:
      return Tile<Unit, 6, 1, kLines>(t, x, w, y, y_stride, ahead);
  }
}

// One panel and all rows; `columns` of its columns exist in y. The first two tiles each prefetch
// half of the next panel, if there is one.
template <typename Unit>
void Panel(const PanelTask& t, const std::byte* w, float* y, int64_t columns, bool last) {
  constexpr int kHalf = (kUnitLines + 1) / 2;
  const int64_t tiles = (t.rows + kTileRows - 1) / kTileRows;
  const int64_t height = (t.rows + tiles - 1) / tiles;
  for (int64_t row = 0; row < t.rows; row += height) {
    const int64_t rows = t.rows - row < height ? t.rows - row : height;
    const std::byte* x = t.x + row * t.x_stride;
    float* to = y + row * t.y_stride;
    if (columns >= kColumns) {
      if (tiles == 1) {
        OnePanelTile<Unit, kUnitLines>(t, x, w, to, t.y_stride, rows, kAhead);
      } else if (row < 2 * height && !last) {
        const int64_t half = row > 0 ? kHalf * kLine : 0;
        OnePanelTile<Unit, kHalf>(t, x, w, to, t.y_stride, rows, t.panel_stride + half);
      } else {
        OnePanelTile<Unit, 0>(t, x, w, to, t.y_stride, rows, 0);
      }
      continue;
    }
    float edge[kTileRows * kColumns] = {};
    for (int64_t i = 0; i < rows * columns; ++i)
      edge[i / columns * kColumns + i % columns] = to[i / columns * t.y_stride + i % columns];
    OnePanelTile<Unit, 0>(t, x, w, edge, kColumns, rows, 0);
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
      Tile<Unit, 1, kPanelsOfOneRow, 0>(t, t.x, w(), y(), t.y_stride, 0);
  }
  for (; panel < t.panels; ++panel)
    Panel<Unit>(t, w(), y(), t.columns - panel * kColumns, panel + 1 == t.panels);
}

}  // namespace AISP_ISA
}  // namespace
}  // namespace aisp
