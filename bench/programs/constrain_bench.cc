// aisp_bench_constrain FOLDER TOKENIZER_FOLDER: compile and mask times over a folder of schemas
// with instances ({schema, tests: [{valid, data}]}), and over grammars beside a text of theirs
// (NAME.gbnf, NAME.txt), on this thread alone, in its own CPU time: what else runs on the machine
// does not count.
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

namespace aisp {
namespace {

double CpuMicros() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

struct Times {
  std::vector<double> compile_us, mask_us, advance_us, forced_us;
  int schemas = 0, enforced = 0;
};

void Measure(const Json& file, const Tokenizer& tokenizer,
             const std::shared_ptr<const TokenTrie>& trie, Times* times) {
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
      R"({{"bench":"constrain","vocabulary":{},"schemas":{},"enforced":{},"trie_ms":{:.0f},"compile_us":{},"mask_us":{},"advance_us":{},"forced_us":{}}})"
      "\n",
      trie.vocabulary(), times.schemas, times.enforced, trie_us / 1e3,
      Percentiles(times.compile_us), Percentiles(times.mask_us), Percentiles(times.advance_us),
      Percentiles(times.forced_us));
}

// Draws tokens by chance from the masks: states that no sensible text has.
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

// The grammar is compiled once; then the text token by token, then random walks, then the text by
// another matcher: what earlier requests of a grammar left behind serves later ones.
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
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    if (path.extension() == ".gbnf" && !MeasureGrammar(path, **tokenizer, trie)) return 1;
    if (path.extension() != ".json") continue;
    if (const auto file = ParseJson(ReadAll(path)); file) Measure(*file, **tokenizer, trie, &times);
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
