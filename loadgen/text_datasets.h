// Prompts in words that answers are likely to repeat, for measuring speculation: copy (a text, to
// be said again), code-edit (a file, to be written again with a name changed) and chat (questions,
// where little repeats). All text follows from a seed. Pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "loadgen/options.h"
#include "loadgen/prompts.h"

namespace aisp::loadgen {

bool IsTextDataset(std::string_view dataset);

// `dataset`: copy, code-edit or chat. Messages of a chat, or for --endpoint /v1/completions a text
// that goes on with what would be answered. About options.input_len tokens of text to repeat
// (default kTextTokens), and as many to answer; a chat's questions have their own length.
std::vector<WorkItem> MakeTexts(std::string_view dataset, const Options& options, int64_t count);

inline constexpr int64_t kTextTokens = 300;

}  // namespace aisp::loadgen
