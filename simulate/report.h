// Reports of simulations: one row per policy, as a table or as JSON. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "simulate/cluster.h"

namespace aisp::simulate {

struct Row {
  std::string policy;
  double rate = 0;  // mean arrival rate, requests per second
  Outcome outcome;
};

// Fraction of interactive requests served within `limits`; refused and failed ones count as missed.
double Attainment(const Outcome& outcome, const Objective& limits);

// TTFT and TPOT percentiles cover completed requests.
std::string Table(const std::vector<Row>& rows, const Objective& limits);
// An array with one object per row; `points`: points of each latency distribution.
std::string ToJson(const std::vector<Row>& rows, const Objective& limits, int points);

}  // namespace aisp::simulate
