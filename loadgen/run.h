// One run of the client from command line to exit code: asks the server, makes the prompts, drives
// the load, writes the results.
#pragma once

#include <string>
#include <vector>

namespace aisp::loadgen {

// `args` without the program. Prints to stdout (results) and stderr (progress, notes, errors).
// Signals SIGINT and SIGTERM must be blocked in the calling thread; the first of them ends the run
// with what there is.
int RunLoadgen(const std::vector<std::string>& args);

}  // namespace aisp::loadgen
