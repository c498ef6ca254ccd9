// When requests are sent. Pure functions of their arguments and the seed, the same on every
// machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/random.h"

namespace aisp::loadgen {

// One draw from the gamma distribution with this shape and scale 1. Marsaglia and Tsang, "A Simple
// Method for Generating Gamma Variables", ACM TOMS 2000; for shapes below 1 with their boost.
double DrawGamma(SplitMix64* random, double shape);

struct ArrivalPlan {
  double rate = 0;  // requests per second; infinity: all at time 0
  // Shape of the gaps' gamma distribution; their variation is 1/sqrt(burstiness). infinity: even
  // gaps.
  double burstiness = 1;
  // "", "linear" or "exponential": how the rate changes from start to end by request index.
  std::string ramp_up = {};
  double start_rps = 0;
  double end_rps = 0;
};

// Ascending times in seconds from the start for `count` requests. Without a ramp they are scaled so
// that the last is at count / rate: a short run then has exactly the requested rate.
std::vector<double> ArrivalTimes(const ArrivalPlan& plan, size_t count, uint64_t seed);

}  // namespace aisp::loadgen
