// The metrics of a run, from its records. Pure functions.
//
//   TTFT = first chunk with output - start         TPOT = (E2EL - TTFT) / (output tokens - 1)
//   E2EL = last chunk with output - start          ITL  = time between two chunks with output
//
// The start is when the request should have been sent (or was sent, on request). Only completed
// requests count, unless noted.
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

// Percentile p in [0, 100] of ascending values, interpolated like NumPy's default; 0 if empty.
double Percentile(const std::vector<double>& sorted, double p);

struct Distribution {
  size_t count = 0;
  double mean = 0;
  double median = 0;
  double std = 0;  // of the population, as NumPy's default
  double min = 0;
  double max = 0;
  std::vector<double> percentiles;  // as requested, in that order
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
  int64_t not_sent = 0;  // the run was interrupted before
  int64_t pending = 0;   // without a terminal status: a bug of this program
  double duration_s = 0;
  int64_t total_input_tokens = 0;   // of completed requests
  int64_t total_output_tokens = 0;  // of completed requests
  int64_t cached_tokens = 0;
  int64_t shareable_tokens = -1;        // prompt tokens shared with an earlier prompt's prefix; -1:
                                        // unknown
  int64_t cancelled_output_tokens = 0;  // received by cancelled and failed requests
  double request_throughput = 0;
  double request_goodput = -1;  // -1: no limits were given
  int64_t good_requests = 0;
  double output_throughput = 0;
  double total_token_throughput = 0;
  double peak_output_throughput = 0;  // counts all requests
  int64_t peak_concurrency = 0;       // counts all requests
  int64_t without_usage = 0;          // completed requests whose tokens are counted as chunks
  int64_t retries = 0;
  int64_t resent = 0;

  Distribution ttft_ms, tpot_ms, itl_ms, e2el_ms;
  Distribution per_user_tps;  // 1000 / TPOT
  Distribution lag_ms;        // sent - intended, of all sent requests
  // TTFT and E2EL from both starts, whatever was requested.
  Distribution ttft_from_intended_ms, ttft_from_sent_ms, e2el_from_intended_ms, e2el_from_sent_ms;

  std::map<std::string, int64_t> failures;  // reason -> count
  std::map<int, int64_t> failed_by_status;  // 0: no answer
  std::map<std::string, int64_t> finishes;  // finish_reason -> count
  std::map<std::string, int64_t> routes;    // "remote-prefill" ... -> count, of aisp
  struct ServerValue {
    Distribution values;
    double total = 0;
  };
  std::map<std::string, ServerValue> server;  // from usage.aisp, by name
  // Sums of usage.aisp.speculation over completed requests.
  struct Speculation {
    double drafted = 0, accepted = 0;
    double drafts = 0;  // drafts verified

    // Mean tokens per verify step.
    double acceptance_length() const { return drafts > 0 ? 1 + accepted / drafts : 0; }
    double acceptance() const { return drafted > 0 ? accepted / drafted : 0; }
  };
  Speculation speculation;
  std::map<std::string, int64_t> missed_limits;  // "ttft" ... -> completed requests beyond it

  struct Turn {
    int64_t completed = 0;
    int64_t input_tokens = 0;
    int64_t cached_tokens = 0;
    Distribution ttft_ms;
  };
  std::vector<Turn> turns;  // of conversations, by turn number

  bool adds_up() const {
    return pending == 0 && completed + failed + cancelled + not_sent == requests;
  }
};

// A good request meets all limits of `goodput`; one without a second token has no TPOT and meets
// that limit.
Summary Summarize(const std::vector<RequestRecord>& records, const MetricOptions& options);

// Requests that have already missed a limit `now_s` into the run, including running ones that take
// too long.
int64_t BadSoFar(const std::vector<RequestRecord>& records, const MetricOptions& options,
                 double now_s);

// The maximum number of concurrent requests.
int64_t PeakConcurrency(const std::vector<RequestRecord>& records);
// The maximum output tokens per second over windows that divide the run evenly and last at least a
// second (one window for a shorter run). So it is never below the average.
double PeakOutputThroughput(const std::vector<RequestRecord>& records, double duration_s);
// Output tokens per second of the run; a request's tokens are spread evenly over its chunks.
std::vector<double> TokensPerSecond(const std::vector<RequestRecord>& records);

}  // namespace aisp::loadgen
