// What the user gets to see: the table on stdout, the JSON and CSV files, and the comparison of
// texts with another run. Keys and table as `vllm bench serve` has them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "loadgen/metrics.h"
#include "loadgen/options.h"
#include "loadgen/record.h"

namespace aisp::loadgen {

// What a reader must know to judge the numbers.
struct Environment {
  std::string date = {};  // 20261121-131500
  std::string command_line = {};
  std::string client_host = {};  // name, kernel, CPUs
  std::string server = {};       // base URL or gRPC address
  std::string model = {};
  std::string target = {};  // path or gRPC method
  int64_t max_model_len = 0;
  bool of_trace = false;       // requests come when the trace says
  double cpu_share = 0;        // of the loop's thread over the run, 1 is a whole core
  double peak_cpu_share = 0;   // in the worst second
  double loop_lag_p99_ms = 0;  // how late the loop's own timers came
  double loop_lag_max_ms = 0;
  double process_cpu_s = 0;
  std::vector<std::string> notes = {};
};

// One latency with its name, in the order of tables.
struct Metric {
  std::string_view name;
  std::string_view title;
  std::string_view formula;
  const Distribution& values;
};
std::vector<Metric> MetricsOf(const Summary& summary);

std::string Table(const Options& options, const Summary& summary, const Environment& environment);
// Warnings that the numbers are about this client rather than the server; "" else.
std::string ClientWarnings(const Options& options, const Summary& summary,
                           const Environment& environment);

std::string ResultJson(const Options& options, const Summary& summary,
                       const Environment& environment, const std::vector<RequestRecord>& records);
std::string RequestsCsv(const std::vector<RequestRecord>& records, bool latency_from_sent);

// OK when the texts of all requests that both runs completed are equal; else which request differs
// and where.
Result<std::string> CompareTexts(const std::string& baseline_json,
                                 const std::vector<RequestRecord>& records);

std::string_view StatusName(RequestStatus status);
// "p99", "p99.9", "p50".
std::string PercentileName(double percentile);

}  // namespace aisp::loadgen
