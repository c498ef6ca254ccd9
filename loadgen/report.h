// The output for users: the table on stdout, JSON and CSV files, and the comparison of texts with
// another run. Keys and table follow `vllm bench serve`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "loadgen/metrics.h"
#include "loadgen/options.h"
#include "loadgen/record.h"

namespace aisp::loadgen {

// Facts needed to interpret the numbers.
struct Environment {
  std::string date = {};  // 20261121-131500
  std::string command_line = {};
  std::string client_host = {};  // name, kernel, CPUs
  std::string server = {};       // base URL or gRPC address
  std::string model = {};
  std::string target = {};  // path or gRPC method
  int64_t max_model_len = 0;
  bool of_trace = false;       // requests follow the trace's times
  double cpu_share = 0;        // of the loop's thread over the run; 1 is a whole core
  double peak_cpu_share = 0;   // in the worst second
  double loop_lag_p99_ms = 0;  // delay of the loop's own timers
  double loop_lag_max_ms = 0;
  double process_cpu_s = 0;
  std::vector<std::string> notes = {};
};

// A latency with its name, in table order.
struct Metric {
  std::string_view name;
  std::string_view title;
  std::string_view formula;
  const Distribution& values;
};
std::vector<Metric> MetricsOf(const Summary& summary);

std::string Table(const Options& options, const Summary& summary, const Environment& environment);
// Warnings that the client limited the numbers; "" if none.
std::string ClientWarnings(const Options& options, const Summary& summary,
                           const Environment& environment);

std::string ResultJson(const Options& options, const Summary& summary,
                       const Environment& environment, const std::vector<RequestRecord>& records);
std::string RequestsCsv(const std::vector<RequestRecord>& records, bool latency_from_sent);

// OK when the texts of all requests that both runs completed are equal; otherwise an error names
// the request and the position.
Result<std::string> CompareTexts(const std::string& baseline_json,
                                 const std::vector<RequestRecord>& records);

std::string_view StatusName(RequestStatus status);
// "p99", "p99.9", "p50".
std::string PercentileName(double percentile);

}  // namespace aisp::loadgen
