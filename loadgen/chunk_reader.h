// Parses the JSON of one streamed chunk of OpenAI's API in one pass without a tree, since this runs
// for every token of every stream. Knows completions and chats, of aisp and others; skips what it
// does not know. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace aisp::loadgen {

struct ChunkChoice {
  int64_t index = 0;
  // With JSON escapes; from `text` or the delta's `content`.
  std::string_view raw_text;
  bool has_output = false;         // text, reasoning, a tool call or token ids
  std::string_view finish_reason;  // "": not finished
  std::vector<int32_t> token_ids;
};

struct ChunkUsage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  std::string_view raw_aisp;  // the object `aisp`, unparsed
};

// Views point into the parsed text.
struct Chunk {
  std::vector<ChunkChoice> choices;
  std::optional<ChunkUsage> usage;
  bool is_error = false;
  std::string_view raw_error;  // the error's message, with JSON escapes
};

// False: not a JSON object. `chunk` is reused to avoid allocations.
bool ReadChunk(std::string_view json, Chunk* chunk);

// The numbers of a JSON object, including nested ones ("outer.inner"); other values are skipped.
std::vector<std::pair<std::string, double>> ReadNumbers(std::string_view json);

// Decodes the inside of a JSON string; invalid escapes stay unchanged.
std::string UnescapeJson(std::string_view raw);

}  // namespace aisp::loadgen
