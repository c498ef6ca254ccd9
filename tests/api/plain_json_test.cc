// The fast parser against the library: equal wherever it answers, and it answers for what clients
// send.
#include "api/plain_json.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "api/json_value.h"
#include "common/random.h"

namespace aisp {
namespace {

constexpr int kDepth = 5;

bool Same(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Value::Kind::kBool:
      return a.AsBool() == b.AsBool();
    case Value::Kind::kInt:
      return a.AsInt() == b.AsInt();
    case Value::Kind::kFloat:
      return a.AsFloat() == b.AsFloat();
    case Value::Kind::kString:
      return a.AsString() == b.AsString();
    case Value::Kind::kList:
      return std::equal(a.AsList().begin(), a.AsList().end(), b.AsList().begin(), b.AsList().end(),
                        Same);
    case Value::Kind::kMap:
      return std::equal(a.AsMap().begin(), a.AsMap().end(), b.AsMap().begin(), b.AsMap().end(),
                        [](const auto& x, const auto& y) {
                          return x.first == y.first && Same(x.second, y.second);
                        });
    default:
      return true;
  }
}

// Whether the fast parser answers; if so, as the library.
bool Answers(std::string_view text) {
  const std::optional<Value> plain = ParsePlainJson(text, kDepth);
  if (!plain) return false;
  const Result<Value> any = ParseAnyJson(text, kDepth);
  EXPECT_TRUE(any.has_value()) << text;
  if (any) {
    EXPECT_TRUE(Same(*plain, *any)) << text;
  }
  return true;
}

const std::vector<std::string> kKnown = {
    R"({"prompt": [1, 22, 333, 0, -7, 128255], "max_tokens": 8, "temperature": 0.7, "stream": true})",
    R"({"messages": [{"role": "user", "content": "Say \"hi\"\n\tto C:\\ \/ \b\f\r"}], "n": 1, "stop": null})",
    R"( { "a" : [ ] , "b" : { } , "c" : [ [ ] , { "d" : false } ] , "a" : 2 } )",
    "[\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\", \"\x7f\", \"\"]",
    "[0, -0, 999999999999999999, -999999999999999999, 0.5, -0.0, 1e3, 1.5E-7, 12.25e+2, 5e-324]",
    "\t\r\n 17 ",
    "[[[[[1]]]]]"};

const std::vector<std::string> kUnknown = {"",
                                           " ",
                                           "{",
                                           "[1",
                                           "[1,]",
                                           "[,1]",
                                           "{\"a\"}",
                                           "{\"a\":}",
                                           "{\"a\":1,}",
                                           "{a:1}",
                                           "{\"a\" 1}",
                                           "01",
                                           "-",
                                           "+1",
                                           "1.",
                                           ".5",
                                           "1e",
                                           "1e+",
                                           "-.5",
                                           "0x10",
                                           "1 2",
                                           "tru",
                                           "nul",
                                           "nullx",
                                           "True",
                                           "NaN",
                                           "Infinity",
                                           "-Infinity",
                                           "1e999",
                                           "\"",
                                           "\"a",
                                           "\"\\u00e9\"",
                                           "\"\\x\"",
                                           "\"\\",
                                           "\"a\nb\"",
                                           "[[[[[[1]]]]]]",
                                           "{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{}}}}}}",
                                           "9223372036854775808",
                                           "\"\xff\"",
                                           "\"\xc0\x80\"",
                                           "\"\xed\xa0\x80\"",
                                           "\"\xf4\x90\x80\x80\"",
                                           "\"\xe2\x82\"",
                                           "\xef\xbb\xbf[1]",
                                           "'a'",
                                           "[1]]",
                                           "//x\n1",
                                           std::string("1\0", 2)};

TEST(PlainJson, AnswersAsTheLibraryForWhatClientsSend) {
  for (const std::string& text : kKnown) EXPECT_TRUE(Answers(text)) << text;
}

TEST(PlainJson, LeavesTheRestToTheLibrary) {
  for (const std::string& text : kUnknown) EXPECT_FALSE(Answers(text)) << text;
}

TEST(PlainJson, AgreesWithTheLibraryOnDamagedTexts) {
  std::vector<std::string> seeds = kKnown;
  seeds.insert(seeds.end(), kUnknown.begin(), kUnknown.end());
  for (const auto& file : std::filesystem::directory_iterator(std::string(AISP_SOURCE_DIR) +
                                                              "/tests/fuzz/corpus/api_body")) {
    std::ifstream in(file.path(), std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  constexpr std::string_view kBytes = "{}[]\",:\\0123456789-+.eEtrufalsn \n\t\x01\x80\xc3\xff";
  SplitMix64 random(11);
  int answered = 0;
  for (int i = 0; i < 30000; ++i) {
    std::string text = seeds[random.Below(seeds.size())];
    for (uint64_t edits = 1 + random.Below(3); edits > 0 && !text.empty(); --edits) {
      const size_t at = random.Below(text.size());
      const char byte = kBytes[random.Below(kBytes.size())];
      switch (random.Below(3)) {
        case 0:
          text[at] = byte;
          break;
        case 1:
          text.insert(text.begin() + static_cast<ptrdiff_t>(at), byte);
          break;
        default:
          text.erase(at, 1 + random.Below(3));
      }
    }
    answered += Answers(text) ? 1 : 0;
  }
  EXPECT_GT(answered, 1000);
}

}  // namespace
}  // namespace aisp
