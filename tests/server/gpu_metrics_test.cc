// NVML loaded at run time: a library that exists, and one that does not.
#include "server/gpu_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace aisp {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kFake = AISP_FAKE_NVML;

TEST(GpuMetrics, AreAbsentWithoutTheLibrary) {
  Metrics metrics;
  EXPECT_EQ(GpuMetrics::Start({.ordinals = {0}, .nvml = "libno-such-nvml.so.1"}, &metrics),
            nullptr);
  EXPECT_THAT(metrics.Render(), Not(HasSubstr("aisp_gpu")));
}

TEST(GpuMetrics, AreThoseOfTheDeviceOnItsBusAndNotOfTheOneThatNvmlCountsSo) {
  Metrics metrics;
  const auto gpus = GpuMetrics::Start({.ordinals = {1}, .nvml = kFake, .driver = kFake}, &metrics);
  ASSERT_NE(gpus, nullptr);
  const std::string text = metrics.Render();
  // The fake's device of ordinal 1 is on bus 0000:05:00.0 and has the numbers below.
  EXPECT_THAT(text, HasSubstr("aisp_gpu_memory_used_bytes{gpu=\"1\"} 5000\n"));
  EXPECT_THAT(text, HasSubstr("aisp_gpu_memory_total_bytes{gpu=\"1\"} 80000\n"));
  EXPECT_THAT(text, HasSubstr("aisp_gpu_sm_clock_hertz{gpu=\"1\"} 1755000000\n"));
  EXPECT_THAT(text, HasSubstr("aisp_gpu_memory_clock_hertz{gpu=\"1\"} 2619000000\n"));
  EXPECT_THAT(text, Not(HasSubstr("aisp_gpu_sm_clock_max_hertz"))) << "this driver does not tell";
  EXPECT_THAT(text, HasSubstr("aisp_gpu_utilization_ratio{gpu=\"1\"} 0.5\n"));
  EXPECT_THAT(text, HasSubstr("aisp_gpu_power_watts{gpu=\"1\"} 350.5\n"));
  EXPECT_THAT(text, HasSubstr("aisp_gpu_temperature_celsius{gpu=\"1\"} 61\n"));
}

TEST(GpuMetrics, ADeviceThatNvmlDoesNotKnowHasNone) {
  Metrics metrics;
  EXPECT_EQ(GpuMetrics::Start({.ordinals = {7}, .nvml = kFake, .driver = kFake}, &metrics),
            nullptr);
}

}  // namespace
}  // namespace aisp
