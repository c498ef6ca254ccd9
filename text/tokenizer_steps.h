// Parses the pipeline of a tokenizer.json: normalizer, pre_tokenizer, decoder, post_processor. For
// text/ only. Pure functions: any thread.
#pragma once

#include "text/json_fields.h"
#include "text/tokenizer_parts.h"

namespace aisp {

Result<Normalizer> ParseNormalizer(const JsonField& field);
Result<PreTokenizer> ParsePreTokenizer(const JsonField& field);
Result<DecoderSpec> ParseDecoder(const JsonField& field);
// Sets parts->before and parts->behind from the template for a single text.
Status ParsePostProcessor(const JsonField& field, TokenizerParts* parts);

}  // namespace aisp
