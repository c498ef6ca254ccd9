// How many rows the next product takes. Pure functions.
#pragma once

#include <array>
#include <cstdint>

namespace aisp {

// Heights for which products are built ahead, ascending. The last ones must be multiples of 64.
inline constexpr std::array<int64_t, 14> kTileRows = {1,  2,  3,  4,  6,  8,   12,
                                                      16, 24, 32, 48, 64, 128, 256};
// The one height that is used where rows are not independent of it.
inline constexpr int64_t kFixedTileRows = 16;

// The height of the next tile when `left` rows are left: whole large tiles, then one that covers
// the rest.
constexpr int64_t NextTileRows(int64_t left) {
  int64_t whole = 0;
  for (int64_t rows : kTileRows) {
    if (rows >= left) return rows > 64 && whole >= 64 ? whole : rows;
    whole = rows;
  }
  return whole;
}

}  // namespace aisp
