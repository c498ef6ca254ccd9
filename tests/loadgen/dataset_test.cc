#include "loadgen/dataset.h"
#include "tests/support/temp_files.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

namespace aisp::loadgen {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

PromptMaker Maker() {
  PromptMaker maker;
  maker.vocab = 50000;
  return maker;
}

size_t CommonPrefix(const std::vector<TokenId>& a, const std::vector<TokenId>& b) {
  const size_t n = std::min(a.size(), b.size());
  return static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(n), b.begin()).first - a.begin());
}

Options ForTrace(const std::string& dataset) {
  Options options;
  options.dataset = dataset;
  options.dataset_path = "trace";
  return options;
}

TEST(RandomDataset, LengthsStayInTheRangeAndPromptsShareOnlyThePrefix) {
  Options options;
  options.num_prompts = 200;
  options.input_len = 100;
  options.output_len = 50;
  options.range_ratio = 0.2;
  options.prefix_len = 30;
  std::vector<std::string> notes;
  const auto items = LoadDataset(options, &notes);
  ASSERT_TRUE(items);
  ASSERT_EQ(items->size(), 200u);
  std::set<int64_t> lengths;
  const auto first = Maker().Ids(items->front().parts);
  for (const WorkItem& item : *items) {
    const auto ids = Maker().Ids(item.parts);
    EXPECT_EQ(static_cast<int64_t>(ids.size()), item.input_tokens);
    EXPECT_GE(item.input_tokens, 30 + 80);
    EXPECT_LE(item.input_tokens, 30 + 120);
    EXPECT_GE(item.output_tokens, 40);
    EXPECT_LE(item.output_tokens, 60);
    lengths.insert(item.input_tokens);
    if (&item != &items->front()) {
      EXPECT_EQ(CommonPrefix(ids, first), 30u);
    }
  }
  EXPECT_GT(lengths.size(), 20u);
}

TEST(RandomDataset, TheSeedDecidesThePrompts) {
  Options options;
  options.num_prompts = 2;
  std::vector<std::string> notes;
  const auto ids = [&](uint64_t seed) {
    options.seed = seed;
    return Maker().Ids(LoadDataset(options, &notes)->at(1).parts);
  };
  EXPECT_EQ(ids(1), ids(1));
  EXPECT_NE(ids(1), ids(2));
}

TEST(PrefixRepetition, EachPrefixComesEquallyOftenAndSuffixesAreUnique) {
  Options options;
  options.dataset = "prefix_repetition";
  options.num_prompts = 60;
  options.num_prefixes = 6;
  options.repetition_prefix_len = 40;
  options.repetition_suffix_len = 20;
  std::vector<std::string> notes;
  const auto items = LoadDataset(options, &notes);
  ASSERT_TRUE(items);
  std::map<std::vector<TokenId>, int> prefixes;
  std::set<std::vector<TokenId>> whole;
  for (const WorkItem& item : *items) {
    auto ids = Maker().Ids(item.parts);
    ASSERT_EQ(ids.size(), 60u);
    whole.insert(ids);
    ids.resize(40);
    ++prefixes[ids];
  }
  EXPECT_EQ(whole.size(), 60u);
  ASSERT_EQ(prefixes.size(), 6u);
  for (const auto& [ids, count] : prefixes) EXPECT_EQ(count, 10);
}

TEST(Mooncake, EqualHashPrefixesAreEqualTokenPrefixesAndNothingElseIs) {
  std::istringstream in(
      R"({"timestamp": 1000, "input_length": 1500, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 3500, "input_length": 1500, "output_length": 6, "hash_ids": [0, 1, 3]}
{"timestamp": 2000, "input_length": 1024, "output_length": 7, "hash_ids": [0, 9]}

{"timestamp": 9000, "input_length": 1500, "output_length": 8, "hash_ids": [0, 1, 2]}
)");
  const auto items = ReadMooncake(in, ForTrace("mooncake"));
  ASSERT_TRUE(items) << items.error().message;
  ASSERT_EQ(items->size(), 4u);
  std::vector<double> times;
  std::vector<std::vector<TokenId>> ids;
  for (const WorkItem& item : *items) {
    times.push_back(item.at_s);
    ids.push_back(Maker().Ids(item.parts));
    EXPECT_EQ(static_cast<int64_t>(ids.back().size()), item.input_tokens);
  }
  EXPECT_THAT(times, ElementsAre(0, 1, 2.5, 8));  // sorted, from zero
  EXPECT_EQ(CommonPrefix(ids[0], ids[1]), 512u);
  EXPECT_EQ(CommonPrefix(ids[0], ids[2]), 1024u);
  EXPECT_EQ(ids[0], ids[3]);
}

TEST(Mooncake, TokensBeyondTheHashesBelongToOneRequestAlone) {
  std::istringstream in(
      R"({"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [4]}
{"timestamp": 1, "input_length": 700, "output_length": 5, "hash_ids": [4]})");
  const auto items = ReadMooncake(in, ForTrace("mooncake"));
  ASSERT_TRUE(items);
  EXPECT_EQ(CommonPrefix(Maker().Ids((*items)[0].parts), Maker().Ids((*items)[1].parts)), 512u);
}

TEST(Mooncake, TimesAndLengthsScaleAndSharingStays) {
  std::istringstream in(
      R"({"timestamp": 0, "input_length": 2048, "output_length": 100, "hash_ids": [1, 2, 3, 4]}
{"timestamp": 4000, "input_length": 1024, "output_length": 100, "hash_ids": [1, 2]})");
  Options options = ForTrace("mooncake");
  options.time_scale = 0.5;
  options.length_scale = 0.125;
  const auto items = ReadMooncake(in, options);
  ASSERT_TRUE(items);
  EXPECT_EQ((*items)[0].input_tokens, 256);
  EXPECT_EQ((*items)[1].output_tokens, 13);
  EXPECT_DOUBLE_EQ((*items)[1].at_s, 2.0);
  EXPECT_EQ(CommonPrefix(Maker().Ids((*items)[0].parts), Maker().Ids((*items)[1].parts)), 128u);
}

TEST(Traces, NameTheClassOfARequest) {
  std::istringstream lines(
      R"({"timestamp": 0, "input_length": 8, "output_length": 1, "class": "batch"}
{"timestamp": 1, "input_length": 8, "output_length": 1})");
  const auto mooncake = ReadMooncake(lines, ForTrace("mooncake"));
  ASSERT_TRUE(mooncake) << mooncake.error().message;
  EXPECT_EQ((*mooncake)[0].service_class, ServiceClass::kBatch);
  EXPECT_EQ((*mooncake)[1].service_class, ServiceClass::kInteractive);
  std::istringstream csv(
      "TIMESTAMP,ContextTokens,GeneratedTokens,Class\n0,5,5,best-effort\n1,5,5,\n");
  const auto azure = ReadCsvTrace(csv, ForTrace("azure"));
  ASSERT_TRUE(azure) << azure.error().message;
  EXPECT_EQ((*azure)[0].service_class, ServiceClass::kBestEffort);
  EXPECT_EQ((*azure)[1].service_class, ServiceClass::kInteractive);
  std::istringstream wrong("TIMESTAMP,ContextTokens,GeneratedTokens,Class\n0,5,5,urgent\n");
  EXPECT_THAT(ReadCsvTrace(wrong, ForTrace("azure")).error().message, HasSubstr("urgent"));
}

TEST(Mooncake, ABrokenLineIsNamed) {
  std::istringstream missing("{\"timestamp\": 0, \"input_length\": 5}\n");
  const auto read = ReadMooncake(missing, ForTrace("mooncake"));
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().message, HasSubstr("line 1"));
  EXPECT_THAT(read.error().message, HasSubstr("output_length"));
  std::istringstream garbage(
      "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1}\nhello\n");
  EXPECT_THAT(ReadMooncake(garbage, ForTrace("mooncake")).error().message, HasSubstr("line 2"));
}

// The published traces, if the shared folder has them.
TEST(Mooncake, ThePublishedTraceSharesAsManyTokensAsItsHashesSay) {
  const std::string path = AISP_SHARED_DIR "/traces/mooncake/conversation_trace.jsonl";
  std::ifstream in(path);
  if (!in) GTEST_SKIP() << "the Mooncake trace is not there: " << path;
  Options options = ForTrace("mooncake");
  const auto items = ReadMooncake(in, options);
  ASSERT_TRUE(items) << items.error().message;
  ASSERT_EQ(items->size(), 12031u);
  std::ifstream again(path);
  std::vector<std::vector<int64_t>> hashes;
  std::string line;
  while (hashes.size() < 400 && std::getline(again, line)) {
    hashes.push_back(nlohmann::json::parse(line)["hash_ids"].get<std::vector<int64_t>>());
  }
  // The trace is sorted by time, so items are in its order.
  std::vector<std::vector<TokenId>> ids;
  for (size_t i = 0; i < hashes.size(); ++i) {
    ids.push_back(Maker().Ids((*items)[i].parts));
    ASSERT_EQ(static_cast<int64_t>(ids.back().size()), (*items)[i].input_tokens);
  }
  for (size_t a = 0; a < hashes.size(); a += 7) {
    for (size_t b = a + 1; b < hashes.size(); ++b) {
      const auto shared = static_cast<size_t>(
          std::mismatch(hashes[a].begin(),
                        hashes[a].begin() +
                            static_cast<ptrdiff_t>(std::min(hashes[a].size(), hashes[b].size())),
                        hashes[b].begin())
              .first -
          hashes[a].begin());
      const size_t expected = std::min({shared * 512, ids[a].size(), ids[b].size()});
      ASSERT_EQ(CommonPrefix(ids[a], ids[b]), expected) << a << " and " << b;
    }
  }
}

TEST(CsvTraces, AzureTimesHaveFractionsAndLengthsAreTaken) {
  std::istringstream in(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
      "2023-11-16 23:59:59.5000000,374,44\r\n"
      "2023-11-17 00:00:01.7500000,396,109\r\n");
  const auto items = ReadCsvTrace(in, ForTrace("azure"));
  ASSERT_TRUE(items) << items.error().message;
  ASSERT_EQ(items->size(), 2u);
  EXPECT_NEAR((*items)[1].at_s, 2.25, 1e-6);
  EXPECT_EQ((*items)[1].input_tokens, 396);
  EXPECT_EQ((*items)[1].output_tokens, 109);
  EXPECT_EQ(CommonPrefix(Maker().Ids((*items)[0].parts), Maker().Ids((*items)[1].parts)), 0u);
}

TEST(CsvTraces, BurstGptNamesItsColumnsAndFailedRequestsAreLeftOut) {
  std::istringstream in(
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "5,ChatGPT,472,18,490,Conversation log\n"
      "45,ChatGPT,1087,0,1087,Conversation log\n"
      "118,GPT-4,417,276,693,Conversation log\n");
  const auto items = ReadCsvTrace(in, ForTrace("burstgpt"));
  ASSERT_TRUE(items) << items.error().message;
  ASSERT_EQ(items->size(), 2u);
  EXPECT_DOUBLE_EQ((*items)[1].at_s, 113);
  EXPECT_EQ((*items)[1].output_tokens, 276);
}

TEST(CsvTraces, AForeignFileIsRefusedWithItsHeader) {
  std::istringstream in("a,b,c\n1,2,3\n");
  const auto read = ReadCsvTrace(in, ForTrace("azure"));
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().message, HasSubstr("a,b,c"));
}

TEST(CsvTraces, ThePublishedAzureTraceIsAnHourOfRequests) {
  const std::string path = AISP_SHARED_DIR "/traces/azure/AzureLLMInferenceTrace_conv.csv";
  std::ifstream in(path);
  if (!in) GTEST_SKIP() << "the Azure trace is not there: " << path;
  const auto items = ReadCsvTrace(in, ForTrace("azure"));
  ASSERT_TRUE(items) << items.error().message;
  EXPECT_EQ(items->size(), 19366u);
  EXPECT_NEAR(items->back().at_s, 3600, 120);
  EXPECT_TRUE(std::is_sorted(items->begin(), items->end(),
                             [](const auto& a, const auto& b) { return a.at_s < b.at_s; }));
}

TEST(Custom, TakesPromptsTurnsAndMessages) {
  Options options = ForTrace("custom");
  std::istringstream in(
      "{\"prompt\": \"Hello\", \"output_tokens\": 7}\n{\"turns\": [\"First\", \"Second\"]}\n");
  const auto items = ReadCustom(in, options);
  ASSERT_TRUE(items) << items.error().message;
  EXPECT_EQ((*items)[0].text, "Hello");
  EXPECT_EQ((*items)[0].output_tokens, 7);
  EXPECT_EQ((*items)[1].text, "First");
  EXPECT_EQ((*items)[1].output_tokens, 256);
  std::istringstream chat("{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n");
  EXPECT_THAT(ReadCustom(chat, options).error().message, HasSubstr("chat/completions"));
  options.endpoint = "/v1/chat/completions";
  std::istringstream chat_again("{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n");
  EXPECT_THAT(ReadCustom(chat_again, options)->front().messages_json, HasSubstr("\"hi\""));
}

TEST(ShareGpt, TakesTheFirstTurnAndLeavesOutConversationsWithoutAnAnswer) {
  Options options = ForTrace("sharegpt");
  std::istringstream in(R"([{"conversations": [{"from": "human", "value": "What is a fox?"},
      {"from": "gpt", "value": "A fox is a small animal with a tail."}]},
      {"conversations": [{"from": "human", "value": "alone"}]}, {"id": 3}])");
  const auto items = ReadShareGpt(in, options);
  ASSERT_TRUE(items) << items.error().message;
  ASSERT_EQ(items->size(), 1u);
  EXPECT_EQ(items->front().text, "What is a fox?");
  EXPECT_EQ(items->front().output_tokens, 9);
}

TEST(Clipping, KeepsTheContextAndSaysWhatItDid) {
  Options options;
  options.num_prompts = 3;
  options.input_len = 300;
  options.output_len = 30;
  std::vector<std::string> notes;
  auto items = *LoadDataset(options, &notes);
  ClipToContext(&items, 330, 0, &notes);
  EXPECT_TRUE(notes.empty());
  const auto before = Maker().Ids(items[0].parts);
  ClipToContext(&items, 100, 0, &notes);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_THAT(notes[0], HasSubstr("3 of 3 requests"));
  for (const WorkItem& item : items) {
    EXPECT_EQ(item.input_tokens + item.output_tokens, 100);
    EXPECT_EQ(item.output_tokens, 30);
  }
  const auto after = Maker().Ids(items[0].parts);
  EXPECT_EQ(CommonPrefix(before, after), after.size());
}

TEST(Prompts, WordsComeAsManyAsTheServersCountSays) {
  PromptMaker maker;
  maker.ids = false;
  maker.tokens_per_word = 1.25;
  maker.overhead_tokens = 10;
  const std::string text = maker.Words({{1, 100}, {2, 60}});
  EXPECT_EQ(std::count(text.begin(), text.end(), ' ') + 1, 120);  // (160 - 10) / 1.25
  const std::string other = maker.Words({{1, 100}, {3, 60}});
  EXPECT_EQ(text.substr(0, 200), other.substr(0, 200));
  EXPECT_NE(text, other);
}

TEST(Turns, AreMadeUpAsManyAsWereAskedAndLengthsAddUp) {
  Options options;
  options.turns = 8;
  options.num_conversations = 64;
  options.input_len = 30;
  options.output_len = 10;
  options.prefix_len = 5;
  std::vector<std::string> notes;
  auto items = *LoadDataset(options, &notes);
  ASSERT_EQ(items.size(), 64u * 8);
  EXPECT_EQ(FirstTurns(items).size(), 64u);
  EXPECT_EQ(items[8].conversation, 1);
  EXPECT_EQ(items[8].turn, 0);
  EXPECT_EQ(items[0].input_tokens, 35);
  EXPECT_EQ(items[1].input_tokens, 35 + 10 + 30);
  EXPECT_EQ(items[7].input_tokens, 35 + 7 * 40);
  EXPECT_EQ(items[1].parts.size(), 1u);
  // A conversation ends where the context does: 35 + 10, 75 + 10, 115 + 10 fit into 130.
  ClipToContext(&items, 130, 0, &notes);
  EXPECT_EQ(items.size(), 64u * 3);
  EXPECT_EQ(FirstTurns(items).size(), 64u);
  EXPECT_THAT(notes.back(), HasSubstr("64 conversations outgrow"));
}

TEST(Turns, OfFilesAreTheirOwn) {
  Options options;
  options.turns = 2;
  options.dataset = "spec_bench";
  options.category = "writing";
  std::istringstream in(R"({"question_id":1,"category":"writing","turns":["a a a a a a","b","c"]})"
                        "\n"
                        R"({"question_id":2,"category":"math","turns":["no"]})"
                        "\n"
                        R"({"question_id":3,"category":"writing","turns":["d"]})"
                        "\n");
  const auto items = *ReadCustom(in, options);
  ASSERT_EQ(items.size(), 3u);
  EXPECT_EQ(items[1].text, "b");
  EXPECT_EQ(items[1].turn, 1);
  EXPECT_EQ(items[2].turn, 0);
  EXPECT_NE(items[2].conversation, items[1].conversation);
  std::istringstream talk(R"([{"conversations":[{"from":"human","value":"one"},
      {"from":"gpt","value":"two"},{"from":"human","value":"three"},{"from":"gpt","value":"four"},
      {"from":"human","value":"five"},{"from":"gpt","value":"six"}]}])");
  const auto shared = *ReadShareGpt(talk, options);
  ASSERT_EQ(shared.size(), 2u);
  EXPECT_EQ(shared[1].text, "three");
  EXPECT_EQ(shared[1].turn, 1);
}

TEST(Turns, ConversationsAreTakenWholeAndTwiceWhenThereAreTooFew) {
  const TempFile file("talks.jsonl", "{\"turns\":[\"a\",\"b\"]}\n{\"turns\":[\"c\",\"d\"]}\n");
  Options options;
  options.dataset = "custom";
  options.dataset_path = file.path();
  options.turns = 2;
  options.num_conversations = 3;
  std::vector<std::string> notes;
  const auto items = *LoadDataset(options, &notes);
  ASSERT_EQ(items.size(), 6u);
  EXPECT_EQ(items[4].text, "a");
  EXPECT_EQ(items[4].conversation, 2);
  EXPECT_THAT(notes.back(), HasSubstr("2 conversations for 3"));
}

TEST(SharedPrefixTokens, CountsWhatAnEarlierPromptBeganWith) {
  const auto item = [](std::vector<PromptPart> parts) {
    WorkItem out;
    out.parts = std::move(parts);
    return out;
  };
  EXPECT_EQ(SharedPrefixTokens({item({{1, 100}, {2, 50}}), item({{3, 100}, {2, 50}})}), 0);
  EXPECT_EQ(SharedPrefixTokens({item({{1, 100}, {2, 50}}), item({{1, 100}, {3, 50}})}), 100);
  EXPECT_EQ(SharedPrefixTokens({item({{1, 100}, {2, 50}}), item({{1, 100}, {2, 80}})}), 150);
  // Bytes after a part whose length was changed are at another offset.
  EXPECT_EQ(SharedPrefixTokens({item({{1, 100}, {2, 50}}), item({{1, 60}, {2, 50}})}), 60);
}

TEST(Warmups, ShareNoPromptWithTheRun) {
  Options options;
  options.num_prompts = 3;
  std::vector<std::string> notes;
  const auto items = *LoadDataset(options, &notes);
  const auto warmups = WarmupItems(items, 5, options.seed);
  ASSERT_EQ(warmups.size(), 5u);
  for (const WorkItem& item : items) {
    EXPECT_LT(CommonPrefix(Maker().Ids(item.parts), Maker().Ids(warmups[0].parts)), 4u);
  }
}

TEST(LoadDataset, TooFewPromptsAreSentAgainWithANote) {
  const TempFile file("custom.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n");
  Options options = ForTrace("custom");
  options.dataset_path = file.path();
  options.num_prompts = 5;
  std::vector<std::string> notes;
  const auto items = LoadDataset(options, &notes);
  ASSERT_TRUE(items);
  EXPECT_EQ(items->size(), 5u);
  EXPECT_EQ(items->at(4).text, "a");
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_THAT(notes[0], HasSubstr("2 prompts for 5 requests"));
  options.dataset_path = "/nonexistent.jsonl";
  EXPECT_THAT(LoadDataset(options, &notes).error().message, HasSubstr("/nonexistent.jsonl"));
}

std::string WordsOf(const WorkItem& item) { return item.text + item.messages_json; }

TEST(TextDatasets, FollowFromTheSeedAndNoTwoPromptsAreAlike) {
  for (const std::string dataset : {"copy", "code-edit", "chat"}) {
    for (const std::string endpoint : {"/v1/completions", "/v1/chat/completions"}) {
      Options options;
      options.dataset = dataset;
      options.endpoint = endpoint;
      options.num_prompts = 40;
      options.seed = 7;
      std::vector<std::string> notes;
      const auto items = LoadDataset(options, &notes);
      const auto again = LoadDataset(options, &notes);
      options.seed = 8;
      const auto other = LoadDataset(options, &notes);
      ASSERT_TRUE(items && again && other);
      ASSERT_EQ(items->size(), 40u);
      std::set<std::string> prompts;
      for (size_t i = 0; i < items->size(); ++i) {
        const std::string words = WordsOf((*items)[i]);
        EXPECT_EQ(words, WordsOf((*again)[i]));
        EXPECT_NE(words, WordsOf((*other)[i]));
        EXPECT_EQ((*items)[i].messages_json.empty(), endpoint == "/v1/completions");
        prompts.insert(words);
      }
      EXPECT_GE(prompts.size(), dataset == "chat" ? 36u : 40u) << dataset;
    }
  }
}

TEST(TextDatasets, CopyAndCodeEditAskForATextOfTheLengthThatIsSaid) {
  for (const std::string dataset : {"copy", "code-edit"}) {
    Options options;
    options.dataset = dataset;
    options.endpoint = "/v1/chat/completions";
    options.num_prompts = 5;
    options.input_len = 500;
    std::vector<std::string> notes;
    const auto items = LoadDataset(options, &notes);
    ASSERT_TRUE(items);
    for (const WorkItem& item : *items) {
      EXPECT_NEAR(static_cast<double>(item.output_tokens), 500, 80);
      EXPECT_GT(item.input_tokens, item.output_tokens);
      EXPECT_THAT(item.messages_json, HasSubstr("again"));
    }
    options.output_len = 30;
    EXPECT_EQ(LoadDataset(options, &notes)->front().output_tokens, 30);
  }
}

}  // namespace
}  // namespace aisp::loadgen
