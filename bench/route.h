// `aisp bench route`: the CPU cost of the router, with workers that answer like real ones but
// compute nothing: single placements, and the handling of the workers' messages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"

namespace aisp {

struct RouteBenchOptions {
  std::string policy = "cost";
  int32_t prefill = 0;  // number of prefill workers
  int32_t decode = 256;
  double rate = 10'000;  // requests per second of simulated time
  int32_t requests = 20'000;
  // Number of different prefixes; each prompt starts with one.
  int32_t prefixes = 1'000;
  int32_t prefix_tokens = 1'024;
  int32_t own_tokens = 256;  // unique tokens after the prefix
  int32_t output_tokens = 64;
  uint64_t seed = 1;
};

struct RouteBench {
  int32_t workers = 0;
  int64_t requests = 0;
  int64_t refused = 0;
  // CPU time of the router's thread per request until it is sent to its worker, in microseconds.
  double place_mean_us = 0;
  double place_p50_us = 0;
  double place_p99_us = 0;
  double place_max_us = 0;
  // The same per request for the workers' messages (tokens, prefixes, telemetry).
  double heard_us = 0;
  double cached = 0;  // fraction of prompt tokens cached on the chosen workers
  // Hash of the sequence of chosen workers: equal if all placements are.
  uint64_t placements = 0;
  // Requests per second that keep one core busy.
  double PerSecond() const { return 1e6 / (place_mean_us + heard_us); }
};

// INVALID_ARGUMENT: no such policy, or no decode worker.
Result<RouteBench> BenchRoute(const RouteBenchOptions& options);
std::string ToTable(const RouteBenchOptions& options, const RouteBench& bench);
std::string ToJson(const RouteBenchOptions& options, const RouteBench& bench);

}  // namespace aisp
