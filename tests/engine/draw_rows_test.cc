// Where a step's draw rows and edits lie in the memory that is uploaded at once.
#include "engine/draw_rows.h"

#include <gtest/gtest.h>

namespace aisp {
namespace {

TEST(DrawRows, EditsBeginRightBehindTheRows) {
  for (size_t rows = 0; rows < 300; ++rows) {
    const size_t end = rows * sizeof(DrawRow), first = FirstEdit(rows) * sizeof(TokenEdit);
    EXPECT_GE(first, end) << rows;
    EXPECT_LT(first, end + sizeof(TokenEdit)) << rows;
    EXPECT_EQ(first % alignof(TokenEdit), 0u);
    EXPECT_EQ(DrawBytes(rows, 0), end);
    EXPECT_EQ(DrawBytes(rows, 5), first + 5 * sizeof(TokenEdit));
  }
}

// A buffer for the most rows and edits holds fewer rows with as many edits.
TEST(DrawRows, FewerRowsNeedNoMoreRoom) {
  for (size_t rows = 0; rows < 300; ++rows) EXPECT_LE(DrawBytes(rows, 100), DrawBytes(300, 100));
}

}  // namespace
}  // namespace aisp
