// The router's metrics, compared with requests of known timing.
#include "router/router_metrics.h"

#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "tests/router/router_harness.h"

namespace aisp {
namespace {

// Values by name and labels, without labels that are the same everywhere.
std::map<std::string, double> Values(const Metrics& metrics) {
  std::map<std::string, double> out;
  std::istringstream lines(metrics.Render());
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::string name = line.substr(0, line.rfind(' '));
    for (const char* common : {"model=\"story\",", "model=\"story\"", ",role=\"router\"",
                               "role=\"router\",", "role=\"router\""}) {
      if (const size_t at = name.find(common); at != std::string::npos)
        name.erase(at, std::string(common).size());
    }
    if (name.ends_with("{}")) name.resize(name.size() - 2);
    if (name.ends_with(",}")) name.replace(name.size() - 2, 2, "}");
    out[name] = std::stod(line.substr(line.rfind(' ') + 1));
  }
  return out;
}

constexpr auto kMs = [](int ms) { return std::chrono::milliseconds(ms); };

TEST(RouterMetrics, PartsOfTheTimeToTheFirstTokenAddUpToIt) {
  Metrics metrics;
  RouterMetrics router(&metrics, "story", {});
  v1::Timing timing;
  timing.set_queue_ns(Duration(kMs(10)).count());
  timing.set_prefill_ns(Duration(kMs(20)).count());
  timing.set_transfer_ns(Duration(kMs(5)).count());
  timing.set_first_decode_ns(Duration(kMs(4)).count());
  router.ObserveFirstToken(kMs(50), timing, ServiceClass::kInteractive);
  // A worker whose clock runs fast: its times are capped to the time measured here.
  timing.set_prefill_ns(Duration(kMs(500)).count());
  router.ObserveFirstToken(kMs(100), timing, ServiceClass::kInteractive);
  auto values = Values(metrics);
  double parts = 0;
  for (const char* part : {"queue", "prefill", "transfer", "first_decode", "link"}) {
    const std::string labels = std::string("{part=\"") + part + "\"}";
    parts += values["aisp_ttft_part_seconds_sum" + labels];
    EXPECT_EQ(values["aisp_ttft_part_seconds_count" + labels], 2) << part;
  }
  EXPECT_NEAR(values["aisp_time_to_first_token_seconds_sum"], 0.150, 1e-9);
  EXPECT_NEAR(parts, 0.150, 1e-9);
  EXPECT_NEAR(values["aisp_ttft_part_seconds_sum{part=\"queue\"}"], 0.020, 1e-9);
  EXPECT_NEAR(values["aisp_ttft_part_seconds_sum{part=\"prefill\"}"], 0.110, 1e-9);
  EXPECT_NEAR(values["aisp_ttft_part_seconds_sum{part=\"link\"}"], 0.011, 1e-9);
}

// An error within half a step is as good as a prediction can be, whatever part of the TTFT it is.
TEST(RouterMetrics, ErrorsOfTtftAreComparedWithHalfAStepToo) {
  Metrics metrics;
  RouterMetrics router(&metrics, "story", {});
  router.ObserveTtftError(/*error_ms=*/9, /*measured_ms=*/30, /*step_ms=*/20);
  router.ObserveTtftError(/*error_ms=*/45, /*measured_ms=*/1000, /*step_ms=*/20);
  router.ObserveTtftError(/*error_ms=*/11, /*measured_ms=*/100, /*step_ms=*/20);
  auto values = Values(metrics);
  EXPECT_EQ(values["aisp_router_ttft_prediction_error_allowed_ratio_bucket{le=\"1\"}"], 2);
  EXPECT_EQ(values["aisp_router_ttft_prediction_error_allowed_ratio_count"], 3);
  EXPECT_EQ(values["aisp_router_ttft_prediction_error_ratio_bucket{le=\"0.05\"}"], 1);
}

TEST(RouterMetrics, RefusalsAreCountedByReason) {
  RouterOptions options;
  options.max_inflight = 1;
  RouterHarness h(options);
  RecordingObserver seen;
  EXPECT_FALSE(h.Submit(h.Request(10), &seen));
  h.AddDecode("d");
  EXPECT_FALSE(h.Submit(h.Request(0), &seen));
  ASSERT_TRUE(h.Submit(h.Request(10), &seen));
  EXPECT_FALSE(h.Submit(h.Request(10), &seen));
  EXPECT_FALSE(h.Submit(h.Request(10), &seen));
  auto values = Values(h.metrics);
  EXPECT_EQ(values["aisp_requests_rejected_total{reason=\"no_worker\"}"], 1);
  EXPECT_EQ(values["aisp_requests_rejected_total{reason=\"prompt\"}"], 1);
  EXPECT_EQ(values["aisp_requests_rejected_total{reason=\"max_inflight\"}"], 2);
  EXPECT_EQ(values["aisp_requests_total{status=\"refused\"}"], 4);
}

TEST(RouterMetrics, GoodputCountsTheRequestsThatKeepBothLimits) {
  RouterHarness h;  // TTFT 500 ms, TPOT 50 ms
  const LinkId d = h.AddDecode("d");
  const auto serve = [&](std::chrono::milliseconds first, std::chrono::milliseconds each,
                         int more) {
    RecordingObserver seen;
    ASSERT_TRUE(h.Submit(h.Request(10, static_cast<uint32_t>(more) + 1), &seen));
    const uint64_t wire = h.Generates(d).back().request_id();
    h.clock.Advance(first);
    h.Tokens(d, wire, 10, {1}, more == 0 ? v1::FINISH_LENGTH : v1::FINISH_NONE);
    for (int i = 1; i <= more; ++i) {
      h.clock.Advance(each);
      h.Tokens(d, wire, 10 + static_cast<uint32_t>(i), {1},
               i == more ? v1::FINISH_LENGTH : v1::FINISH_NONE);
    }
    ASSERT_EQ(seen.finishes, 1);
  };
  serve(kMs(500), kMs(50), 3);  // just within both
  serve(kMs(501), kMs(10), 3);  // TTFT missed
  serve(kMs(10), kMs(51), 3);   // TPOT missed
  serve(kMs(10), kMs(0), 0);    // a single token
  auto values = Values(h.metrics);
  EXPECT_EQ(values["aisp_requests_in_slo_total{slo=\"ttft\"}"], 3);
  EXPECT_EQ(values["aisp_requests_in_slo_total{slo=\"tpot\"}"], 3);
  EXPECT_EQ(values["aisp_requests_in_slo_total{slo=\"both\"}"], 2);
  EXPECT_EQ(values["aisp_slo_seconds{slo=\"ttft\"}"], 0.5);
  EXPECT_EQ(values["aisp_request_time_per_output_token_seconds_count"], 3);
}

TEST(RouterMetrics, LoadIsTheSumOfTheDecodeWorkersAndGoesWithThem) {
  RouterHarness h;
  const LinkId a = h.AddDecode("a");
  const LinkId b = h.AddDecode("b");
  const LinkId p = h.AddPrefill("p");
  for (const LinkId link : {a, b, p}) {
    v1::Telemetry t = h.ReadyTelemetry();
    t.set_running(3);
    t.set_waiting(1);
    t.set_awaiting_kv(1);
    t.set_total_blocks(100);
    t.set_free_blocks(75);
    h.Advance(kMs(200));
    h.Report(link, t);
  }
  auto values = Values(h.metrics);
  EXPECT_EQ(values["aisp_router_requests_running"], 6) << "prefill workers run no request";
  EXPECT_EQ(values["aisp_router_requests_waiting"], 4);
  EXPECT_EQ(values["aisp_router_kv_usage_ratio"], 0.25);
  EXPECT_EQ(values["aisp_router_workers_ready{worker_role=\"decode\"}"], 2);
  const std::string both =
      "aisp_router_cache_config_info{block_size=\"16\",num_gpu_blocks=\"200\"}";
  EXPECT_EQ(values[both], 1);
  EXPECT_EQ(values.count("aisp_router_worker_streams{worker=\"a\"}"), 1u);

  h.router.OnLinkDown(a, {Code::kUnavailable, "gone"});
  values = Values(h.metrics);
  EXPECT_EQ(values["aisp_router_requests_running"], 3);
  EXPECT_EQ(values["aisp_router_workers_ready{worker_role=\"decode\"}"], 1);
  EXPECT_EQ(values.count(both), 0u) << "nothing is left of what was";
  EXPECT_EQ(values.count("aisp_router_worker_streams{worker=\"a\"}"), 0u);
}

TEST(RouterMetrics, WorkersThatComeAndGoLeaveNoSeriesBehind) {
  RouterHarness h;
  h.AddDecode("stays");
  const size_t before = Values(h.metrics).size();
  for (int i = 0; i < 50; ++i) {
    const LinkId link = h.AddDecode("passing-" + std::to_string(i));
    h.router.OnLinkDown(link, {Code::kUnavailable, "gone"});
  }
  EXPECT_EQ(Values(h.metrics).size(), before);
}

}  // namespace
}  // namespace aisp
