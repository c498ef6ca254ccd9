// What a simulation says: one row for each policy, as a table or as JSON. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "simulate/cluster.h"

namespace aisp::simulate {

struct Row {
  std::string policy;
  double rate = 0;  // requests a second that arrived, on average
  Outcome outcome;
};

// Share of requests that were served within `limits`; refused and failed ones were not. Of class
// interactive: the others have none.
double Attainment(const Outcome& outcome, const Objective& limits);

// Percentiles of TTFT and TPOT are of completed requests.
std::string Table(const std::vector<Row>& rows, const Objective& limits);
// An array with one object for each row; `points`: how many points a latency's distribution has.
std::string ToJson(const std::vector<Row>& rows, const Objective& limits, int points);

}  // namespace aisp::simulate
