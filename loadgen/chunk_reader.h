// The JSON of one streamed chunk of OpenAI's API, read in one pass without building a tree: this
// runs once for each token of every stream. Knows completions and chats, of aisp and of others;
// what it does not know it skips. Pure; any thread.
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
  // With JSON's escapes; of `text`, or of the delta's `content`.
  std::string_view raw_text;
  bool has_output = false;         // text, reasoning, a tool call or token ids
  std::string_view finish_reason;  // "": not finished
  std::vector<int32_t> token_ids;
};

struct ChunkUsage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  std::string_view raw_aisp;  // the object `aisp`, as it stands
};

// Views point into the text that was read.
struct Chunk {
  std::vector<ChunkChoice> choices;
  std::optional<ChunkUsage> usage;
  bool is_error = false;
  std::string_view raw_error;  // its message, with JSON's escapes
};

// False: no JSON object. `chunk` is reused to save its memory.
bool ReadChunk(std::string_view json, Chunk* chunk);

// The numbers of a JSON object, also of objects within it ("outer.inner"); what is no number is
// left out.
std::vector<std::pair<std::string, double>> ReadNumbers(std::string_view json);

// The text that a JSON string's inside stands for; broken escapes stay as they are.
std::string UnescapeJson(std::string_view raw);

}  // namespace aisp::loadgen
