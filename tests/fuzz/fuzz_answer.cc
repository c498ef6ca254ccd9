// Parsers of tool calls and reasoning: the first byte chooses the format, the rest is a model's
// output. The text must be parsed the same way byte by byte as in one piece.
#include "answer/format.h"
#include "answer/parser.h"
#include "common/check.h"
#include "tests/fuzz/fuzz_target.h"

namespace aisp {
namespace {

struct Parsed {
  std::string content, reasoning;
  std::vector<std::string> calls;
  bool operator==(const Parsed&) const = default;
};

Parsed Read(const AnswerParserOptions& options, std::string_view text, size_t piece) {
  const auto parser = MakeAnswerParser(options);
  std::vector<AnswerPart> parts;
  for (size_t at = 0; at < text.size(); at += piece) parser->Push(text.substr(at, piece), &parts);
  parser->Finish(&parts);
  Parsed out;
  for (const AnswerPart& part : parts) {
    if (part.kind == AnswerPart::Kind::kContent) out.content += part.text;
    if (part.kind == AnswerPart::Kind::kReasoning) out.reasoning += part.text;
    if (part.kind == AnswerPart::Kind::kCall) {
      AISP_CHECK(part.call == out.calls.size());
      out.calls.push_back(part.text + "\n");
    }
    if (part.kind == AnswerPart::Kind::kArguments) {
      AISP_CHECK(part.call < out.calls.size());
      out.calls[part.call] += part.text;
    }
  }
  return out;
}

// The schemas of a tool whose parameter is a string, which some formats stream.
std::shared_ptr<const Value::Map> OneTool() {
  const Value text(Value::Map{{"type", Value("string")}});
  const Value schema(Value::Map{{"properties", Value(Value::Map{{"t", text}})}});
  return std::make_shared<const Value::Map>(Value::Map{{"f", schema}});
}

void CheckPieces(const AnswerParserOptions& options, std::string_view text) {
  const Parsed whole = Read(options, text, text.size() + 1);
  for (const size_t piece : {1, 3, 64}) AISP_CHECK(Read(options, text, piece) == whole);
}

}  // namespace

void FuzzOne(std::string_view input) {
  if (input.empty()) return;
  static const auto kTools = OneTool();
  const auto choice = static_cast<uint8_t>(input[0]);
  const std::string_view text = input.substr(1, 2048);
  AnswerParserOptions options;
  options.calls = &CallFormats()[choice % CallFormats().size()];
  const size_t think = choice / CallFormats().size() % (ThinkFormats().size() + 1);
  if (think < ThinkFormats().size()) options.think = &ThinkFormats()[think];
  options.in_thinking = options.think != nullptr && choice >= 128;
  CheckPieces(options, text);
  options.parameters = kTools;
  CheckPieces(options, text);
  options.calls_or_content = true;
  CheckPieces(options, text);
}

}  // namespace aisp
