// `aisp bench route`: what the router itself costs, over workers that answer at once what a real
// one would and compute nothing: placements one by one, and all that it hears of workers beside
// them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"

namespace aisp {

struct RouteBenchOptions {
  std::string policy = "cost";
  int32_t prefill = 0;  // workers of either role
  int32_t decode = 256;
  double rate = 10'000;  // requests a second of simulated time
  int32_t requests = 20'000;
  // Each prompt begins with one of so many prefixes.
  int32_t prefixes = 1'000;
  int32_t prefix_tokens = 1'024;
  int32_t own_tokens = 256;  // and goes on with tokens of its own
  int32_t output_tokens = 64;
  uint64_t seed = 1;
};

struct RouteBench {
  int32_t workers = 0;
  int64_t requests = 0;
  int64_t refused = 0;
  // CPU time of the router's thread for one request, until its worker is told: microseconds.
  double place_mean_us = 0;
  double place_p50_us = 0;
  double place_p99_us = 0;
  double place_max_us = 0;
  // And for what workers say meanwhile (tokens, prefixes, telemetry), a request.
  double heard_us = 0;
  double cached = 0;  // part of the prompt tokens that the workers placed on had
  // Of which workers in which order: equal where all placements were.
  uint64_t placements = 0;
  // One core is busy with so many requests a second.
  double PerSecond() const { return 1e6 / (place_mean_us + heard_us); }
};

// INVALID_ARGUMENT: no such policy, or no decode worker.
Result<RouteBench> BenchRoute(const RouteBenchOptions& options);
std::string ToTable(const RouteBenchOptions& options, const RouteBench& bench);
std::string ToJson(const RouteBenchOptions& options, const RouteBench& bench);

}  // namespace aisp
