#include "frontend/spelled_arguments.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "answer/parser.h"
#include "tests/constrain/schema_harness.h"

namespace aisp {
namespace {

using Body = CallFormat::Body;

const std::vector<std::string> kPieces = {"\",",
                                          "\", ",
                                          "\")",
                                          ", ",
                                          "True",
                                          "True,",
                                          "False)",
                                          "None",
                                          "=\"",
                                          "=[",
                                          "a=",
                                          "\\\"",
                                          "\\/x",
                                          "\\n",
                                          "n\\/",
                                          "/",
                                          "\n",
                                          "\n\n",
                                          "</",
                                          "</parameter>",
                                          "</parameter>\n",
                                          ">\n",
                                          "\n<",
                                          ">x",
                                          "12",
                                          "3.5",
                                          "parameter",
                                          "<parameter=",
                                          "=n>\n",
                                          "\"x\"",
                                          "{\"k\":",
                                          "]",
                                          "x\ny",
                                          "\": ",
                                          "\"}",
                                          "function>",
                                          "function",
                                          "t\n</parameter>\n"};

constexpr char kSchema[] =
    R"({"type":"object","properties":{"n":{"type":"integer","minimum":10},"s":{"type":"string"},
        "e":{"enum":["a b","a/b"]},"l":{"type":"array","items":{"type":["boolean","null"]}},
        "o":{"type":"object","properties":{"k":{"type":"string"}},"additionalProperties":false}},
        "required":["n"],"additionalProperties":false})";

std::shared_ptr<Constraint> Spelled(Body body, std::string_view schema,
                                    const std::vector<std::string>& texts = {}) {
  return SpellArguments(body, Compile(schema, kPieces, Whitespace::kCompact),
                        std::make_shared<const SpelledTokens>(Vocabulary(kPieces)), texts);
}

TEST(SpelledArguments, PythonIsHeldToTheSchema) {
  const auto c = Spelled(Body::kPythonic, kSchema);
  for (const char* good : {"n=12)", "n=12, s=\"it's \\\"x\\\" \\n\")", "l=[True, None,False],n=10)",
                           "e=\"a/b\", n=99)", "o={\"k\": \"v, w)\"}, n=10)"}) {
    EXPECT_TRUE(Allows(c.get(), good)) << good;
  }
  for (const char* bad : {")", "n=1)", "n=12", "n=\"12\")", "n=12, n=13)", "n=12, x=1)", "n= 12)",
                          "s=\"a\\/b\", n=12)", "l=[true], n=10)", "l=[1], n=10)", "n=12,)",
                          "e=\"a\", n=12)", "n=12)x", "s='x', n=12)"}) {
    EXPECT_FALSE(Allows(c.get(), bad)) << bad;
  }
}

TEST(SpelledArguments, TagsAreHeldToTheSchema) {
  const auto c = Spelled(Body::kXml, kSchema, {"s", "e"});
  const std::string n = "<parameter=n>\n12\n</parameter>\n", end = "</function>";
  for (const std::string& good :
       {n + end, n + "<parameter=s>\na \"b\"\n\\ <c>\n</param\n\n</parameter>\n" + end,
        "<parameter=e>\na/b\n</parameter>\n" + n + end,
        "<parameter=l>\n[true, null]\n</parameter>\n" + n + end,
        n + "<parameter=s>\n\n</parameter>\n" + end,
        n + "<parameter=o>\n{\"k\": \"\\n</parameter>\"}\n</parameter>\n" + end}) {
    EXPECT_TRUE(Allows(c.get(), good)) << good;
  }
  for (const std::string& bad :
       {end, std::string("<parameter=n>\n1\n</parameter>\n") + end, n + n + end, n,
        n + "<parameter=e>\na\n</parameter>\n" + end, n + "<parameter=x>\n1\n</parameter>\n" + end,
        n + "<parameter=e>\na b\n\n</parameter>\n" + end, n + "<parameter=s\":1,\"l>\n" + end,
        n + "<parameter=l>\n[True]\n</parameter>\n" + end, "<parameter=n>12</parameter>" + end}) {
    EXPECT_FALSE(Allows(c.get(), bad)) << bad;
  }
}

std::string Arguments(const AnswerParserOptions& options, std::string_view text) {
  const auto parser = MakeAnswerParser(options);
  std::vector<AnswerPart> parts;
  for (const char c : text) parser->Push({&c, 1}, &parts);
  parser->Finish(&parts);
  std::string out;
  for (const AnswerPart& part : parts) {
    if (part.kind == AnswerPart::Kind::kArguments) out += part.text;
  }
  return out;
}

// At every step of a random walk the mask equals what Advance accepts and some token remains
// allowed; the finished text parses as an instance of the schema.
void Walk(Body body, uint32_t seed) {
  const bool xml = body == Body::kXml;
  const auto c = Spelled(body, kSchema, {"s", "e"});
  const auto json = Compile(kSchema);
  const auto trie = Vocabulary(kPieces);
  std::mt19937 draw(seed);
  const auto matcher = c->NewMatcher();
  TokenMask mask(trie->vocabulary());
  std::string text;
  for (int step = 0; step < 400 && !matcher->IsWhole(); ++step) {
    matcher->Mask(&mask);
    std::vector<TokenId> allowed;
    for (size_t id = 0; id < trie->vocabulary(); ++id) {
      const auto token = static_cast<TokenId>(id);
      const bool taken = matcher->Advance(token);
      if (taken) matcher->Rewind(1);
      ASSERT_EQ(taken, mask.Has(id)) << text << " + " << trie->piece(token);
      const size_t more = id >= 256 || trie->piece(token).find_first_of("\")]<>\n=") == 0 ? 20 : 1;
      if (taken) allowed.insert(allowed.end(), more, token);
    }
    ASSERT_FALSE(allowed.empty()) << text;
    const TokenId token = allowed[draw() % allowed.size()];
    ASSERT_TRUE(matcher->Advance(token));
    text += trie->piece(token);
  }
  if (!matcher->IsWhole()) return;
  AnswerParserOptions options;
  options.calls = FindCallFormat(xml ? "qwen3_coder" : "pythonic");
  const auto texts = Value(Value::Map{{"type", Value("string")}});
  options.parameters = std::make_shared<Value::Map>(Value::Map{
      {"f", Value(Value::Map{{"properties", Value(Value::Map{{"s", texts}, {"e", texts}})}})}});
  const std::string call = OpeningOf(*options.calls, "f") + text +
                           std::string(options.calls->after) + std::string(options.calls->close);
  const std::string arguments = Arguments(options, call);
  EXPECT_TRUE(Allows(json.get(), arguments)) << call << "\nis " << arguments;
}

TEST(SpelledArguments, MasksAndStepsAgreeAndReadersGetInstances) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    Walk(Body::kPythonic, seed);
    Walk(Body::kXml, seed);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace aisp
