// Runs ranges of seeds, optionally in several threads, and sums up their coverage.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/coverage.h"

namespace aisp {

struct SimReport {
  uint64_t seeds = 0;
  std::vector<std::string> failures;  // "seed N: what; replay with ..."
  SimCoverage coverage;
};

// Seeds first..last, both included. One thread per seed; `trace` prints its event log.
SimReport RunSeeds(uint64_t first, uint64_t last, int jobs, bool trace);
// The digest of everything that happened in a run of the seed.
uint64_t DigestOfSeed(uint64_t seed);
// A failed AISP_CHECK aborts: print the thread's seed first.
void PrintSeedOnAbort();
int OpenNullDevice();

}  // namespace aisp
