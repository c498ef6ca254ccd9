// `aisp bench kv`: reads the flags and prints the measurements to stdout. `library_folders`: where
// to look for libaisp_*.so.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/result.h"
#include "config/command_line.h"

namespace aisp {

Status RunKvBench(const CommandLine& line, std::vector<std::string> library_folders);
// The other process. Arguments: lane, bytes of its pool, its GPU or "host".
Status RunKvOwner(const CommandLine& line, std::span<const std::string> library_folders);

}  // namespace aisp
