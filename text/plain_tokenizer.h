// The tokenizer of a model that has none (a shape with random weights): ids below 256 are the
// bytes, every other id N is the text
// "<|N|>". Encode and Decode are each other's inverse for any valid UTF-8 that does not spell such
// a token by chance.
#pragma once

#include <cstdint>
#include <memory>

#include "common/result.h"
#include "text/tokenizer.h"

namespace aisp {

// INVALID_ARGUMENT: fewer than 256 ids, or more than AddedTokens takes.
Result<std::unique_ptr<Tokenizer>> MakePlainTokenizer(int32_t vocabulary);

}  // namespace aisp
