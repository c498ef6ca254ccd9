#include "common/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/threads.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

TEST(Metrics, RendersPrometheusText) {
  Metrics metrics;
  metrics.AddCounter("aisp_requests_total", "Requests.", {{"code", "200"}}).Add(3);
  metrics.AddGauge("aisp_running", "Running sequences.").Set(2.5);
  const Histogram steps = metrics.AddHistogram("aisp_step_seconds", "Steps.", {0.1, 1});
  steps.Observe(0.05);
  steps.Observe(0.5);
  steps.Observe(5);
  const std::string text = metrics.Render();
  EXPECT_THAT(
      text,
      HasSubstr("# HELP aisp_requests_total Requests.\n# TYPE aisp_requests_total counter\n"));
  EXPECT_THAT(text, HasSubstr("aisp_requests_total{code=\"200\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("aisp_running 2.5\n"));
  EXPECT_THAT(text, HasSubstr("aisp_step_seconds_bucket{le=\"0.1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("aisp_step_seconds_bucket{le=\"1\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("aisp_step_seconds_bucket{le=\"+Inf\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("aisp_step_seconds_count 3\n"));
}

TEST(Metrics, SameNameAndLabelsAreTheSameValue) {
  Metrics metrics;
  metrics.AddCounter("aisp_tokens_total", "Tokens.", {{"kind", "prompt"}}).Add();
  metrics.AddCounter("aisp_tokens_total", "Tokens.", {{"kind", "prompt"}}).Add();
  const Counter other = metrics.AddCounter("aisp_tokens_total", "Tokens.", {{"kind", "output"}});
  EXPECT_EQ(metrics.AddCounter("aisp_tokens_total", "Tokens.", {{"kind", "prompt"}}).Value(), 2);
  EXPECT_EQ(other.Value(), 0);
}

TEST(Metrics, EscapesLabelValues) {
  Metrics metrics;
  metrics.AddGauge("aisp_worker_up", "Up.", {{"worker", "a\"b\\c\nd"}}).Set(1);
  EXPECT_THAT(metrics.Render(), HasSubstr(R"(aisp_worker_up{worker="a\"b\\c\nd"} 1)"));
}

TEST(Metrics, RemoveForgetsTheSeriesThatHaveTheLabels) {
  Metrics metrics;
  metrics.AddGauge("aisp_load", "Load.", {{"worker", "a"}, {"kind", "kv"}}).Set(1);
  metrics.AddGauge("aisp_load", "Load.", {{"worker", "b"}, {"kind", "kv"}}).Set(2);
  metrics.Remove("aisp_load", {{"worker", "a"}});
  metrics.Remove("aisp_unknown", {});
  const std::string text = metrics.Render();
  EXPECT_THAT(text, Not(HasSubstr("worker=\"a\"")));
  EXPECT_THAT(text, HasSubstr("worker=\"b\""));
  // A restarted worker's counters begin at zero.
  EXPECT_EQ(metrics.AddGauge("aisp_load", "Load.", {{"worker", "a"}, {"kind", "kv"}}).Value(), 0);
}

TEST(Metrics, AnUnconnectedHandleIgnoresUpdates) {
  const Counter counter;
  counter.Add();
  Gauge().Set(1);
  Histogram().Observe(1);
  EXPECT_EQ(counter.Value(), 0);
}

TEST(Metrics, CountsFromManyThreadsWhileRendering) {
  Metrics metrics;
  const Counter counter = metrics.AddCounter("aisp_events_total", "Events.");
  {
    std::vector<Thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back("counter", [&] {
        for (int i = 0; i < 10'000; ++i) counter.Add();
      });
    }
    for (int i = 0; i < 20; ++i) EXPECT_THAT(metrics.Render(), HasSubstr("aisp_events_total"));
  }
  EXPECT_EQ(counter.Value(), 40'000);
}

TEST(MetricsDeathTest, AWrongNameOrASecondKindIsABrokenInvariant) {
  Metrics metrics;
  metrics.AddCounter("aisp_x_total", "X.");
  EXPECT_DEATH(metrics.AddGauge("aisp_x_total", "X."), "aisp_x_total exists with another kind");
  EXPECT_DEATH(metrics.AddGauge("no spaces", "X."), "metric no spaces: ");
}

TEST(Metrics, RefreshesWhatIsReadBeforeEachRendering) {
  Metrics metrics;
  const Gauge reads = metrics.AddGauge("aisp_reads", "Reads.");
  metrics.OnRender([&] { reads.Add(1); });
  EXPECT_THAT(metrics.Render(), HasSubstr("aisp_reads 1\n"));
  EXPECT_THAT(metrics.Render(), HasSubstr("aisp_reads 2\n"));
}

TEST(Buckets, GrowByTheFactor) {
  EXPECT_EQ(ExponentialBuckets(1, 2, 4), (std::vector<double>{1, 2, 4, 8}));
  // A latency objective has to be a bucket bound, so that its share is read and not interpolated.
  EXPECT_THAT(LatencyBuckets(), IsSupersetOf({0.001, 0.2, 0.5, 1.0, 2.0, 60.0}));
  EXPECT_THAT(StepBuckets(), IsSupersetOf({0.0001, 0.01, 0.02, 0.025, 0.05, 0.1, 2.0}));
  EXPECT_THAT(RequestBuckets(), IsSupersetOf({1.0, 10.0, 60.0, 300.0}));
  for (const auto& bounds : {LatencyBuckets(), StepBuckets(), RequestBuckets()})
    EXPECT_TRUE(std::is_sorted(bounds.begin(), bounds.end()));
}

}  // namespace
}  // namespace aisp
