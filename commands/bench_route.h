// `aisp bench route`: reads the flags and prints the measurements to stdout.
#pragma once

#include "common/result.h"
#include "config/command_line.h"

namespace aisp {

Status RunRouteBench(const CommandLine& line);

}  // namespace aisp
