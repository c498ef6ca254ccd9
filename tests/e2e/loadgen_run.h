// Runs the built aisp-loadgen as a user does. Blocks until it has ended; callable on any thread.
#pragma once

#include <string>

#include "tests/e2e/client.h"
#include "tests/support/temp_files.h"

namespace aisp::e2e {

struct LoadgenRun {
  int code = -1;
  std::string output;  // stdout and stderr
};
LoadgenRun RunLoadgen(const std::string& arguments);

// A file's content as JSON; "discarded" if it is not JSON.
Json ReadJson(const TempFile& file);

// Nothing runs or waits on the worker, and no block is in use or in quarantine.
bool GaveEverythingBack(const std::string& admin);

}  // namespace aisp::e2e
