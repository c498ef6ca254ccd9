// Synthetic prompts: a prompt is a list of parts, and a part's tokens follow from its seed and
// length alone. So two prompts share exactly the tokens of their common parts, on every run and
// machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/service_class.h"

namespace aisp::loadgen {

struct PromptPart {
  uint64_t seed = 0;
  int64_t tokens = 0;
};

struct WorkItem;

// A finished turn of a conversation, with the actual answer.
struct SpokenTurn {
  const WorkItem* asked = nullptr;
  std::string answer;
  std::vector<TokenId> answer_ids;  // if the server returns them
};

// A request to be made. Has either `parts` (synthetic), `messages_json` (a chat), or `text`.
struct WorkItem {
  std::vector<PromptPart> parts;
  std::string text;
  std::string messages_json;
  int64_t input_tokens = -1;  // -1: unknown until the server reports it
  int64_t output_tokens = 0;
  double at_s = -1;  // seconds from a trace's start; -1: none
  // From a trace, else from the user; used only by `aisp simulate`.
  ServiceClass service_class = ServiceClass::kInteractive;

  // Turns of a conversation are adjacent. The fields above are the turn's own; the driver fills in
  // `history`, what was said before. input_tokens covers both, as far as known in advance.
  int64_t conversation = -1;  // -1: none
  int64_t turn = 0;           // from 0
  const std::vector<SpokenTurn>* history = nullptr;

  bool made_up() const { return text.empty() && messages_json.empty(); }
};

// Immutable after setting up; any thread.
struct PromptMaker {
  // For /v1/completions and gRPC: ids drawn from `pool`, or from [0, vocab) if it is empty. Without
  // ids, prompts are words.
  bool ids = true;
  std::vector<TokenId> pool;
  int32_t vocab = 0;
  // For words: measured with the server's tokenizer.
  double tokens_per_word = 1;
  double overhead_tokens = 0;  // tokens of a prompt or chat besides the words

  // Ids of the item's history and its own part.
  std::vector<TokenId> LongIds(const WorkItem& item) const;
  std::vector<TokenId> Ids(const std::vector<PromptPart>& parts) const;
  std::string Words(const std::vector<PromptPart>& parts) const;
};

// The items that wait for no other: single requests and first turns.
std::vector<size_t> FirstTurns(const std::vector<WorkItem>& items);

// Prompt tokens that an earlier prompt in this order begins with: what a perfect prefix cache would
// hit.
int64_t SharedPrefixTokens(const std::vector<WorkItem>& items);

// `count` of our words in a fixed order, each once before any repeats; for calibration and
// /tokenize.
std::string SampleWords(size_t count);

}  // namespace aisp::loadgen
