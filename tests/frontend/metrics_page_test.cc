#include "frontend/metrics_page.h"

#include <gtest/gtest.h>

namespace aisp {
namespace {

TEST(MetricsPage, WhoAsksAllTheTimeTakesAShareOfIt) {
  ManualClock clock;
  Metrics metrics;
  int rendered = 0;
  metrics.OnRender([&] {
    ++rendered;
    clock.Advance(std::chrono::milliseconds(1));
  });
  MetricsPage page(&metrics);
  for (int i = 0; i < 10'000; ++i) page.Text(clock);
  EXPECT_GE(rendered, 100) << "a burst is served fresh";
  EXPECT_LE(rendered, 110);
  // From then on at most a twentieth of the time, however often it is requested.
  rendered = 0;
  for (int i = 0; i < 100'000; ++i) {
    page.Text(clock);
    clock.Advance(std::chrono::microseconds(10));
  }
  EXPECT_GE(rendered, 45);
  EXPECT_LE(rendered, 60);
  // Rare requests get current values.
  clock.Advance(std::chrono::seconds(1));
  rendered = 0;
  page.Text(clock);
  EXPECT_EQ(rendered, 1);
}

}  // namespace
}  // namespace aisp
