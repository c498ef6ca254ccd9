// Reads small files of a checkpoint.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/result.h"

namespace aisp {

// NOT_FOUND when it cannot be opened, INVALID_ARGUMENT above 64 MiB; both name the path.
Result<std::string> ReadTextFile(const std::string& path);
// Reads a file of any size into memory, so that later changes of the file have no effect.
Result<std::vector<std::byte>> ReadBytes(const std::string& path);
bool FileExists(const std::string& path);

}  // namespace aisp
