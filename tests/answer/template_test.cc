// The round trip: what a model's own template writes for an assistant's calls is parsed as those
// calls. Uses third-party templates where they are present.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "answer/parser.h"
#include "text/chat_template.h"

namespace aisp {
namespace {

namespace fs = std::filesystem;

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

const Value kArguments(Value::Map{
    {"city", "Oslo \"N\""}, {"days", 3}, {"deep", Value(Value::Map{{"a", Value()}})}});
constexpr char kArgumentsText[] = R"({"city": "Oslo \"N\"", "days": 3, "deep": {"a": null}})";

Value::Map Context(bool called, bool as_text) {
  const Value arguments = as_text ? Value(kArgumentsText) : kArguments;
  const Value function(Value::Map{{"name", "get_weather"}, {"arguments", arguments}});
  Value::List messages{Value(Value::Map{{"role", "user"}, {"content", "Weather?"}})};
  if (called) {
    const Value call(Value::Map{{"id", "abcdef123"},
                                {"type", "function"},
                                {"function", function},
                                {"name", "get_weather"},
                                {"arguments", arguments}});
    messages.push_back(Value(Value::Map{{"role", "assistant"},
                                        {"content", as_text ? Value() : Value("")},
                                        {"tool_calls", Value(Value::List{call})}}));
  }
  const Value parameters(Value::Map{
      {"type", "object"},
      {"properties", Value(Value::Map{{"city", Value(Value::Map{{"type", "string"}})}})}});
  const Value tool(Value::Map{{"type", "function"},
                              {"function", Value(Value::Map{{"name", "get_weather"},
                                                            {"description", "The weather."},
                                                            {"parameters", parameters}})}});
  return Value::Map{{"messages", Value(std::move(messages))},
                    {"tools", Value(Value::List{tool})},
                    {"add_generation_prompt", Value(!called)},
                    {"bos_token", "<s>"},
                    {"eos_token", "</s>"}};
}

// The assistant's text: the part after the prompt, without the end of its turn.
std::string Said(const std::string& prompt, std::string all) {
  size_t common = 0;
  while (common < prompt.size() && common < all.size() && prompt[common] == all[common]) ++common;
  // Two markers with a common beginning end the common part inside one of them.
  const size_t marker = all.rfind('<', common);
  if (marker != std::string::npos && all.find('>', marker) >= common) common = marker;
  all.erase(0, common);
  for (const char* end : {"<|im_end|>", "<|eot_id|>", "</s>", "<｜end▁of▁sentence｜>", "<|end|>"}) {
    const size_t at = all.rfind(end);
    if (at != std::string::npos) all.resize(at);
  }
  return all;
}

TEST(CallFormats, MistralsAreToldApartByTemplateAndTokenizer) {
  const std::string old = "{{ '[TOOL_CALLS][' }}{{ message.tool_calls }}";
  const std::string late =
      "{{ '[TOOL_CALLS]' + call.function.name + '[ARGS]' + arguments }}{{ tools }}";
  EXPECT_EQ(DetectCallFormat(old)->name, "mistral");
  EXPECT_EQ(DetectCallFormat(old, /*args_token=*/true)->name, "mistral_args");
  EXPECT_EQ(DetectCallFormat(late)->name, "mistral_args");
  EXPECT_EQ(DetectCallFormat("{{ tools }}", true), nullptr);
}

TEST(CallFormats, TemplatesAndParsersAgree) {
  const fs::path folder = fs::path(AISP_SHARED_DIR) / "templates";
  if (!fs::is_directory(folder)) GTEST_SKIP() << folder << " is not here";
  std::set<std::string> formats;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".jinja") continue;
    const std::string source = ReadFile(entry.path());
    const CallFormat* format = DetectCallFormat(source);
    const auto parsed = ChatTemplate::Parse(source);
    if (format == nullptr || !parsed) continue;
    // A reasoning model's template may know calls without writing them.
    for (const bool as_text : {false, true}) {
      const auto prompt = parsed->Render(Context(false, as_text), {});
      const auto all = parsed->Render(Context(true, as_text), {});
      if (!prompt || !all) continue;
      const std::string said = Said(*prompt, *all);
      if (said.find("get_weather") == std::string::npos) continue;
      AnswerParserOptions options;
      options.calls = format;
      options.think = DetectThinkFormat(source);
      const auto parser = MakeAnswerParser(options);
      std::vector<AnswerPart> parts;
      for (const char c : said) parser->Push(std::string_view(&c, 1), &parts);
      parser->Finish(&parts);
      std::string name, arguments;
      for (const AnswerPart& part : parts) {
        if (part.kind == AnswerPart::Kind::kCall) name += part.text;
        if (part.kind == AnswerPart::Kind::kArguments) arguments += part.text;
      }
      EXPECT_EQ(name, "get_weather") << entry.path().filename() << ": " << said;
      EXPECT_EQ(nlohmann::json::parse(arguments, nullptr, false),
                nlohmann::json::parse(kArgumentsText))
          << entry.path().filename() << ": " << said;
      formats.insert(std::string(format->name));
      break;
    }
  }
  for (const char* format : {"hermes", "llama3_json", "mistral", "deepseek_v3"})
    EXPECT_TRUE(formats.contains(format)) << format;
}

}  // namespace
}  // namespace aisp
