// Prompts in words whose answers are likely to repeat them, to measure speculation: copy (repeat a
// text), code-edit (rewrite a file with a name changed), and chat (questions, where little
// repeats). Text follows from a seed. Pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "loadgen/options.h"
#include "loadgen/prompts.h"

namespace aisp::loadgen {

bool IsTextDataset(std::string_view dataset);

// `dataset`: copy, code-edit or chat. Chat messages, or for --endpoint /v1/completions a text that
// ends with the beginning of the answer. About options.input_len tokens of text to repeat (default
// kTextTokens), and as many to answer; questions of chat have their own length.
std::vector<WorkItem> MakeTexts(std::string_view dataset, const Options& options, int64_t count);

inline constexpr int64_t kTextTokens = 300;

}  // namespace aisp::loadgen
