// When requests are sent. Pure functions of their arguments and the seed, the same on every
// machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/random.h"

namespace aisp::loadgen {

// One draw of the gamma distribution with this shape and scale 1. Marsaglia and Tsang, "A Simple
// Method for Generating Gamma Variables", ACM TOMS 2000; for shapes below 1 with their boost.
double DrawGamma(SplitMix64* random, double shape);

struct ArrivalPlan {
  double rate = 0;  // requests per second; infinity: all at 0
  // Shape of the gaps' gamma distribution, so that their variation is 1/sqrt(burstiness); infinity:
  // even gaps.
  double burstiness = 1;
  // "", "linear" or "exponential": the rate goes from start to end with the index of the request.
  std::string ramp_up = {};
  double start_rps = 0;
  double end_rps = 0;
};

// Seconds from the start for `count` requests, ascending. Without a ramp they are stretched so that
// the last comes at count / rate: a short run offers the rate it was asked for.
std::vector<double> ArrivalTimes(const ArrivalPlan& plan, size_t count, uint64_t seed);

}  // namespace aisp::loadgen
