// Datasets: the prompts, their lengths, and when they are sent. Synthetic (random,
// prefix_repetition, and in words copy, code-edit, chat), prompts from files (sharegpt, custom), or
// traces with lengths and times (mooncake, azure, burstgpt). Reads files; otherwise pure.
#pragma once

#include <istream>
#include <string>
#include <vector>

#include "common/result.h"
#include "loadgen/options.h"
#include "loadgen/prompts.h"

namespace aisp::loadgen {

// In sending order. `notes`: messages for the user (rows skipped, prompts reused).
Result<std::vector<WorkItem>> LoadDataset(const Options& options, std::vector<std::string>* notes);

// Uncounted requests like `items`, with prompts that share nothing with counted ones.
std::vector<WorkItem> WarmupItems(const std::vector<WorkItem>& items, int64_t count, uint64_t seed);

// Shortens items to `max_model_len` tokens, of which `frame` are the chat template's; adds a note.
void ClipToContext(std::vector<WorkItem>* items, int64_t max_model_len, int64_t frame,
                   std::vector<std::string>* notes);

// The readers of each format, separate for tests.
Result<std::vector<WorkItem>> ReadMooncake(std::istream& in, const Options& options);
// The header decides whether the columns are Azure's or BurstGPT's.
Result<std::vector<WorkItem>> ReadCsvTrace(std::istream& in, const Options& options);
Result<std::vector<WorkItem>> ReadCustom(std::istream& in, const Options& options);
Result<std::vector<WorkItem>> ReadShareGpt(std::istream& in, const Options& options);

// "2023-11-16 18:15:46.6805900" as Unix seconds (read as UTC); also plain seconds.
Result<double> ParseTraceTime(std::string_view text);

// Tokens per Mooncake hash id.
inline constexpr int64_t kMooncakeBlock = 512;

}  // namespace aisp::loadgen
