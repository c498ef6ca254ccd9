// Reading small files of a checkpoint whole.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/result.h"

namespace aisp {

// NOT_FOUND when it cannot be opened, INVALID_ARGUMENT above 64 MiB; both name the path.
Result<std::string> ReadTextFile(const std::string& path);
// Of any size, so that nobody who changes the file changes what was read.
Result<std::vector<std::byte>> ReadBytes(const std::string& path);
bool FileExists(const std::string& path);

}  // namespace aisp
