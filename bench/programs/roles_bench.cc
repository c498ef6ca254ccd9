// Role changes against fixed splits, on a CPU host: three workers of the built-in model serve
// answers, then prompts, then answers again, as three aggregated workers, as 1P2D, as 2P1D, and as
// 1P2D with a planner. All arms get the same arrivals, at rates and within limits that are taken
// from this machine before. Reports the share of requests within TTFT and TPOT.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "bench/programs/loadgen_run.h"
#include "bench/programs/report.h"
#include "common/check.h"
#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"

namespace aisp::e2e {
namespace {

constexpr double kSecondsAPhase = 15;
// Of what three aggregated workers complete in a closed loop.
constexpr double kLoad = 0.7;
constexpr int kClosedLoop = 6;
// Limits, in multiples of a request that is alone: three workers share the machine's cores.
constexpr double kTtftTimes = 15;
constexpr double kTpotTimes = 5;

struct Shape {
  const char* name;
  int input_tokens;
  int output_tokens;
  double per_s = 0;
};

struct Limits {
  double ttft_ms = 0;
  double tpot_ms = 0;
};

struct Arm {
  const char* name;
  int prefill;
  int decode;
  bool planner = false;
};

std::vector<std::string> Requests(const Shape& shape, int count) {
  return {"--dataset-name random",
          "--ignore-eos",
          "--temperature 0",
          "--no-progress",
          fmt::format("--input-len {}", shape.input_tokens),
          fmt::format("--output-len {}", shape.output_tokens),
          fmt::format("--num-prompts {}", count)};
}

Json ClosedLoop(const std::string& http, const Shape& shape, int streams, int count) {
  std::vector<std::string> flags = Requests(shape, count);
  flags.push_back(fmt::format("--max-concurrency {}", streams));
  return Load(http, flags);
}

// Sets the shapes' rates; returns limits that this machine can keep.
Limits Calibrate(Shape& answers, Shape& prompts) {
  Cluster cluster({.prefill = 0, .decode = 3});
  AISP_CHECK(cluster.AwaitReady());
  const double tpot_ms = ClosedLoop(cluster.http(), answers, 1, 6).at("median_tpot_ms");
  const double ttft_ms = ClosedLoop(cluster.http(), prompts, 1, 12).at("median_ttft_ms");
  for (Shape* shape : {&answers, &prompts}) {
    const Json most = ClosedLoop(cluster.http(), *shape, kClosedLoop, 60);
    shape->per_s = kLoad * most.at("request_throughput").get<double>();
    ReportBench(fmt::format("roles.rate.{}", shape->name), shape->per_s, "requests/s");
  }
  return {kTtftTimes * ttft_ms, kTpotTimes * tpot_ms};
}

// The share of the requests within the limits.
double Serve(const std::string& http, const Shape& shape, const Limits& limits, int seed) {
  std::vector<std::string> flags =
      Requests(shape, std::max(1, static_cast<int>(shape.per_s * kSecondsAPhase)));
  flags.push_back(fmt::format("--request-rate {:.3f}", shape.per_s));
  flags.push_back(fmt::format("--goodput ttft:{:.1f} tpot:{:.1f}", limits.ttft_ms, limits.tpot_ms));
  const Json result = Load(http, flags, seed);
  return result.at("request_goodput").get<double>() / result.at("request_throughput").get<double>();
}

double Share(const Arm& arm, const std::vector<Shape>& phases, const Limits& limits) {
  const auto slo = fmt::format("--router.slo_ttft={:.0f}ms", limits.ttft_ms);
  const auto slo_tpot = fmt::format("--router.slo_tpot={:.0f}ms", limits.tpot_ms);
  Cluster cluster({.prefill = arm.prefill, .decode = arm.decode, .router_flags = {slo, slo_tpot}});
  AISP_CHECK(cluster.AwaitReady());
  for (const Shape& shape : phases) ClosedLoop(cluster.http(), shape, 1, 6);  // warm-up
  std::unique_ptr<Process> planner;
  if (arm.planner) {
    planner = std::make_unique<Process>(
        std::vector<std::string>{"planner", "--router=http://" + cluster.router->Await("admin"),
                                 "--no-park", slo, slo_tpot, "--log-level=warning"});
    AISP_CHECK(!planner->Await("admin").empty());
  }
  double sum = 0;
  for (size_t i = 0; i < phases.size(); ++i) {
    const double share = Serve(cluster.http(), phases[i], limits, static_cast<int>(100 + i));
    ReportBench(fmt::format("roles.{}.{}_{}.within_limits", arm.name, i + 1, phases[i].name), share,
                "ratio");
    sum += share;
  }
  if (planner) {
    ReportBench(fmt::format("roles.{}.changes", arm.name),
                Metric(planner->Await("admin"), "aisp_planner_role_changes_total"), "changes");
  }
  return sum / static_cast<double>(phases.size());
}

void Main() {
  Shape answers{"answers", 24, 120};
  Shape prompts{"prompts", 600, 4};
  const Limits limits = Calibrate(answers, prompts);
  ReportBench("roles.limit.ttft", limits.ttft_ms, "ms");
  ReportBench("roles.limit.tpot", limits.tpot_ms, "ms");
  const std::vector<Shape> phases = {answers, prompts, answers};
  double best_fixed = 0;
  for (const Arm& arm : {Arm{"3_aggregated", 0, 3}, Arm{"1p2d", 1, 2}, Arm{"2p1d", 2, 1},
                         Arm{"1p2d_with_planner", 1, 2, true}}) {
    const double share = Share(arm, phases, limits);
    ReportBench(fmt::format("roles.{}.within_limits", arm.name), share, "ratio");
    if (arm.planner) {
      ReportBench("roles.planner_over_best_fixed", share / best_fixed, "ratio");
    } else {
      best_fixed = std::max(best_fixed, share);
    }
  }
}

}  // namespace
}  // namespace aisp::e2e

int main() { aisp::e2e::Main(); }
