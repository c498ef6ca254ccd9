// One invocation of the client from command line to exit code: queries the server, makes the
// prompts, drives the load, writes the results.
#pragma once

#include <string>
#include <vector>

namespace aisp::loadgen {

// `args` without the program. Prints results to stdout and progress, notes and errors to stderr.
// SIGINT and SIGTERM must be blocked in the calling thread; the first one ends the run with what
// there is.
int RunLoadgen(const std::vector<std::string>& args);

}  // namespace aisp::loadgen
