// What a checkpoint says about embeddings: 1_Pooling/config.json, as sentence-transformers writes
// it.
#pragma once

#include <string>
#include <string_view>

#include "common/result.h"

namespace aisp {

// "mean", "last" or "cls"; "" when nothing is said; any other mode by its name in the file.
// INVALID_ARGUMENT: not such a file, or several modes at once.
Result<std::string> ParsePoolingMode(std::string_view text);
Result<std::string> LoadPoolingMode(const std::string& directory);

}  // namespace aisp
