// Prompts that are made up: a prompt is a row of parts, and a part is so many tokens that follow
// from its seed alone. So two prompts share exactly the tokens of the parts that they share, on
// every run and every machine.
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

// A turn of a conversation that is over, and what was really answered.
struct SpokenTurn {
  const WorkItem* asked = nullptr;
  std::string answer;
  std::vector<TokenId> answer_ids;  // when the server says them
};

// One request to be made. Either `parts` (made up), or `messages_json` (a chat), or `text`.
struct WorkItem {
  std::vector<PromptPart> parts;
  std::string text;
  std::string messages_json;
  int64_t input_tokens = -1;  // -1: not known before the server says so
  int64_t output_tokens = 0;
  double at_s = -1;  // of a trace: seconds from its start; -1: none
  // Of a trace that says so, else what the user asked for; only `aisp simulate` uses it.
  ServiceClass service_class = ServiceClass::kInteractive;

  // Turns of one conversation stand in a row. A turn's own words are those above, what was said
  // before is `history`, which the driver fills in; its input_tokens are those of both, as far as
  // they are known beforehand.
  int64_t conversation = -1;  // -1: none
  int64_t turn = 0;           // from 0
  const std::vector<SpokenTurn>* history = nullptr;

  bool made_up() const { return text.empty() && messages_json.empty(); }
};

// Immutable after setting up; any thread.
struct PromptMaker {
  // Of /v1/completions and gRPC: ids are drawn from `pool`, or from [0, vocab) when it is empty. No
  // ids: prompts are words.
  bool ids = true;
  std::vector<TokenId> pool;
  int32_t vocab = 0;
  // Of words: what the server counted for some of ours.
  double tokens_per_word = 1;
  double overhead_tokens = 0;  // of a prompt or chat around the words

  // The item's, after what was said before.
  std::vector<TokenId> LongIds(const WorkItem& item) const;
  std::vector<TokenId> Ids(const std::vector<PromptPart>& parts) const;
  std::string Words(const std::vector<PromptPart>& parts) const;
};

// Of the items, those that wait for no other: single requests and first turns.
std::vector<size_t> FirstTurns(const std::vector<WorkItem>& items);

// Prompt tokens that an earlier one of these prompts, in their order, began with: what a perfect
// prefix cache would find.
int64_t SharedPrefixTokens(const std::vector<WorkItem>& items);

// So many of our words, in a fixed order and each at least once before one comes again: for
// calibrating and for /tokenize.
std::string SampleWords(size_t count);

}  // namespace aisp::loadgen
