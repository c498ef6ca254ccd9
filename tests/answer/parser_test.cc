#include "answer/parser.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace aisp {
namespace {

// "content|<reasoning>|name(arguments)|...", whatever the pieces were.
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

// The result does not depend on the pieces.
std::string Parsed(const AnswerParserOptions& options, const std::string& text) {
  const std::string whole = Parsed(options, text, text.size() + 1);
  for (const size_t piece : {1, 2, 3, 7}) EXPECT_EQ(Parsed(options, text, piece), whole) << piece;
  for (size_t cut = 1; cut < text.size(); ++cut) {
    const auto parser = MakeAnswerParser(options);
    std::vector<AnswerPart> parts;
    parser->Push(text.substr(0, cut), &parts);
    parser->Push(text.substr(cut), &parts);
    parser->Finish(&parts);
    EXPECT_EQ(Shown(parts), whole) << "cut at " << cut;
  }
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
  // Cut off by the token limit: the part of the call that came stays.
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

TEST(AnswerParser, ACallThatIsCutOffBeforeItsArgumentsIsNoContent) {
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
  for (const char* begun : {"\n<tool", "\n<tool_call>\n{\"name\"", "\n<tool_call>\n{\"name\": \"g"})
    EXPECT_EQ(Parsed(Calls("hermes"), call + begun), "c:|r:|f {}") << begun;
  EXPECT_EQ(Parsed(Calls("hermes"), call + " < 5"), "c:< 5|r:|f {}");
  for (const char* begun : {", ", ", {\"na", ", {\"name\": \"g"}) {
    EXPECT_EQ(Parsed(Calls("mistral"),
                     R"([TOOL_CALLS][{"name": "f", "arguments": {}})" + std::string(begun)),
              "c:|r:|f {}")
        << begun;
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

TEST(AnswerParser, AConstrainedAnswerIsCallsOrContent) {
  auto o = Calls("llama3_json");
  o.calls_or_content = true;
  Value::Map tools;
  tools.Set("get", Value());
  tools.Set("get_all", Value());
  o.parameters = std::make_shared<const Value::Map>(tools);
  EXPECT_EQ(Parsed(o, R"({"name": "get", "parameters": {"a": 1}})"), R"(c:|r:|get {"a": 1})");
  EXPECT_EQ(
      Parsed(o, R"({"name": "get_all", "parameters": {}}; {"name": "get", "parameters": {}})"),
      "c:|r:|get_all {}|get {}");
  for (const char* text :
       {R"({"name": "Ann", "parameters": {}})", R"({"name":"get", "parameters": 7})",
        R"({"name": "get", "age": 3})", R"({"name": "ge)", "{", "", "4",
        R"( {"name": "get", "parameters": {}})"}) {
    EXPECT_EQ(Parsed(o, text), std::string("c:") + text + "|r:");
  }
  o.calls = FindCallFormat("hermes");
  o.think = FindThinkFormat("think");
  const std::string call = "<tool_call>\n{\"name\": \"get\", \"arguments\": {}}\n</tool_call>";
  EXPECT_EQ(Parsed(o, call), "c:|r:|get {}");
  EXPECT_EQ(Parsed(o, "<think>a</think>\n\n" + call), "c:|r:a|get {}");
  // Markers inside of content are content.
  EXPECT_EQ(Parsed(o, "[\"" + call + "\"]"), "c:[\"" + call + "\"]|r:");
  EXPECT_EQ(Parsed(o, "<think>a</think>\n{}" + call), "c:{}" + call + "|r:a");
}

TEST(AnswerParser, BlanksBehindArgumentsAreNoneOfThem) {
  const auto o = Calls("llama3_json");
  EXPECT_EQ(Parsed(o, "{\"name\": \"f\", \"parameters\": {\"a\": 1} }"), "c:|r:|f {\"a\": 1}");
  EXPECT_EQ(Parsed(o, "{\"name\": \"f\", \"parameters\": {\"a\": 1}\n\t , \"x\": 2}"),
            "c:|r:|f {\"a\": 1}");
  EXPECT_EQ(Parsed(o, "{\"name\": \"f\", \"parameters\": {\"a\": \" b  \" } \n}"),
            "c:|r:|f {\"a\": \" b  \" }");
  // Unmatched brackets end an object all the same.
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

TEST(AnswerParser, MistralWritesNamesAndArgumentsLater) {
  const auto o = Calls("mistral_args");
  EXPECT_EQ(Parsed(o, "[TOOL_CALLS]f[ARGS]{\"a\": \"[ARGS]}\"}"), "c:|r:|f {\"a\": \"[ARGS]}\"}");
  EXPECT_EQ(Parsed(o, "Yes. [TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[ARGS]{}"),
            "c:Yes. |r:|f {\"a\": 1}|g {}");
  EXPECT_EQ(Parsed(o, "[TOOL_CALLS]f[CALL_ID]abcdef123[ARGS] {}\n[TOOL_CALLS]g[ARGS]{\"b\": {}}"),
            "c:|r:|f {}|g {\"b\": {}}");
  EXPECT_EQ(Parsed(o, "[TOOL_CALLS]f[ARGS]{} Done."), "c:Done.|r:|f {}");
  // Cut off by the token limit.
  EXPECT_EQ(Parsed(o, "[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g"), "c:|r:|f {\"a\": 1}");
  EXPECT_EQ(Parsed(o, "[TOOL_CALLS]f[ARGS]{\"a\": "), "c:|r:|f {\"a\": ");
  // The list format of older models.
  EXPECT_EQ(Parsed(o, R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}])"),
            "c:|r:|f {\"a\": 1}");
  for (const char* text :
       {"[TOOL_CALLS]", "[TOOL_CALLS]f", "[TOOL_CALLS]f[ARGS]", "[TOOL_CALLS]f[ARGS]x",
        "[TOOL_CALLS][ARGS]{}", "[TOOL_CALLS] are made\nso", "[TOOL_CALLS][1]"}) {
    EXPECT_EQ(Parsed(o, text), std::string("c:") + text + "|r:");
  }
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
  EXPECT_EQ(Parsed(Calls("pythonic"), "[f(a=1"), "c:|r:|f {\"a\":1");
  EXPECT_EQ(Parsed(Calls("pythonic"), "[see(this) and that]"), "c:[see(this) and that]|r:");
  EXPECT_EQ(Parsed(Calls("pythonic"), "[f(a={'k': [1, -2.5e3,], \"q\\u00e9\": \"\\n'\\x41\"},)]"),
            "c:|r:|f {\"a\":{\"k\":[1,-2.5e3],\"q\\u00e9\":\"\\n'\\u0041\"}}");
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

// One call as each format writes it, with these arguments.
std::string Written(const std::string& format, const std::string& arguments) {
  if (format == "hermes")
    return "<tool_call>\n{\"name\": \"f\", \"arguments\": " + arguments + "}\n</tool_call>";
  if (format == "llama3_json") return R"({"name": "f", "parameters": )" + arguments + "}";
  if (format == "mistral")
    return R"([TOOL_CALLS][{"name": "f", "arguments": )" + arguments + R"(, "id": "abcdef123"}])";
  if (format == "mistral_args") return "[TOOL_CALLS]f[ARGS]" + arguments;
  if (format == "deepseek_v3") {
    return "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n" +
           arguments + "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
  }
  if (format == "phi4_mini_json")
    return R"(<|tool_call|>[{"name": "f", "arguments": )" + arguments + "}]<|/tool_call|>";
  return "<|channel|>commentary to=functions.f <|constrain|>json<|message|>" + arguments +
         "<|call|>";
}

constexpr const char* kJsonFormats[] = {"hermes",      "llama3_json",    "mistral", "mistral_args",
                                        "deepseek_v3", "phi4_mini_json", "openai"};

TEST(AnswerParser, ArgumentsComeThroughAsTheyAreInEveryFormat) {
  const std::vector<std::string> kArguments = {
      "{}",
      R"({"a": "say \"hi\" and '}]' and \\"})",
      R"({"a": "</tool_call> ``` <|call [/TOOL", "b": [[], {}, [{"c": {}}]]})",
      R"({"ключ": "日本語 🦊 é", "e": "\u00e9\ud83e\udd8a"})",
      R"({"name": "g", "arguments": {"name": "h"}, "parameters": null})",
      "{\"a\":\n  -1.5e-7,\n\t\"b\": true, \"c\": null}",
  };
  for (const char* format : kJsonFormats) {
    for (const std::string& arguments : kArguments) {
      EXPECT_EQ(Parsed(Calls(format), Written(format, arguments)), "c:|r:|f " + arguments)
          << format;
    }
  }
}

TEST(AnswerParser, ACallWithoutArgumentsHasAnEmptyObject) {
  for (const char* format : {"hermes", "mistral", "llama3_json"}) {
    for (const char* none : {"null", "\"\"", "\"{}\""})
      EXPECT_EQ(Parsed(Calls(format), Written(format, none)), "c:|r:|f {}") << format << none;
  }
  EXPECT_EQ(Parsed(Calls("hermes"), "<tool_call>{\"name\": \"f\"}</tool_call>"), "c:|r:|f {}");
}

TEST(AnswerParser, TextStandsBeforeAndBehindCalls) {
  for (const char* format :
       {"hermes", "mistral", "mistral_args", "deepseek_v3", "phi4_mini_json"}) {
    const std::string call = Written(format, R"({"a": 1})");
    EXPECT_EQ(Parsed(Calls(format), "Let me see. " + call), "c:Let me see. |r:|f {\"a\": 1}")
        << format;
    EXPECT_EQ(Parsed(Calls(format), call + " Done."), "c:Done.|r:|f {\"a\": 1}") << format;
  }
  EXPECT_EQ(Parsed(Calls("openai"),
                   "<|channel|>commentary<|message|>Let me see.<|end|>"
                   "<|start|>assistant" +
                       Written("openai", R"({"a": 1})")),
            "c:Let me see.|r:|f {\"a\": 1}");
}

TEST(AnswerParser, TwoCallsKeepTheirOrder) {
  const std::string both = "c:|r:|f {\"a\": 1}|g {}";
  EXPECT_EQ(Parsed(Calls("hermes"),
                   "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n"
                   "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>"),
            both);
  EXPECT_EQ(Parsed(Calls("llama3_json"), R"({"name": "f", "parameters": {"a": 1}}; )"
                                         R"({"name": "g", "parameters": {}})"),
            both);
  EXPECT_EQ(Parsed(Calls("mistral"), R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, )"
                                     R"({"name": "g", "arguments": {}}])"),
            both);
  EXPECT_EQ(
      Parsed(Calls("deepseek_v3"),
             "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
             "{\"a\": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g"
             "\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
      both);
  EXPECT_EQ(Parsed(Calls("openai"), Written("openai", R"({"a": 1})") +
                                        "<|start|>assistant to=functions.g<|channel|>commentary "
                                        "json<|message|>{}<|call|>"),
            both);
}

TEST(AnswerParser, ThinkingStandsBeforeCalls) {
  for (const char* format : {"hermes", "mistral", "mistral_args", "deepseek_v3", "llama3_json"}) {
    AnswerParserOptions options = Calls(format);
    options.think = FindThinkFormat("think");
    const std::string call = Written(format, R"({"a": 1})");
    EXPECT_EQ(Parsed(options, "<think>\nIs <tool_call> { fitting?</think>\n\n" + call),
              "c:|r:Is <tool_call> { fitting?|f {\"a\": 1}")
        << format;
    options.in_thinking = true;
    EXPECT_EQ(Parsed(options, "Hm.</think>" + call), "c:|r:Hm.|f {\"a\": 1}") << format;
  }
  EXPECT_EQ(Parsed(Calls("openai"), "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant" +
                                        Written("openai", "{}")),
            "c:|r:Hm.|f {}");
}

TEST(AnswerParser, NothingIsLostOfWhatIsNoCall) {
  for (const char* text :
       {"\n\n<tool_call>", "a <tool_call> b", "<tool_call>{\"x\": 1}</tool_call>",
        "<tool_call>{\"name\"", " <tool_cal"})
    EXPECT_EQ(Parsed(Calls("hermes"), text), "c:" + std::string(text) + "|r:") << text;
}

// The bound on a call's beginning counts from the text, not from what has arrived: larger pieces
// find no more.
TEST(AnswerParser, LongBeginningsAreJudgedAlikeInPieces) {
  const auto all_text = [](const char* format, const std::string& text) {
    EXPECT_EQ(Parsed(Calls(format), text), "c:" + text + "|r:") << format;
  };
  const std::string most(256, 'a'), more(257, 'a'), far(600, ' ');
  EXPECT_EQ(Parsed(Calls("pythonic"), "[" + most + "(x=1)]"), "c:|r:|" + most + R"( {"x":1})");
  EXPECT_EQ(Parsed(Calls("pythonic"), "[f(" + most + "=1)]"), "c:|r:|f {\"" + most + "\":1}");
  all_text("pythonic", "[" + more + "(x=1)]");
  all_text("pythonic", "[f(" + more + "=1)]");
  all_text("qwen3_coder", "<tool_call>" + far + "<function=f>\n</function></tool_call>");
  all_text("qwen3_coder", "<tool_call><function=" + std::string(600, 'a') + "></function>");
  const std::string named =
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n";
  EXPECT_EQ(Parsed(Calls("deepseek_v3"), named + "{}"), "c:|r:|f {}");
  all_text("deepseek_v3", named + far + "{}");
  // At the bound: a possible marker does not count as part of the text before it.
  for (size_t size = 495; size < 520; ++size) {
    const std::string edge(size, 'a');
    Parsed(Calls("mistral_args"), "[TOOL_CALLS]f[CALL_ID]" + edge + "[ARGS]{}");
    Parsed(Calls("qwen3_coder"), "<tool_call>" + edge + "<function=f></function></tool_call>");
  }
}

TEST(AnswerParser, LineEndsBeforeArgumentsAreNoneOfTheName) {
  EXPECT_EQ(Parsed(Calls("mistral_args"), "[TOOL_CALLS] f\n[ARGS]{}"), "c:|r:|f {}");
  EXPECT_EQ(Parsed(Calls("mistral_args"), "[TOOL_CALLS]f\n[x[ARGS]{}"),
            "c:[TOOL_CALLS]f\n[x[ARGS]{}|r:");
}

TEST(AnswerParser, CallsThatEndBeforeOneBeganAreContent) {
  const std::string none = "<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜>";
  EXPECT_EQ(Parsed(Calls("deepseek_v3"), none + "so"), "c:" + none + "so|r:");
  EXPECT_EQ(
      Parsed(
          Calls("deepseek_v3"),
          none + "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}"),
      "c:" + none + "|r:|f {}");
}

}  // namespace
}  // namespace aisp
