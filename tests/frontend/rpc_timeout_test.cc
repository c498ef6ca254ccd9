// The deadline that a gRPC client gives its call.
#include <gtest/gtest.h>

#include "proto/inference_call.h"

namespace aisp {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

TEST(RpcTimeout, IsAtMostWhatIsDocumentedAndNeverNone) {
  RpcInfo info;
  info.received = Instant() + hours(100);
  EXPECT_EQ(info.Timeout(hours(1)), std::nullopt) << "the default holds";
  info.deadline = info.received + seconds(5);
  EXPECT_EQ(info.Timeout(hours(1)), Duration(seconds(5)));
  info.deadline = info.received + hours(10);
  EXPECT_EQ(info.Timeout(hours(1)), Duration(hours(1)));
  info.deadline = info.received + hours(24 * 365 * 9);
  EXPECT_EQ(info.Timeout(hours(1)), Duration(hours(1)));
  for (const Duration late : {Duration(0), Duration(hours(50))}) {
    info.deadline = info.received - late;
    EXPECT_EQ(info.Timeout(hours(1)), Duration(1)) << "it is over at once";
  }
}

}  // namespace
}  // namespace aisp
