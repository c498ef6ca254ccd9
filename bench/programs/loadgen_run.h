// aisp-loadgen against a server, for benchmarks.
#pragma once

#include <string>
#include <vector>

#include "tests/e2e/client.h"

namespace aisp::e2e {

// Runs aisp-loadgen with `flags` against story-7m at `http` (host:port) and returns its result
// file. Aborts if it ends with an error or a request failed.
Json Load(const std::string& http, const std::vector<std::string>& flags, int seed = 1);

}  // namespace aisp::e2e
