// The tokenizer of a model without one (a shape with random weights): ids below 256 are bytes, any
// other id N is the text "<|N|>". Encode and Decode are inverse for valid UTF-8 that does not
// contain such a text.
#pragma once

#include <cstdint>
#include <memory>

#include "common/result.h"
#include "text/tokenizer.h"

namespace aisp {

// INVALID_ARGUMENT: fewer than 256 ids, or more than AddedTokens takes.
Result<std::unique_ptr<Tokenizer>> MakePlainTokenizer(int32_t vocabulary);

}  // namespace aisp
