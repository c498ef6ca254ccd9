// Datasets: which prompts of which lengths, and when. Made up (random, prefix_repetition, and
// in words copy, code-edit, chat), prompts from files (sharegpt, custom) or traces that give
// lengths and times (mooncake, azure, burstgpt). Reads files; otherwise pure.
#pragma once

#include <istream>
#include <string>
#include <vector>

#include "common/result.h"
#include "loadgen/options.h"
#include "loadgen/prompts.h"

namespace aisp::loadgen {

// In the order of sending. `notes`: what the user should know (rows left out, prompts used more
// than once).
Result<std::vector<WorkItem>> LoadDataset(const Options& options, std::vector<std::string>* notes);

// Requests that do not count, of the kind of `items`, with prompts that no counted request shares.
std::vector<WorkItem> WarmupItems(const std::vector<WorkItem>& items, int64_t count, uint64_t seed);

// Shortens what does not fit into `max_model_len` tokens, of which a chat's frame takes `frame`; a
// note says how much.
void ClipToContext(std::vector<WorkItem>* items, int64_t max_model_len, int64_t frame,
                   std::vector<std::string>* notes);

// One reader each, for tests.
Result<std::vector<WorkItem>> ReadMooncake(std::istream& in, const Options& options);
// Azure's or BurstGPT's header decides on the columns.
Result<std::vector<WorkItem>> ReadCsvTrace(std::istream& in, const Options& options);
Result<std::vector<WorkItem>> ReadCustom(std::istream& in, const Options& options);
Result<std::vector<WorkItem>> ReadShareGpt(std::istream& in, const Options& options);

// "2023-11-16 18:15:46.6805900" -> seconds since 1970 as if it were UTC; also plain seconds.
Result<double> ParseTraceTime(std::string_view text);

// Tokens of one Mooncake hash id.
inline constexpr int64_t kMooncakeBlock = 512;

}  // namespace aisp::loadgen
