#include "answer/parser.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace aisp {
namespace {

// "content|<reasoning>|name(arguments)|...", however the text was cut.
std::string Shown(const std::vector<AnswerPart>& parts) {
  std::string content, reasoning, calls;
  for (const AnswerPart& part : parts) {
    switch (part.kind) {
      case AnswerPart::Kind::kContent:
        content += part.text;
        break;
      case AnswerPart::Kind::kReasoning:
        reasoning += part.text;
        break;
      case AnswerPart::Kind::kCall:
        calls += "|" + part.text + " ";
        break;
      case AnswerPart::Kind::kArguments:
        calls += part.text;
        break;
    }
  }
  return "c:" + content + "|r:" + reasoning + calls;
}

std::string Parsed(const AnswerParserOptions& options, const std::string& text, size_t piece) {
  const auto parser = MakeAnswerParser(options);
  std::vector<AnswerPart> parts;
  for (size_t at = 0; at < text.size(); at += piece) parser->Push(text.substr(at, piece), &parts);
  parser->Finish(&parts);
  return Shown(parts);
}

// The same whatever the pieces are.
std::string Parsed(const AnswerParserOptions& options, const std::string& text) {
  const std::string whole = Parsed(options, text, text.size() + 1);
  for (const size_t piece : {1, 2, 3, 7}) EXPECT_EQ(Parsed(options, text, piece), whole) << piece;
  return whole;
}

AnswerParserOptions Calls(std::string_view name) {
  AnswerParserOptions options;
  options.calls = FindCallFormat(name);
  EXPECT_NE(options.calls, nullptr) << name;
  return options;
}

TEST(AnswerParser, HermesCallsStandBetweenTags) {
  const auto o = Calls("hermes");
  EXPECT_EQ(Parsed(o, "plain text < 5"), "c:plain text < 5|r:");
  EXPECT_EQ(Parsed(o,
                   "Sure.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"\"}}\n"
                   "</tool_call>"),
            "c:Sure.\n|r:|f {\"a\": \"}\\\"\"}");
  EXPECT_EQ(Parsed(o,
                   "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n"
                   "<tool_call>\n{\"arguments\": {\"b\": [1, {}]}, \"name\": \"g\"}\n"
                   "</tool_call>"),
            "c:|r:|f {}|g {\"b\": [1, {}]}");
  EXPECT_EQ(Parsed(o, "<tool_call>{\"name\": \"f\"}</tool_call> done"), "c:done|r:|f {}");
  // Cut off by the limit of tokens: what was said of the call stays.
  EXPECT_EQ(Parsed(o, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1"),
            "c:|r:|f {\"a\": 1");
}

TEST(AnswerParser, WhatIsNoCallIsContent) {
  const auto o = Calls("hermes");
  for (const char* text : {"<tool_call> is a tag", "<tool_call>{\"x\": 1}</tool_call>",
                           "<tool_call>", "<tool_c", "a <tool_call>[] b"}) {
    EXPECT_EQ(Parsed(o, text), std::string("c:") + text + "|r:");
  }
}

TEST(AnswerParser, LlamaWritesBareObjects) {
  const auto o = Calls("llama3_json");
  EXPECT_EQ(Parsed(o, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}"), "c:|r:|f {\"a\": 1}");
  EXPECT_EQ(Parsed(o,
                   "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": "
                   "{}}; {\"name\": \"g\", \"parameters\": {}}"),
            "c:|r:|f {}|g {}");
  EXPECT_EQ(Parsed(o, "{\"answer\": 4}"), "c:{\"answer\": 4}|r:");
  EXPECT_EQ(Parsed(o, "It is {4}."), "c:It is {4}.|r:");
}

TEST(AnswerParser, BlanksBehindArgumentsAreNoneOfThem) {
  const auto o = Calls("llama3_json");
  EXPECT_EQ(Parsed(o, "{\"name\": \"f\", \"parameters\": {\"a\": 1} }"), "c:|r:|f {\"a\": 1}");
  EXPECT_EQ(Parsed(o, "{\"name\": \"f\", \"parameters\": {\"a\": 1}\n\t , \"x\": 2}"),
            "c:|r:|f {\"a\": 1}");
  EXPECT_EQ(Parsed(o, "{\"name\": \"f\", \"parameters\": {\"a\": \" b  \" } \n}"),
            "c:|r:|f {\"a\": \" b  \" }");
  // Brackets that do not match end an object all the same.
  EXPECT_EQ(Parsed(o, "{\"name\": \"f\", \"parameters\": {\"a\": [1,:}} ]2"),
            "c:2|r:|f {\"a\": [1,:}}");
}

TEST(AnswerParser, MistralWritesAList) {
  const auto o = Calls("mistral");
  EXPECT_EQ(Parsed(o,
                   "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", "
                   "\"arguments\": {}, \"id\": \"123456789\"}]"),
            "c:|r:|f {\"a\": 1}|g {}");
  EXPECT_EQ(Parsed(o, "[1] is a list"), "c:[1] is a list|r:");
}

TEST(AnswerParser, DeepSeekWritesTheNameFirst) {
  const auto o = Calls("deepseek_v3");
  const std::string call =
      "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```"
      "<｜tool▁call▁end｜>";
  EXPECT_EQ(Parsed(o, "Wait. <｜tool▁calls▁begin｜>" + call + "\n" + call + "<｜tool▁calls▁end｜>"),
            "c:Wait. |r:|f {\"a\": 1}|f {\"a\": 1}");
  EXPECT_EQ(Parsed(o,
                   "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}"
                   "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
            "c:|r:|f {}");
}

TEST(AnswerParser, PythonicAndTaggedCallsBecomeJson) {
  EXPECT_EQ(Parsed(Calls("pythonic"), "[f(a=1, b='it\\'s', c=[True, None]), g()]"),
            "c:|r:|f {\"a\":1,\"b\":\"it's\",\"c\":[true,null]}|g {}");
  EXPECT_EQ(Parsed(Calls("pythonic"), "[1, 2]"), "c:[1, 2]|r:");
  EXPECT_EQ(Parsed(Calls("pythonic"), "[f(a=1"), "c:[f(a=1|r:");
  auto o = Calls("qwen3_coder");
  o.parameters = std::make_shared<Value::Map>(Value::Map{
      {"f", Value(Value::Map{
                {"properties",
                 Value(Value::Map{{"zip", Value(Value::Map{{"type", Value("string")}})}})}})}});
  EXPECT_EQ(Parsed(o,
                   "<tool_call>\n<function=f>\n<parameter=zip>\n01234\n</parameter>\n"
                   "<parameter=n>\n5\n</parameter>\n<parameter=t>\na\nb\n</parameter>\n"
                   "</function>\n</tool_call>"),
            "c:|r:|f {\"zip\": \"01234\", \"n\": 5, \"t\": \"a\\nb\"}");
}

TEST(AnswerParser, HarmonyHasChannels) {
  const auto o = Calls("openai");
  EXPECT_EQ(Parsed(o,
                   "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant"
                   "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\":1}"),
            "c:|r:Let me see.|f {\"a\":1}");
  EXPECT_EQ(Parsed(o,
                   "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final"
                   "<|message|>Hello < you"),
            "c:Hello < you|r:Hm");
  EXPECT_EQ(Parsed(o,
                   "<|start|>assistant to=functions.g<|channel|>commentary json<|message|>{}"
                   "<|call|>"),
            "c:|r:|g {}");
  EXPECT_EQ(Parsed(o, "just text"), "c:just text|r:");
}

TEST(AnswerParser, ThinkingComesBeforeTheRest) {
  AnswerParserOptions o = Calls("hermes");
  o.think = FindThinkFormat("think");
  EXPECT_EQ(Parsed(o, "<think>\nHm < 3\n</think>\n\nYes"), "c:Yes|r:Hm < 3\n");
  EXPECT_EQ(Parsed(o,
                   "<think>\n\n</think>\n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}"
                   "</tool_call>"),
            "c:|r:|f {}");
  EXPECT_EQ(Parsed(o, "No thought"), "c:No thought|r:");
  EXPECT_EQ(Parsed(o, "<thin"), "c:<thin|r:");
  o.in_thinking = true;
  EXPECT_EQ(Parsed(o, "still</think>said"), "c:said|r:still");
  EXPECT_EQ(Parsed(o, "never ends"), "c:|r:never ends");
  EXPECT_EQ(Parsed({}, " as it is "), "c: as it is |r:");
}

}  // namespace
}  // namespace aisp
