// The numbers of a run, from its records. Pure functions.
//
//   TTFT = first chunk with output - start         TPOT = (E2EL - TTFT) / (output tokens - 1)
//   E2EL = last chunk with output - start          ITL  = time between two chunks with output
//
// The start is when the request should have been sent (or was, if asked for). Only completed requests count, except where said.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "loadgen/options.h"
#include "loadgen/record.h"

namespace aisp::loadgen {

// Percentile p in [0, 100] of ascending values, linear between ranks, as NumPy's default; 0 of none.
double Percentile(const std::vector<double>& sorted, double p);

struct Distribution {
  size_t count = 0;
  double mean = 0;
  double median = 0;
  double std = 0;  // of the population, as NumPy's default
  double min = 0;
  double max = 0;
  std::vector<double> percentiles;  // those asked for, in their order
  double p99 = 0;
};
Distribution Describe(std::vector<double> values, const std::vector<double>& percentiles);

struct MetricOptions {
  std::vector<double> percentiles = {99};
  Goodput goodput = {};
  bool latency_from_sent = false;
  double duration_s = 0;
};

struct Summary {
  int64_t requests = 0;
  int64_t completed = 0;
  int64_t failed = 0;
  int64_t cancelled = 0;
  int64_t pending = 0;  // without a terminal status: a bug of this program
  double duration_s = 0;
  int64_t total_input_tokens = 0;   // of completed requests
  int64_t total_output_tokens = 0;  // of completed requests
  int64_t cached_tokens = 0;
  int64_t cancelled_output_tokens = 0;  // what cancelled and failed ones had got
  double request_throughput = 0;
  double request_goodput = -1;  // -1: no limits were given
  int64_t good_requests = 0;
  double output_throughput = 0;
  double total_token_throughput = 0;
  double peak_output_throughput = 0;  // the best of the run's seconds; all requests count
  int64_t peak_concurrency = 0;       // all requests count
  int64_t without_usage = 0;          // completed ones whose tokens are counted as chunks
  int64_t retries = 0;
  int64_t resent = 0;

  Distribution ttft_ms, tpot_ms, itl_ms, e2el_ms;
  Distribution per_user_tps;  // 1000 / TPOT
  Distribution lag_ms;        // sent - intended, of all that were sent

  std::map<std::string, int64_t> failures;  // reason -> count
  std::map<int, int64_t> failed_by_status;  // 0: no answer
  std::map<std::string, int64_t> finishes;  // finish_reason -> count
  std::map<std::string, int64_t> routes;    // "remote-prefill" ... -> count, of aisp

  bool adds_up() const { return pending == 0 && completed + failed + cancelled == requests; }
};

Summary Summarize(const std::vector<RequestRecord>& records, const MetricOptions& options);

// Keeps the limits; a request without a second token has no TPOT and keeps that one.
bool IsGood(const RequestRecord& record, const Goodput& limits, bool latency_from_sent);

// The most requests that were under way at a time.
int64_t PeakConcurrency(const std::vector<RequestRecord>& records);
// Output tokens in each second of the run; a request's tokens are spread evenly over its chunks.
std::vector<double> TokensPerSecond(const std::vector<RequestRecord>& records);

}  // namespace aisp::loadgen
