// A checkpoint's pooling mode for embeddings: 1_Pooling/config.json of sentence-transformers.
#pragma once

#include <string>
#include <string_view>

#include "common/result.h"

namespace aisp {

// "mean", "last" or "cls"; "" when none is set; other modes by their name in the file.
// INVALID_ARGUMENT: malformed, or several modes at once.
Result<std::string> ParsePoolingMode(std::string_view text);
Result<std::string> LoadPoolingMode(const std::string& directory);

}  // namespace aisp
