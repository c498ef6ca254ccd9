#include "common/result.h"

#include <memory>

#include <gtest/gtest.h>

#include "common/check.h"

namespace aisp {
namespace {

Result<int> HalfOf(int n) {
  if (n % 2 != 0) return InvalidArgument("odd");
  return n / 2;
}

Result<int> QuarterOf(int n) {
  AISP_ASSIGN_OR_RETURN(const int half, HalfOf(n));
  AISP_ASSIGN_OR_RETURN(const int quarter, HalfOf(half));
  return quarter;
}

Status CheckQuarter(int n) {
  AISP_RETURN_IF_ERROR(QuarterOf(n));
  return {};
}

TEST(Result, AssignOrReturnPassesValuesAndReturnsErrors) {
  EXPECT_EQ(QuarterOf(8).value(), 2);
  ASSERT_FALSE(QuarterOf(6));
  EXPECT_EQ(QuarterOf(6).error().code, Code::kInvalidArgument);
}

TEST(Result, ReturnIfErrorCrossesResultTypes) {
  EXPECT_TRUE(CheckQuarter(4));
  EXPECT_EQ(CheckQuarter(3).error().message, "odd");
}

TEST(Result, AssignOrReturnMovesMoveOnlyValues) {
  const auto make = []() -> Result<std::unique_ptr<int>> { return std::make_unique<int>(5); };
  const auto use = [&]() -> Result<int> {
    AISP_ASSIGN_OR_RETURN(const std::unique_ptr<int> p, make());
    return *p;
  };
  EXPECT_EQ(use().value(), 5);
}

TEST(Error, ReadsAsCodeContextAndMessage) {
  const Error error = Error{Code::kDataLoss, "checksum differs"}.WithContext("model.safetensors");
  EXPECT_EQ(error.ToString(), "DATA_LOSS: model.safetensors: checksum differs");
  EXPECT_EQ((Error{Code::kCancelled, ""}.ToString()), "CANCELLED");
}

TEST(Error, EveryCodeHasItsGrpcName) {
  EXPECT_EQ(CodeName(Code::kOk), "OK");
  EXPECT_EQ(CodeName(Code::kUnauthenticated), "UNAUTHENTICATED");
  EXPECT_EQ(CodeName(static_cast<Code>(99)), "UNKNOWN");
}

TEST(CheckDeathTest, SaysWhereAndWhat) {
  EXPECT_DEATH(AISP_CHECK_MSG(1 > 2, "one is not more"),
               "result_test.cc:[0-9]+: check failed: 1 > 2: one is not more");
  EXPECT_DEATH(AISP_CHECK(false), "check failed: false");
}

}  // namespace
}  // namespace aisp
