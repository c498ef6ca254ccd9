// `aisp bench route`: flags to options, and what was measured to stdout.
#pragma once

#include "common/result.h"
#include "config/command_line.h"

namespace aisp {

Status RunRouteBench(const CommandLine& line);

}  // namespace aisp
