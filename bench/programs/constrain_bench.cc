// aisp_bench_constrain FOLDER TOKENIZER_FOLDER: compile and mask times over a folder of schemas
// with instances ({schema, tests: [{valid, data}]}), and over grammars with a text each (NAME.gbnf,
// NAME.txt), in CPU time of this thread. Instances that are objects are also matched as the
// arguments of a call in Python and in tags.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "constrain/grammar_constraint.h"
#include "constrain/json.h"
#include "constrain/json_constraint.h"
#include "constrain/json_masks.h"
#include "constrain/schema_compiler.h"
#include "frontend/spelled_arguments.h"

namespace aisp {
namespace {

double CpuMicros() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

struct Times {
  std::vector<double> compile_us, mask_us, advance_us, forced_us;
  std::vector<double> python_us, tags_us;  // masks
  int schemas = 0, enforced = 0, spelled_to_the_end = 0, spelled = 0;
};

using Body = CallFormat::Body;

std::string Quoted(const std::string& text) {
  Json json;
  json.type = Json::Type::kString;
  json.text = text;
  return WriteJson(json);
}

std::string InPython(const Json& value) {
  if (value.IsArray() || value.IsObject()) {
    std::string out;
    for (const Json& item : value.items) out += (out.empty() ? "" : ", ") + InPython(item);
    for (const auto& [name, member] : value.members) {
      out += (out.empty() ? "" : ", ") + Quoted(name) + ": " + InPython(member);
    }
    return value.IsArray() ? "[" + out + "]" : "{" + out + "}";
  }
  const std::string text = WriteJson(value);
  return text == "true" ? "True" : text == "false" ? "False" : text == "null" ? "None" : text;
}

// The text after the name of a called function.
std::string Spell(Body body, const Json& arguments, const std::vector<std::string>& texts) {
  std::string out;
  for (const auto& [name, value] : arguments.members) {
    const bool text = std::find(texts.begin(), texts.end(), name) != texts.end();
    if (body == Body::kPythonic) {
      out += (out.empty() ? "" : ", ") + name + "=" + InPython(value);
    } else {
      out += "<parameter=" + name + ">\n" + (text ? value.text : WriteJson(value)) +
             "\n</parameter>\n";
    }
  }
  return out + (body == Body::kPythonic ? ")" : "</function>");
}

std::vector<std::string> TextParameters(const Json& schema) {
  std::vector<std::string> out;
  const Json* properties = schema.Find("properties");
  if (properties == nullptr || !properties->IsObject()) return out;
  for (const auto& [name, property] : properties->members) {
    const Json* type = property.IsObject() ? property.Find("type") : nullptr;
    if (type != nullptr && type->IsString() && type->text == "string") out.push_back(name);
  }
  return out;
}

void MeasureSpelled(Body body, const std::shared_ptr<Constraint>& json, const Json& schema,
                    const Json& tests, const Tokenizer& tokenizer,
                    const std::shared_ptr<const SpelledTokens>& tokens, Times* times) {
  const auto texts = TextParameters(schema);
  const auto constraint = SpellArguments(body, json, tokens, texts);
  TokenMask mask(tokens->all->vocabulary());
  for (const Json& test : tests.items) {
    const Json* data = test.Find("data");
    if (!data->IsObject()) continue;
    ++times->spelled;
    const auto ids = tokenizer.Encode(Spell(body, *data, texts), false, false);
    const auto matcher = constraint->NewMatcher();
    for (const TokenId id : *ids) {
      const double before = CpuMicros();
      matcher->Mask(&mask);
      (body == Body::kPythonic ? times->python_us : times->tags_us).push_back(CpuMicros() - before);
      if (!matcher->Advance(id)) break;
    }
    times->spelled_to_the_end += matcher->IsWhole();
  }
}

void Measure(const Json& file, const Tokenizer& tokenizer,
             const std::shared_ptr<const TokenTrie>& trie,
             const std::shared_ptr<const SpelledTokens>& tokens, Times* times) {
  const Json *schema = file.Find("schema"), *tests = file.Find("tests");
  if (schema == nullptr || tests == nullptr) return;
  ++times->schemas;
  const std::string text = WriteJson(*schema);
  const double start = CpuMicros();
  auto compiled = CompileSchema(text, {}, {});
  times->compile_us.push_back(CpuMicros() - start);
  if (!compiled || compiled->grammar == nullptr) return;
  ++times->enforced;
  const auto constraint =
      MakeJsonConstraint(std::move(compiled->grammar), Whitespace::kFlexible, trie);
  auto compact = CompileSchema(text, {}, {});
  const std::shared_ptr<Constraint> spelled =
      MakeJsonConstraint(std::move(compact->grammar), Whitespace::kCompact, trie);
  for (const Body body : {Body::kPythonic, Body::kXml})
    MeasureSpelled(body, spelled, *schema, *tests, tokenizer, tokens, times);
  TokenMask mask(trie->vocabulary());
  for (const Json& test : tests->items) {
    const Json* data = test.Find("data");
    const auto ids = tokenizer.Encode(WriteJson(*data), false, false);
    const auto matcher = constraint->NewMatcher();
    for (const TokenId id : *ids) {
      const double before = CpuMicros();
      matcher->Mask(&mask);
      const double between = CpuMicros();
      const bool taken = matcher->Advance(id);
      times->mask_us.push_back(between - before);
      const double after = CpuMicros();
      times->advance_us.push_back(after - between);
      if (!taken) break;
      matcher->Forced(256);
      times->forced_us.push_back(CpuMicros() - after);
    }
  }
}

std::string Percentiles(std::vector<double> values) {
  if (values.empty()) return "{}";
  std::sort(values.begin(), values.end());
  auto at = [&](double share) {
    return values[std::min(values.size() - 1,
                           static_cast<size_t>(share * static_cast<double>(values.size())))];
  };
  return fmt::format(
      R"({{"p50":{:.1f},"p90":{:.1f},"p99":{:.1f},"p999":{:.1f},"max":{:.0f},"n":{}}})", at(.5),
      at(.9), at(.99), at(.999), values.back(), values.size());
}

std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void PrintSchemas(const TokenTrie& trie, double trie_us, const Times& times) {
  fmt::print(
      R"({{"bench":"constrain","vocabulary":{},"schemas":{},"enforced":{},"trie_ms":{:.0f},"compile_us":{},"mask_us":{},"advance_us":{},"forced_us":{},"python_mask_us":{},"tags_mask_us":{},"spelled":{},"spelled_to_the_end":{}}})"
      "\n",
      trie.vocabulary(), times.schemas, times.enforced, trie_us / 1e3,
      Percentiles(times.compile_us), Percentiles(times.mask_us), Percentiles(times.advance_us),
      Percentiles(times.forced_us), Percentiles(times.python_us), Percentiles(times.tags_us),
      times.spelled, times.spelled_to_the_end);
}

// Draws tokens at random from the masks, to reach states that no sensible text has.
void RandomWalk(Matcher* matcher, uint32_t seed, TokenMask* mask, std::vector<double>* mask_us) {
  constexpr int kSteps = 100;
  std::mt19937 random(seed);
  for (int step = 0; step < kSteps; ++step) {
    const double before = CpuMicros();
    matcher->Mask(mask);
    mask_us->push_back(CpuMicros() - before);
    const size_t count = mask->Count();
    if (count == 0) return;
    size_t skip = random() % count, token = 0;
    while (!mask->Has(token) || skip-- > 0) ++token;
    if (!matcher->Advance(static_cast<TokenId>(token))) return;
  }
}

// The grammar is compiled once. Then the text token by token, random walks, and the text with
// another matcher: later requests reuse what earlier ones cached.
bool MeasureGrammar(const std::filesystem::path& path, const Tokenizer& tokenizer,
                    const std::shared_ptr<const TokenTrie>& trie) {
  const double start = CpuMicros();
  const auto constraint = MakeGrammarConstraint(ReadAll(path), trie);
  const double compile_us = CpuMicros() - start;
  if (!constraint) {
    fmt::print(stderr, "{}: {}\n", path.string(), constraint.error().message);
    return false;
  }
  std::string text = ReadAll(std::filesystem::path(path).replace_extension(".txt"));
  if (text.ends_with('\n')) text.pop_back();
  const auto ids = tokenizer.Encode(text, false, false);
  TokenMask mask(trie->vocabulary());
  std::vector<double> text_us, again_us, random_us, advance_us;
  auto walk_text = [&](std::vector<double>* mask_us) {
    const auto matcher = (*constraint)->NewMatcher();
    for (size_t i = 0; i < ids->size(); ++i) {
      const double before = CpuMicros();
      matcher->Mask(&mask);
      const double between = CpuMicros();
      mask_us->push_back(between - before);
      if (!matcher->Advance((*ids)[i])) {
        fmt::print(stderr, "{}: token {} of its text may not follow\n", path.string(), i);
        return false;
      }
      advance_us.push_back(CpuMicros() - between);
    }
    return true;
  };
  if (!walk_text(&text_us)) return false;
  for (uint32_t seed = 1; seed <= 20; ++seed)
    RandomWalk((*constraint)->NewMatcher().get(), seed, &mask, &random_us);
  if (!walk_text(&again_us)) return false;
  fmt::print(
      R"({{"bench":"grammar","grammar":"{}","vocabulary":{},"compile_us":{:.0f},"text_mask_us":{},"random_mask_us":{},"again_mask_us":{},"advance_us":{}}})"
      "\n",
      path.stem().string(), trie->vocabulary(), compile_us, Percentiles(text_us),
      Percentiles(random_us), Percentiles(again_us), Percentiles(advance_us));
  return true;
}

int Run(const std::string& folder, const std::string& tokenizer_folder) {
  const auto tokenizer = Tokenizer::Load(tokenizer_folder);
  if (!tokenizer) {
    fmt::print(stderr, "{}\n", tokenizer.error().message);
    return 1;
  }
  const double start = CpuMicros();
  const auto trie = TokenTrie::Of(**tokenizer, (*tokenizer)->VocabSize());
  WarmUp(trie);
  const double trie_us = CpuMicros() - start;
  Times times;
  std::shared_ptr<const SpelledTokens> spelled;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    if (path.extension() == ".gbnf" && !MeasureGrammar(path, **tokenizer, trie)) return 1;
    if (path.extension() != ".json") continue;
    if (const auto file = ParseJson(ReadAll(path)); file) {
      if (spelled == nullptr) spelled = std::make_shared<const SpelledTokens>(trie);
      Measure(*file, **tokenizer, trie, spelled, &times);
    }
  }
  if (times.schemas > 0) PrintSchemas(*trie, trie_us, times);
  return 0;
}

}  // namespace
}  // namespace aisp

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: aisp_bench_constrain FOLDER TOKENIZER_FOLDER\n");
    return 2;
  }
  return aisp::Run(argv[1], argv[2]);
}
