#include "loadgen/prompts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string_view>

#include "common/check.h"
#include "common/random.h"

namespace aisp::loadgen {
namespace {

// Common short words: most tokenizers have each, with a leading space, as one token.
constexpr std::array<std::string_view, 128> kWords = {
    "the",    "and",   "was",   "for",   "you",    "with",   "that",   "had",   "his",   "her",
    "said",   "one",   "they",  "she",   "not",    "but",    "all",    "were",  "when",  "there",
    "this",   "out",   "up",    "day",   "what",   "like",   "little", "from",  "have",  "big",
    "saw",    "very",  "their", "then",  "some",   "went",   "would",  "could", "down",  "into",
    "time",   "see",   "so",    "old",   "good",   "made",   "play",   "home",  "came",  "back",
    "house",  "man",   "boy",   "girl",  "dog",    "cat",    "bird",   "fish",  "tree",  "sun",
    "sky",    "water", "red",   "blue",  "green",  "ball",   "box",    "car",   "book",  "door",
    "hand",   "head",  "look",  "find",  "run",    "walk",   "jump",   "eat",   "food",  "happy",
    "sad",    "new",   "long",  "small", "two",    "three",  "many",   "more",  "again", "after",
    "before", "about", "over",  "under", "them",   "him",    "who",    "how",   "why",   "where",
    "can",    "will",  "did",   "get",   "got",    "put",    "take",   "make",  "come",  "know",
    "think",  "want",  "love",  "help",  "friend", "mother", "father", "night", "room",  "bed",
    "hill",   "road",  "river", "king",  "story",  "name",   "word",   "thing"};

}  // namespace

std::vector<TokenId> PromptMaker::Ids(const std::vector<PromptPart>& parts) const {
  AISP_CHECK(!pool.empty() || vocab > 0);
  std::vector<TokenId> out;
  for (const PromptPart& part : parts) {
    SplitMix64 random(part.seed);
    for (int64_t i = 0; i < part.tokens; ++i) {
      out.push_back(pool.empty() ? static_cast<TokenId>(random.Below(static_cast<uint64_t>(vocab)))
                                 : pool[random.Below(pool.size())]);
    }
  }
  return out;
}

std::vector<TokenId> PromptMaker::LongIds(const WorkItem& item) const {
  std::vector<TokenId> out;
  const auto add = [&out](const std::vector<TokenId>& more) {
    out.insert(out.end(), more.begin(), more.end());
  };
  if (item.history != nullptr) {
    for (const SpokenTurn& turn : *item.history) {
      add(Ids(turn.asked->parts));
      add(turn.answer_ids);
    }
  }
  add(Ids(item.parts));
  return out;
}

std::string PromptMaker::Words(const std::vector<PromptPart>& parts) const {
  std::string out;
  double fraction = 0.5;  // a rounding remainder carries over to the next part
  for (size_t p = 0; p < parts.size(); ++p) {
    // The chat's frame counts too; it is taken from the last part, which no other prompt shares.
    const double frame = p + 1 == parts.size() ? overhead_tokens : 0;
    const double wanted =
        (static_cast<double>(parts[p].tokens) - frame) / tokens_per_word + fraction;
    const double words = std::max(std::floor(wanted), parts.size() == 1 ? 1.0 : 0.0);
    fraction = std::clamp(wanted - words, 0.0, 1.0);
    SplitMix64 random(parts[p].seed);
    for (double i = 0; i < words; ++i) {
      if (!out.empty()) out += ' ';
      out += kWords[random.Below(kWords.size())];
    }
  }
  return out;
}

std::vector<size_t> FirstTurns(const std::vector<WorkItem>& items) {
  std::vector<size_t> out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].turn == 0) out.push_back(i);
  }
  return out;
}

int64_t SharedPrefixTokens(const std::vector<WorkItem>& items) {
  // A truncated part shares its tokens with the whole part: keeps the longest seen after each chain
  // of previous parts.
  std::map<std::pair<uint64_t, uint64_t>, int64_t> longest;
  int64_t shared = 0;
  for (const WorkItem& item : items) {
    uint64_t chain = 0;
    bool known = true;
    for (const PromptPart& part : item.parts) {
      int64_t& seen = longest[{chain, part.seed}];
      if (known) shared += std::min(seen, part.tokens);
      known &= seen >= part.tokens;
      seen = std::max(seen, part.tokens);
      chain = SplitMix64(chain ^ part.seed ^ (static_cast<uint64_t>(part.tokens) << 40)).Next();
    }
  }
  return shared;
}

std::string SampleWords(size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) out += ' ';
    out += kWords[i % kWords.size()];
  }
  return out;
}

}  // namespace aisp::loadgen
