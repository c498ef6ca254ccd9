#include "text/tokenizer.h"

#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/text/fixtures.h"
#include "text/detokenizer.h"

namespace aisp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Json;

Result<std::unique_ptr<Tokenizer>> LoadJson(const std::string& content,
                                            const std::string& config = "") {
  TempFolder folder;
  folder.Write("tokenizer.json", content);
  if (!config.empty()) folder.Write("tokenizer_config.json", config);
  return Tokenizer::Load(folder.path());
}

std::unique_ptr<Tokenizer> Tiny(const Json& json = testing::TinyTokenizer()) {
  auto tokenizer = LoadJson(json.dump());
  EXPECT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  return *std::move(tokenizer);
}

TEST(Tokenizer, MergesTheLowestRankFirst) {
  const auto t = Tiny();
  // "b c" has rank 0: abc is a + bc, then "a bc" makes abc; ab alone merges.
  EXPECT_THAT(*t->Encode("abc", false), ElementsAre(5));
  EXPECT_THAT(*t->Encode("ab", false), ElementsAre(4));
  EXPECT_THAT(*t->Encode("ab a", false), ElementsAre(4, 7));
}

TEST(Tokenizer, AddsTheSpecialTokensOfTheTemplateOnlyWhenAsked) {
  const auto t = Tiny();
  EXPECT_THAT(*t->Encode("a", true), ElementsAre(10, 0));
  EXPECT_THAT(*t->Encode("", true), ElementsAre(10));
  EXPECT_THAT(*t->Encode("", false), ElementsAre());
}

TEST(Tokenizer, ParsesSpecialTokensInTextOnlyWhenAsked) {
  const auto t = Tiny();
  EXPECT_THAT(*t->Encode("a<|end|>b", false, true), ElementsAre(0, 10, 1));
  // As plain text, the letters that the vocabulary has remain.
  EXPECT_THAT(*t->Encode("a<|end|>b", false, false), ElementsAre(0, 1));
}

TEST(Tokenizer, StrippingTokensTakeTheWhiteSpaceAroundThem) {
  const auto t = Tiny();
  EXPECT_THAT(*t->Encode("a  <|strip|> \n b", false), ElementsAre(0, 11, 1));
}

TEST(Tokenizer, SingleWordTokensDoNotMatchInsideWords) {
  const auto t = Tiny();
  EXPECT_THAT(*t->Encode("word", false), ElementsAre(12));
  EXPECT_THAT(*t->Encode("aword", false), ElementsAre(0));
  EXPECT_THAT(*t->Encode("b-word", false), ElementsAre(1, 12));
}

TEST(Tokenizer, RefusesInvalidUtf8AndNamesTheByte) {
  const auto t = Tiny();
  const auto r = t->Encode("ab\xFF", false);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, Code::kInvalidArgument);
  EXPECT_THAT(r.error().message, HasSubstr("byte 2"));
}

TEST(Tokenizer, DecodesIdsOutsideTheVocabularyToNothing) {
  const auto t = Tiny();
  const std::vector<TokenId> ids = {5, -1, 99, 10, 7};
  EXPECT_EQ(t->Decode(ids, false), "abc<|end|> a");
  EXPECT_EQ(t->Decode(ids, true), "abc a");
  EXPECT_EQ(t->VocabSize(), 13);
  EXPECT_EQ(t->TokenToId("Ġa"), 7);
  EXPECT_EQ(t->IdToPiece(7), " a");
  EXPECT_EQ(t->TokenToId("zzz"), std::nullopt);
}

TEST(Tokenizer, ReadsBosAndEosFromTheConfiguration) {
  const auto t = LoadJson(testing::TinyTokenizer().dump(),
                          R"({"bos_token": {"content": "<|strip|>"}, "eos_token": "<|end|>"})");
  ASSERT_TRUE(t) << t.error().message;
  EXPECT_EQ((*t)->BosId(), 11);
  EXPECT_EQ((*t)->EosId(), 10);
  EXPECT_EQ((*t)->BosToken(), "<|strip|>");
}

TEST(Tokenizer, FingerprintFollowsTheContent) {
  Json changed = testing::TinyTokenizer();
  changed["model"]["ignore_merges"] = true;
  EXPECT_EQ(Tiny()->Fingerprint(), Tiny()->Fingerprint());
  EXPECT_NE(Tiny()->Fingerprint(), Tiny(changed)->Fingerprint());
  EXPECT_EQ(Tiny()->Fingerprint().size(), 32u);
}

struct Malformed {
  const char* name;
  const char* pointer;  // what is replaced
  const char* value;
  const char* expected;  // in the message
};

class MalformedTokenizer : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedTokenizer, IsRefusedWithTheNameOfTheField) {
  Json json = testing::TinyTokenizer();
  json[Json::json_pointer(GetParam().pointer)] = Json::parse(GetParam().value);
  const auto t = LoadJson(json.dump());
  ASSERT_FALSE(t);
  EXPECT_THAT(t.error().message, HasSubstr("tokenizer.json"));
  EXPECT_THAT(t.error().message, HasSubstr(GetParam().expected));
}

INSTANTIATE_TEST_SUITE_P(
    All, MalformedTokenizer,
    ::testing::Values(
        Malformed{"Model", "/model/type", R"("Unigram")", "model.type"},
        Malformed{"Vocab", "/model/vocab", "[1]", "model.vocab"},
        Malformed{"NegativeId", "/model/vocab/a", "-1", "model.vocab[\"a\"]"},
        Malformed{"HugeId", "/model/vocab/a", "99999999999", "model.vocab[\"a\"]"},
        Malformed{"UnknownMerge", "/model/merges/1", R"("a z")", "model.merges[1]"},
        Malformed{"OddMerge", "/model/merges/0", R"("abc")", "model.merges[0]"},
        Malformed{"MergeType", "/model/merges/2", "7", "model.merges[2]"},
        Malformed{"Unk", "/model/unk_token", R"("<unk>")", "model.unk_token"},
        Malformed{"Suffix", "/model/end_of_word_suffix", R"("</w>")", "model.end_of_word_suffix"},
        Malformed{"Normalizer", "/normalizer", R"({"type": "Precompiled"})", "normalizer"},
        Malformed{"PreTokenizer", "/pre_tokenizer/type", R"("Magic")", "pre_tokenizer"},
        Malformed{"Pattern", "/pre_tokenizer",
                  R"({"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"})",
                  "pre_tokenizer.pattern.Regex"},
        Malformed{"Behavior", "/pre_tokenizer",
                  R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "Odd"})",
                  "pre_tokenizer.behavior"},
        Malformed{"Decoder", "/decoder/type", R"("CTC")", "decoder"},
        Malformed{"AddedId", "/added_tokens/0/id", "4194304", "added_tokens[0].id"},
        Malformed{"AddedContent", "/added_tokens/1/content", "null", "added_tokens[1].content"},
        Malformed{"PostProcessor", "/post_processor/special_tokens/<|end|>/ids/0", "77",
                  "post_processor.special_tokens"}),
    [](const auto& test) { return test.param.name; });

TEST(Tokenizer, NamesTheFolderWithoutATokenizer) {
  TempFolder folder;
  const auto t = Tokenizer::Load(folder.path());
  ASSERT_FALSE(t);
  EXPECT_EQ(t.error().code, Code::kNotFound);
  EXPECT_FALSE(LoadJson("{\"model\": "));
  EXPECT_FALSE(LoadJson("[]"));
}

TEST(Tokenizer, SurvivesEveryCutOfItsFile) {
  const std::string whole = testing::TinyTokenizer().dump();
  for (size_t size = 0; size < whole.size(); size += 7)
    EXPECT_FALSE(LoadJson(whole.substr(0, size))) << size;
}

// A model of SentencePiece's kind, in protobuf's wire format.
std::string Piece(const std::string& text, float score, int type) {
  std::string m = "\x0A" + std::string(1, static_cast<char>(text.size())) + text + "\x15";
  m.append(reinterpret_cast<const char*>(&score), 4);
  m += std::string("\x18") + static_cast<char>(type);
  return "\x0A" + std::string(1, static_cast<char>(m.size())) + m;
}
std::string TinySentencePiece() {
  return Piece("<unk>", 0, 2) + Piece("<s>", 0, 3) + Piece("</s>", 0, 3) + Piece("\u2581", -1, 1) +
         Piece("a", -2, 1) + Piece("b", -3, 1) + Piece("ab", -4, 1) + Piece("\u2581a", -5, 1) +
         std::string("\x12\x02\x18\x02", 4) +  // trainer_spec.model_type = BPE
         std::string("\x1A\x02\x20\x00", 4);   // normalizer_spec.remove_extra_whitespaces = false
}

TEST(SentencePiece, MergesTheHighestScoreFirst) {
  TempFolder folder;
  folder.Write("tokenizer.model", TinySentencePiece());
  const auto t = Tokenizer::Load(folder.path());
  ASSERT_TRUE(t) << t.error().message;
  EXPECT_THAT(*(*t)->Encode("ab", false),
              ElementsAre(3, 6));                            // the dummy prefix, then ab before _a
  EXPECT_THAT(*(*t)->Encode("a", true), ElementsAre(1, 7));  // BOS
  EXPECT_THAT(*(*t)->Encode("a</s>", false, true), ElementsAre(7, 2));
  EXPECT_THAT(*(*t)->Encode("zz", false),
              ElementsAre(3, 0));  // a run of unknown characters is one <unk>
  EXPECT_EQ((*t)->Decode(std::vector<TokenId>{7, 5, 7}, true), "ab a");
  EXPECT_EQ((*t)->EosToken(), "</s>");
}

TEST(SentencePiece, SurvivesEveryCutOfItsFile) {
  const std::string whole = TinySentencePiece();
  for (size_t size = 0; size < whole.size(); ++size) {
    TempFolder folder;
    folder.Write("tokenizer.model", whole.substr(0, size));
    const auto t = Tokenizer::Load(folder.path());
    if (!t)
      continue;  // an error is a valid result; a model that was cut after a piece must still work
    EXPECT_TRUE((*t)->Encode("ab ab", true)) << size;
  }
}

TEST(StoryModel, RenderedPromptsHaveTheRecordedIds) {
  const auto folder = std::filesystem::path(AISP_SOURCE_DIR) / "models" / "story-7m";
  const auto t = Tokenizer::Load(folder.string());
  ASSERT_TRUE(t) << t.error().message;
  EXPECT_EQ((*t)->TokenToId("<|end|>"), (*t)->EosId());
  const Json expected = Json::parse(testing::ReadAll(folder / "expected.json"));
  ASSERT_FALSE(expected["cases"].empty());
  for (const Json& c : expected["cases"]) {
    // For chats the template adds BOS; for plain text the post-processor does.
    const bool chat = c["input"].is_array();
    const auto ids =
        (*t)->Encode((chat ? c["rendered"] : c["input"]).get<std::string>(), /*add_special=*/!chat);
    ASSERT_TRUE(ids);
    EXPECT_EQ(*ids, c["prompt_ids"].get<std::vector<TokenId>>());
    const auto greedy = c["greedy_ids"].get<std::vector<TokenId>>();
    Detokenizer detokenizer(**t, true);
    std::string streamed;
    for (const TokenId id : greedy) streamed += detokenizer.Push(id);
    EXPECT_EQ(streamed + detokenizer.Flush(), (*t)->Decode(greedy, true));
    EXPECT_EQ((*t)->Decode(greedy, true), c["greedy_text"].get<std::string>());
  }
}

// A limit far above what is needed, far below what a quadratic merge would take (minutes).
TEST(StoryModel, AMegabyteWithoutASpaceIsNoDenialOfService) {
  const auto t = Tokenizer::Load(std::string(AISP_SOURCE_DIR) + "/models/story-7m");
  ASSERT_TRUE(t) << t.error().message;
  std::string word;
  uint32_t random = 1;
  while (word.size() < (1u << 20)) {
    random = random * 1664525u + 1013904223u;
    word.push_back(static_cast<char>('a' + (random >> 24) % 26));
  }
  for (const std::string& text :
       {word, std::string(1 << 20, 'a'), std::string(1 << 20, ' '), std::string(1 << 20, '\n')}) {
    const auto begin = std::chrono::steady_clock::now();
    const auto ids = (*t)->Encode(text, false);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    ASSERT_TRUE(ids);
    EXPECT_LT(elapsed.count(), 20.0);
    EXPECT_EQ((*t)->Decode(*ids, false), text);
  }
}

class PublishedTokenizer : public ::testing::TestWithParam<const char*> {};

TEST_P(PublishedTokenizer, GivesTheRecordedIdsAndTexts) {
  const auto folder = std::filesystem::path(AISP_SHARED_DIR) / "tokenizers" / GetParam();
  if (!std::filesystem::exists(folder / "expected.json"))
    GTEST_SKIP() << "no " << folder << "; set AISP_SHARED_DIR";
  const bool sentence_piece = !std::filesystem::exists(folder / "tokenizer.json");
  const auto t = Tokenizer::Load(folder.string());
  ASSERT_TRUE(t) << t.error().message;
  const Json expected = Json::parse(testing::ReadAll(folder / "expected.json"));
  ASSERT_GT(expected["cases"].size(), 50u);
  for (const Json& c : expected["cases"]) {
    const auto text = c["text"].get<std::string>();
    const auto ids = c["ids"].get<std::vector<TokenId>>();
    // SentencePiece itself never looks for control tokens in text.
    EXPECT_EQ(*(*t)->Encode(text, false, !sentence_piece), ids) << text;
    EXPECT_EQ((*t)->Decode(ids, false), c["decoded"].get<std::string>());
    Detokenizer detokenizer(**t, false);
    std::string streamed;
    for (const TokenId id : ids) streamed += detokenizer.Push(id);
    EXPECT_EQ(streamed + detokenizer.Flush(), c["decoded"].get<std::string>());
    if (sentence_piece) continue;
    EXPECT_EQ(*(*t)->Encode(text, true), c["ids_with_special"].get<std::vector<TokenId>>()) << text;
    EXPECT_EQ((*t)->Decode(ids, true), c["decoded_skip_special"].get<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(All, PublishedTokenizer,
                         ::testing::Values("llama-3", "qwen2", "gpt-2", "phi-2", "phi-3", "falcon",
                                           "llama-2-spm", "mistral-v1-spm", "mistral-v3-spm"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace aisp
