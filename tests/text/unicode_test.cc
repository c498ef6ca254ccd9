#include "text/unicode.h"

#include <gtest/gtest.h>

namespace aisp {
namespace {

TEST(Unicode, RangesOfACategoryHoldItsCodePointsAndNoOthers) {
  std::vector<Category> found(0x110000, Category::kZs);
  size_t points = 0;
  for (uint8_t c = 0; c <= static_cast<uint8_t>(Category::kZs); ++c) {
    for (const auto& [from, to] : RangesOf(static_cast<Category>(c))) {
      for (uint32_t point = from; point <= to; ++point) found[point] = static_cast<Category>(c);
      points += to - from + 1;
    }
  }
  EXPECT_EQ(points, found.size());
  for (uint32_t c = 0; c < found.size(); ++c) ASSERT_EQ(found[c], CategoryOf(c)) << c;
}

}  // namespace
}  // namespace aisp
