// Arguments of calls in Python and in tags, constrained by a schema: the first byte chooses
// spelling and schema, the others the tokens. A mask equals what Advance accepts, a token equals
// its bytes one by one, rolling everything back restores the beginning, and a complete answer
// parses as an instance.
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "answer/parser.h"
#include "common/check.h"
#include "constrain/json_constraint.h"
#include "constrain/schema_compiler.h"
#include "frontend/spelled_arguments.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/fuzz_target.h"

namespace aisp {
namespace {

using Body = CallFormat::Body;
constexpr size_t kMaxTokens = 96, kMasks = 12;

const std::vector<std::string>& Pieces() {
  static const std::vector<std::string> kPieces = [] {
    std::vector<std::string> out;
    for (int b = 0; b < 256; ++b) out.emplace_back(1, static_cast<char>(b));
    for (const char* more : {"\", ",
                             "\")",
                             ", ",
                             "True,",
                             "None",
                             "=\"",
                             "=[",
                             "a=",
                             "\\\"",
                             "\\/x",
                             "\\u00",
                             "\\n",
                             "/",
                             "\n\n",
                             "</",
                             "</parameter>\n",
                             "\n</parameter>",
                             ">\n",
                             "\n<",
                             "12",
                             "-3.5e",
                             "<parameter=",
                             "=a>\n",
                             "{\"k\":",
                             "]",
                             "x\ny",
                             "\": ",
                             "\"}",
                             "</function>",
                             "\xC3\xA9",
                             "\xF0\x9F",
                             "t\n</param",
                             "b=",
                             "c=\"",
                             "[]",
                             "{}"}) {
      out.emplace_back(more);
    }
    return out;
  }();
  return kPieces;
}

// The features of an answer: limits, strings, lists, objects, a member of any value.
constexpr std::array kSchemas = {
    R"({"type":"object","properties":{"a":{"type":"integer","minimum":10},"b":{"type":"string"},
        "c":{"enum":["a b","a/b","\n"]}},"required":["a"],"additionalProperties":false})",
    R"({"type":"object","properties":{"a":{"type":"array","items":{"type":["boolean","null"]},
        "maxItems":3},"b":{"type":"object","properties":{"k":{"type":"string","maxLength":4}},
        "additionalProperties":false},"c":{"type":"string","pattern":"^[a-z\n<]*$"}},
        "additionalProperties":false})",
    R"({"type":"object","properties":{"a":{"anyOf":[{"type":"number"},{"type":"string"}]},"b":{},
        "c":{"type":"string","minLength":2}},"additionalProperties":false,"minProperties":1})",
    R"({"type":"object","additionalProperties":{"type":["string","integer"],"maxLength":9},
        "maxProperties":2,"propertyNames":{"pattern":"^[a-z]{1,3}$"}})",
};

struct Rig {
  CallFormat format;
  std::shared_ptr<Constraint> json, spelled;
  std::shared_ptr<const Value::Map> parameters;
};

std::shared_ptr<Constraint> JsonOf(std::string_view schema, Whitespace whitespace) {
  static const auto trie = std::make_shared<const TokenTrie>(Pieces());
  auto compiled = CompileSchema(schema, {}, {});
  AISP_CHECK(compiled && compiled->grammar != nullptr);
  return MakeJsonConstraint(std::move(compiled->grammar), whitespace, trie);
}

Rig MakeRig(Body body, std::string_view schema) {
  static const auto tokens =
      std::make_shared<const SpelledTokens>(std::make_shared<const TokenTrie>(Pieces()));
  Rig rig;
  rig.format = *FindCallFormat(body == Body::kXml ? "qwen3_coder" : "pythonic");
  rig.json = JsonOf(schema, Whitespace::kFlexible);
  rig.spelled = SpellArguments(body, JsonOf(schema, Whitespace::kCompact), tokens, {"c"});
  const Value text(Value::Map{{"type", Value("string")}});
  rig.parameters = std::make_shared<Value::Map>(
      Value::Map{{"f", Value(Value::Map{{"properties", Value(Value::Map{{"c", text}})}})}});
  return rig;
}

std::string ReadBack(const Rig& rig, const std::string& text) {
  AnswerParserOptions options;
  options.calls = &rig.format;
  options.parameters = rig.parameters;
  const auto parser = MakeAnswerParser(options);
  std::vector<AnswerPart> parts;
  parser->Push(OpeningOf(rig.format, "f") + text + std::string(rig.format.after) +
                   std::string(rig.format.close),
               &parts);
  parser->Finish(&parts);
  std::string out;
  for (const AnswerPart& part : parts) {
    if (part.kind == AnswerPart::Kind::kArguments) out += part.text;
  }
  return out;
}

bool Allows(Constraint* constraint, std::string_view text) {
  const auto matcher = constraint->NewMatcher();
  return matcher->AdvanceBytes(text) == text.size() && matcher->IsWhole();
}

}  // namespace

void FuzzOne(std::string_view input) {
  static std::array<std::optional<Rig>, 2 * kSchemas.size()> rigs;
  ByteSource choices(input);
  const size_t chosen = choices.Below(rigs.size());
  const Body body = chosen % 2 == 0 ? Body::kPythonic : Body::kXml;
  auto& rig = rigs[chosen];
  if (!rig) rig = MakeRig(body, kSchemas[chosen / 2]);
  const auto matcher = rig->spelled->NewMatcher();
  const auto bytewise = rig->spelled->NewMatcher();
  TokenMask mask(Pieces().size()), first(Pieces().size());
  matcher->Mask(&first);
  std::string text;
  size_t taken = 0;
  for (size_t step = 0; step < kMaxTokens && !choices.spent() && !matcher->IsWhole(); ++step) {
    // One byte for each token; tokens that are not allowed are skipped.
    const auto token = static_cast<TokenId>(choices.Byte() + (choices.Flip() ? 256 : 0)) %
                       static_cast<TokenId>(Pieces().size());
    const std::string& piece = Pieces()[static_cast<size_t>(token)];
    if (step < kMasks) matcher->Mask(&mask);
    const bool may = matcher->Advance(token);
    AISP_CHECK(step >= kMasks || mask.Has(static_cast<size_t>(token)) == may);
    size_t read = 0;
    while (read < piece.size() && bytewise->AdvanceBytes(piece.substr(read, 1)) == 1) ++read;
    AISP_CHECK((read == piece.size()) == may);
    if (!may) bytewise->Rewind(read);
    if (!may) continue;
    ++taken;
    text += piece;
  }
  AISP_CHECK(matcher->IsWhole() == bytewise->IsWhole());
  if (matcher->IsWhole()) AISP_CHECK(Allows(rig->json.get(), ReadBack(*rig, text)));
  matcher->Rewind(taken);
  matcher->Mask(&mask);
  AISP_CHECK(mask.words().size() == first.words().size());
  for (size_t i = 0; i < mask.words().size(); ++i) AISP_CHECK(mask.words()[i] == first.words()[i]);
}

}  // namespace aisp
