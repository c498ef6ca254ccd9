// The numbers of a run, from its records. Pure functions.
//
//   TTFT = first chunk with output - start         TPOT = (E2EL - TTFT) / (output tokens - 1)
//   E2EL = last chunk with output - start          ITL  = time between two chunks with output
//
// The start is when the request should have been sent (or was, if asked for). Only completed
// requests count, except where said.
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

// Percentile p in [0, 100] of ascending values, linear between ranks, as NumPy's default; 0 of
// none.
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
  int64_t not_sent = 0;  // the run was interrupted before
  int64_t pending = 0;   // without a terminal status: a bug of this program
  double duration_s = 0;
  int64_t total_input_tokens = 0;   // of completed requests
  int64_t total_output_tokens = 0;  // of completed requests
  int64_t cached_tokens = 0;
  int64_t shareable_tokens = -1;  // of all prompts: an earlier one began with them; -1: not known
  int64_t cancelled_output_tokens = 0;  // what cancelled and failed ones had got
  double request_throughput = 0;
  double request_goodput = -1;  // -1: no limits were given
  int64_t good_requests = 0;
  double output_throughput = 0;
  double total_token_throughput = 0;
  double peak_output_throughput = 0;  // all requests count
  int64_t peak_concurrency = 0;       // all requests count
  int64_t without_usage = 0;          // completed ones whose tokens are counted as chunks
  int64_t retries = 0;
  int64_t resent = 0;

  Distribution ttft_ms, tpot_ms, itl_ms, e2el_ms;
  Distribution per_user_tps;  // 1000 / TPOT
  Distribution lag_ms;        // sent - intended, of all that were sent
  // TTFT and E2EL from both starts, whatever was asked for.
  Distribution ttft_from_intended_ms, ttft_from_sent_ms, e2el_from_intended_ms, e2el_from_sent_ms;

  std::map<std::string, int64_t> failures;  // reason -> count
  std::map<int, int64_t> failed_by_status;  // 0: no answer
  std::map<std::string, int64_t> finishes;  // finish_reason -> count
  std::map<std::string, int64_t> routes;    // "remote-prefill" ... -> count, of aisp
  struct ServerValue {
    Distribution values;
    double total = 0;
  };
  std::map<std::string, ServerValue> server;  // of usage.aisp, by name
  // Of usage.aisp.speculation, completed requests together.
  struct Speculation {
    double drafted = 0, accepted = 0;
    double drafts = 0;  // that were verified

    // Tokens that a step with a draft brought.
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
  std::vector<Turn> turns;  // of conversations, from the first on

  bool adds_up() const {
    return pending == 0 && completed + failed + cancelled + not_sent == requests;
  }
};

// A good request keeps all limits of `goodput`; one without a second token has no TPOT and keeps
// that one.
Summary Summarize(const std::vector<RequestRecord>& records, const MetricOptions& options);

// Requests that have missed a limit already, `now_s` into the run: also those that are under way
// for too long.
int64_t BadSoFar(const std::vector<RequestRecord>& records, const MetricOptions& options,
                 double now_s);

// The most requests that were under way at a time.
int64_t PeakConcurrency(const std::vector<RequestRecord>& records);
// The most output tokens per second in any window of a whole fraction of the run that is at least a
// second long (a shorter run is one window), so that it is never below the average.
double PeakOutputThroughput(const std::vector<RequestRecord>& records, double duration_s);
// Output tokens in each second of the run; a request's tokens are spread evenly over its chunks.
std::vector<double> TokensPerSecond(const std::vector<RequestRecord>& records);

}  // namespace aisp::loadgen
