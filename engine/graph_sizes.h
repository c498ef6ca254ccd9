// Row counts of steps that get a captured graph; smaller steps are padded. Plain functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace aisp {

// Ascending, up to `max_rows`: denser at small sizes, where padding costs relatively more.
inline std::vector<int32_t> GraphSizes(int32_t max_rows) {
  std::vector<int32_t> sizes = {1, 2, 4, 8, 16, 24, 32, 48, 64};
  for (int32_t n = 96; n <= 256; n += 32) sizes.push_back(n);
  for (int32_t n = 320; n <= 1024; n += 64) sizes.push_back(n);
  std::erase_if(sizes, [&](int32_t n) { return n > max_rows; });
  if (sizes.empty() || (sizes.back() < max_rows && max_rows <= 1024)) sizes.push_back(max_rows);
  return sizes;
}

}  // namespace aisp
