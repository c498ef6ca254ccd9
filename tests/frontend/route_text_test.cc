// The value of x-aisp-route.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "frontend/generation_job.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;

TEST(RouteText, APredictedTtftContainsWhatTheRequestWaitedBeforeItWasPlaced) {
  RouteDecision route;
  route.decode_worker = "decode-0";
  route.predicted_ttft_ms = 20;
  EXPECT_THAT(RouteText(route, FromMs(1.5)), HasSubstr("predicted-ttft-ms=21.5 "));
  route.predicted_ttft_ms = 0;
  EXPECT_THAT(RouteText(route, FromMs(1.5)), HasSubstr("predicted-ttft-ms=0.0 "))
      << "the policy predicts nothing";
}

}  // namespace
}  // namespace aisp
