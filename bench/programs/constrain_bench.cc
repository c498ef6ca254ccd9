// aisp_bench_constrain FOLDER TOKENIZER_FOLDER: compile and mask times over a folder of schemas
// with instances
// ({schema, tests: [{valid, data}]}), on this thread alone, in its own CPU time: what else runs on
// the machine does not count.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

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
    std::ifstream in(path);
    std::ostringstream text;
    text << in.rdbuf();
    if (const auto file = ParseJson(text.str()); file) Measure(*file, **tokenizer, trie, &times);
  }
  fmt::print(
      R"({{"bench":"constrain","vocabulary":{},"schemas":{},"enforced":{},"trie_ms":{:.0f},"compile_us":{},"mask_us":{},"advance_us":{},"forced_us":{}}})"
      "\n",
      trie->vocabulary(), times.schemas, times.enforced, trie_us / 1e3,
      Percentiles(times.compile_us), Percentiles(times.mask_us), Percentiles(times.advance_us),
      Percentiles(times.forced_us));
  return 0;
}

}  // namespace
}  // namespace aisp

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: aisp_bench_constrain FOLDER_OF_SCHEMAS TOKENIZER_FOLDER\n");
    return 2;
  }
  return aisp::Run(argv[1], argv[2]);
}
