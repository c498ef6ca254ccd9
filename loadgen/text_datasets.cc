#include "loadgen/text_datasets.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "common/check.h"
#include "common/random.h"

namespace aisp::loadgen {
namespace {

using Json = nlohmann::json;

constexpr int64_t kCharactersOfToken = 4;  // for English and for code
constexpr int64_t kChatOutput = 128;

template <size_t N>
std::string_view Pick(const std::array<std::string_view, N>& from, SplitMix64& random) {
  return from[random.Below(N)];
}

constexpr std::array<std::string_view, 10> kNames{"Mina", "Otto", "Pearl", "Hugo",  "Lena",
                                                  "Finn", "Rosa", "Emil",  "Clara", "Bruno"};
constexpr std::array<std::string_view, 10> kThings{
    "lantern", "kite", "basket", "whistle", "map", "ladder", "teapot", "drum", "button", "rope"};
constexpr std::array<std::string_view, 8> kPlaces{"orchard", "harbour", "mill",   "meadow",
                                                  "attic",   "bridge",  "market", "garden"};
constexpr std::array<std::string_view, 8> kFeelings{"glad",  "tired",  "curious", "proud",
                                                    "quiet", "hungry", "brave",   "lost"};

// Sentences with about `tokens` tokens; the first one is the same in every story.
std::string Story(int64_t tokens, SplitMix64& random) {
  const std::string_view hero = Pick(kNames, random), friend_of = Pick(kNames, random);
  std::string out = fmt::format("Once there was a child named {} who lived near the {}.", hero,
                                Pick(kPlaces, random));
  while (static_cast<int64_t>(out.size()) < tokens * kCharactersOfToken) {
    const std::string_view thing = Pick(kThings, random), place = Pick(kPlaces, random),
                           feeling = Pick(kFeelings, random);
    switch (random.Below(5)) {
      case 0:
        out += fmt::format(" One day {} found a {} beside the {} and felt {}.", hero, thing, place,
                           feeling);
        break;
      case 1:
        out += fmt::format(" \"May I carry the {}?\" asked {}, who was {}.", thing, friend_of,
                           feeling);
        break;
      case 2:
        out += fmt::format(" So they walked to the {} and hid the {} behind a wall.", place, thing);
        break;
      case 3:
        out += fmt::format(" {} looked at the {} for a long time and then went home {}.", friend_of,
                           thing, feeling);
        break;
      default:
        out += fmt::format(" In the evening the {} was dark, but {} still had the {}.", place, hero,
                           thing);
    }
  }
  return out;
}

constexpr std::array<std::string_view, 8> kVerbs{"count", "load",  "merge", "find",
                                                 "write", "check", "split", "sort"};
constexpr std::array<std::string_view, 8> kNouns{"rows",  "users", "files", "orders",
                                                 "words", "items", "jobs",  "pages"};

// Functions of one class with about `tokens` tokens; most of them read `name`.
std::string SourceFile(int64_t tokens, std::string_view name, SplitMix64& random) {
  std::string out =
      fmt::format("class Store:\n    def __init__(self, {0}):\n        self.{0} = {0}\n", name);
  while (static_cast<int64_t>(out.size()) < tokens * kCharactersOfToken) {
    const std::string_view verb = Pick(kVerbs, random), noun = Pick(kNouns, random);
    const uint64_t number = random.Below(90) + 10;
    switch (random.Below(3)) {
      case 0:
        out += fmt::format(
            "\n    def {0}_{1}_{2}(self, limit={2}):\n        found = []\n        for each in "
            "self.{3}:\n            if each.{1} > limit:\n                found.append(each)\n"
            "        return found\n",
            verb, noun, number, name);
        break;
      case 1:
        out += fmt::format(
            "\n    def {0}_{1}_{2}(self):\n        total = {2}\n        for each in self.{3}:\n"
            "            total += len(each.{1})\n        return total\n",
            verb, noun, number, name);
        break;
      default:
        out += fmt::format(
            "\n    def {0}_{1}_{2}(self, key):\n        if key not in self.{3}:\n            raise "
            "KeyError(key)\n        return self.{3}[key].{1}\n",
            verb, noun, number, name);
    }
  }
  return out;
}

struct Asked {
  std::vector<std::string> messages;  // alternating user and assistant
  std::string text;                   // the same as one text
  int64_t output_tokens = 0;
};

int64_t TokensOf(std::string_view text) {
  return static_cast<int64_t>(text.size()) / kCharactersOfToken;
}

Asked Copy(const Options& o, SplitMix64& random) {
  const std::string story = Story(o.input_len.value_or(kTextTokens), random);
  const std::string_view place = Pick(kPlaces, random);
  Asked asked;
  asked.messages = {fmt::format("Tell me a story for an evening at the {}.", place), story,
                    "Tell me the same story again, word for word."};
  asked.text = fmt::format("{0}\n\nThe same story again, word for word:\n\n{1}", story,
                           story.substr(0, story.find('.') + 1));
  asked.output_tokens = TokensOf(story);
  return asked;
}

Asked CodeEdit(const Options& o, SplitMix64& random) {
  const std::string_view from = Pick(kNouns, random);
  const std::string to = fmt::format("{}_{}", Pick(kThings, random), from);
  const std::string file = SourceFile(o.input_len.value_or(kTextTokens), from, random);
  Asked asked;
  asked.messages = {
      fmt::format("Rename the attribute {} to {} in this file and write the whole "
                  "file again.\n\n```python\n{}```",
                  from, to, file)};
  asked.text = fmt::format(
      "{0}\n\n# The same file, with the attribute {1} renamed to {2}:\n\n"
      "class Store:\n    def __init__(self, {2}):\n",
      file, from, to);
  asked.output_tokens = TokensOf(file);
  return asked;
}

Asked Chat(SplitMix64& random) {
  const std::string_view thing = Pick(kThings, random), place = Pick(kPlaces, random);
  constexpr std::array<std::string_view, 4> kQuestions{
      "What should {0} pack for a day at the {1}, and why would a {2} be of use there?",
      "Please write a short letter from {0} to a friend about a {2} that was found near the {1}.",
      "How would you explain to {0} how a {2} is made? The {1} is the only place to buy parts.",
      "Give {0} three ideas for a game with a {2} that several children can play at the {1}."};
  Asked asked;
  asked.messages = {
      fmt::format(fmt::runtime(Pick(kQuestions, random)), Pick(kNames, random), place, thing)};
  asked.text = fmt::format("Question: {}\n\nAnswer:", asked.messages.front());
  asked.output_tokens = kChatOutput;
  return asked;
}

WorkItem ItemOf(const Asked& asked, const Options& o) {
  WorkItem item;
  if (o.kind() == BackendKind::kCompletions) {
    item.text = asked.text;
    item.input_tokens = TokensOf(item.text);
  } else {
    Json messages = Json::array();
    for (size_t i = 0; i < asked.messages.size(); ++i) {
      messages.push_back(
          {{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", asked.messages[i]}});
    }
    item.messages_json = messages.dump();
    item.input_tokens = TokensOf(item.messages_json);
  }
  item.output_tokens = o.output_len.value_or(asked.output_tokens);
  return item;
}

}  // namespace

bool IsTextDataset(std::string_view dataset) {
  return dataset == "copy" || dataset == "code-edit" || dataset == "chat";
}

std::vector<WorkItem> MakeTexts(std::string_view dataset, const Options& o, int64_t count) {
  AISP_CHECK(IsTextDataset(dataset));
  std::vector<WorkItem> items;
  for (int64_t i = 0; i < count; ++i) {
    SplitMix64 random(SplitMix64(o.seed + static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15).Next());
    items.push_back(ItemOf(dataset == "copy"        ? Copy(o, random)
                           : dataset == "code-edit" ? CodeEdit(o, random)
                                                    : Chat(random),
                           o));
  }
  return items;
}

}  // namespace aisp::loadgen
