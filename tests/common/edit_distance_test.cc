#include "common/edit_distance.h"

#include <gtest/gtest.h>

namespace aisp {
namespace {

TEST(EditDistance, CountsTheFewestEdits) {
  EXPECT_EQ(EditDistance("", ""), 0u);
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  EXPECT_EQ(EditDistance("--num-promts", "--num-prompts"), 1u);
  EXPECT_EQ(EditDistance("ab", "ba"), 1u);
  EXPECT_EQ(EditDistance("--modle", "--model"), 1u);
  EXPECT_EQ(EditDistance("abcd", "badc"), 2u);
}

}  // namespace
}  // namespace aisp
