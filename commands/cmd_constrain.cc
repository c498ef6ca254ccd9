// `aisp constrain`: compiles a JSON Schema for a tokenizer and checks for given instances whether
// every token is allowed, as a server would while a model writes. Without --model, every byte is a
// token.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "commands/commands.h"
#include "constrain/json.h"
#include "constrain/json_constraint.h"
#include "constrain/json_masks.h"
#include "constrain/schema_compiler.h"
#include "text/tokenizer.h"

namespace aisp {
namespace {

using Steady = std::chrono::steady_clock;
using OrderedJson = nlohmann::ordered_json;

constexpr char kHelp[] = R"(aisp constrain --schema FILE [flags] [INSTANCE.json...]
aisp constrain --cases FILE [flags]

Compiles the JSON Schema and says of each instance, token by token, whether it is allowed to its end or where it is refused.

  --schema FILE       the JSON Schema
  --model FOLDER      tokenize with this folder's tokenizer; without it every byte is a token
  --refused-only      only list the keywords that cannot be enforced
  --json              one JSON object a schema: status, refused, compile_us, compile_cpu_us (of its thread alone),
                      instances (allowed, byte, tokens, mask_us)
  --cases FILE        many schemas: each line {"schema": ..., "instances": ["text", ...]}; - reads stdin; implies --json
  --whitespace W      flexible (default: JSON's own, up to 256 bytes in one gap) or compact (none)
  --format F          assert (default: the formats of JSON Schema are enforced) or annotate
  --relax KEYWORD     leave this keyword out where it cannot be enforced; may be given more than once
  --timeout-ms N      compile deadline, default 2000
  --sample N          also draw N texts by chance from what is allowed (--json: samples with text and whole)
  --seed N            of the draws, default 1

Exit code: 0 when the schema is enforced and every instance is allowed, else 1.
)";

struct Options {
  std::string schema, model, cases;
  std::vector<std::string> instances;
  bool json = false, refused_only = false;
  Whitespace whitespace = Whitespace::kFlexible;
  SchemaOptions rules;
  CompileLimits limits;
  int samples = 0;
  uint32_t seed = 1;
};

// A randomly drawn text; incomplete if it reached its token limit.
struct Sample {
  std::string text;
  bool whole = false;
  bool dead_end = false;  // no token could follow although the text was incomplete: a bug
};

struct Verdict {
  bool allowed = false;
  bool disagreed = false;  // mask and matcher disagreed: a bug
  size_t byte = 0;         // start of the first refused token; the text's size if it ends too early
  size_t tokens = 0;
  std::vector<double> mask_us;
};

struct Outcome {
  std::string error;
  std::vector<Refusal> refusals;
  double compile_us = 0, compile_cpu_us = 0;
  std::vector<Verdict> verdicts;
  std::vector<Sample> samples;
  bool Enforced() const { return error.empty() && refusals.empty(); }
};

double MicrosSince(Steady::time_point start) {
  return std::chrono::duration<double, std::micro>(Steady::now() - start).count();
}

// CPU time of this thread, so that other load does not count.
double CpuMicros() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

Result<std::string> ReadAll(const std::string& path) {
  std::ostringstream out;
  if (path == "-") {
    out << std::cin.rdbuf();
  } else {
    std::ifstream file(path, std::ios::binary);
    if (!file) return NotFound("cannot open '" + path + "'");
    out << file.rdbuf();
  }
  return std::move(out).str();
}

// Splits a text into tokens: a tokenizer's, or its bytes.
class Tokens {
 public:
  static Result<Tokens> Open(const std::string& folder) {
    Tokens out;
    if (folder.empty()) {
      std::vector<std::string> bytes;
      bytes.reserve(256);
      for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
      out.trie_ = std::make_shared<const TokenTrie>(bytes);
      WarmUp(out.trie_);
      return out;
    }
    AISP_ASSIGN_OR_RETURN(out.tokenizer_, Tokenizer::Load(folder));
    out.trie_ = TokenTrie::Of(*out.tokenizer_, out.tokenizer_->VocabSize());
    WarmUp(out.trie_);
    return out;
  }

  Result<std::vector<TokenId>> Of(const std::string& text) const {
    if (tokenizer_) return tokenizer_->Encode(text, /*add_special=*/false, /*parse_special=*/false);
    std::vector<TokenId> out;
    for (const char c : text) out.push_back(static_cast<uint8_t>(c));
    return out;
  }
  const std::shared_ptr<const TokenTrie>& trie() const { return trie_; }

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  std::shared_ptr<const TokenTrie> trie_;
};

Verdict Judge(Constraint* constraint, const Tokens& tokens, const std::string& text) {
  Verdict out;
  const auto ids = tokens.Of(text);
  const auto matcher = constraint->NewMatcher();
  TokenMask mask(tokens.trie()->vocabulary());
  for (const TokenId id : ids.value_or(std::vector<TokenId>())) {
    const auto start = Steady::now();
    matcher->Mask(&mask);
    out.mask_us.push_back(MicrosSince(start));
    const bool masked_in = mask.Has(static_cast<size_t>(id));
    const bool taken = matcher->Advance(id);
    out.disagreed = out.disagreed || masked_in != taken;
    if (!masked_in || !taken) return out;
    out.byte += tokens.trie()->piece(id).size();
    ++out.tokens;
  }
  out.allowed = ids.has_value() && matcher->IsWhole();
  return out;
}

// Draws uniformly, but tokens that end something ten times as often, so that texts end.
Sample Draw(Constraint* constraint, const Tokens& tokens, std::mt19937* random) {
  constexpr int kMaxTokens = 400;
  Sample out;
  const auto matcher = constraint->NewMatcher();
  TokenMask mask(tokens.trie()->vocabulary());
  for (int step = 0; step < kMaxTokens; ++step) {
    matcher->Mask(&mask);
    std::vector<TokenId> allowed, ends;
    for (size_t id = 0; id < mask.size(); ++id) {
      if (!mask.Has(id)) continue;
      allowed.push_back(static_cast<TokenId>(id));
      const char last = tokens.trie()->piece(static_cast<TokenId>(id)).back();
      if (last == '"' || last == '}' || last == ']') ends.push_back(static_cast<TokenId>(id));
    }
    out.whole = matcher->IsWhole();
    out.dead_end = allowed.empty() && !out.whole;
    if (allowed.empty() || (out.whole && (*random)() % 2 == 0)) return out;
    const auto& from = !ends.empty() && (*random)() % 4 == 0 ? ends : allowed;
    const TokenId id = from[(*random)() % from.size()];
    matcher->Advance(id);
    out.text += tokens.trie()->piece(id);
  }
  out.whole = false;
  return out;
}

Outcome Run(const std::string& schema, const std::vector<std::string>& texts, const Tokens& tokens,
            const Options& options) {
  Outcome out;
  const auto start = Steady::now();
  const double cpu_start = CpuMicros();
  auto compiled = CompileSchema(schema, options.rules, options.limits);
  out.compile_us = MicrosSince(start);
  out.compile_cpu_us = CpuMicros() - cpu_start;
  if (!compiled) {
    out.error = compiled.error().message;
    return out;
  }
  out.refusals = std::move(compiled->refusals);
  if (!out.Enforced()) return out;
  const auto constraint =
      MakeJsonConstraint(std::move(compiled->grammar), options.whitespace, tokens.trie());
  for (const std::string& text : texts) {
    out.verdicts.push_back(Judge(constraint.get(), tokens, text));
  }
  std::mt19937 random(options.seed);
  for (int i = 0; i < options.samples; ++i) {
    out.samples.push_back(Draw(constraint.get(), tokens, &random));
  }
  return out;
}

OrderedJson ToJson(const Outcome& outcome) {
  OrderedJson out;
  out["status"] = !outcome.error.empty()     ? "error"
                  : outcome.refusals.empty() ? "enforced"
                                             : "refused";
  if (!outcome.error.empty()) out["error"] = outcome.error;
  out["refused"] = OrderedJson::array();
  for (const Refusal& r : outcome.refusals) {
    out["refused"].push_back({{"keyword", r.keyword}, {"path", r.pointer}, {"reason", r.reason}});
  }
  out["compile_us"] = outcome.compile_us;
  out["compile_cpu_us"] = outcome.compile_cpu_us;
  out["instances"] = OrderedJson::array();
  for (const Verdict& v : outcome.verdicts) {
    OrderedJson item = {{"status", v.allowed ? "allowed" : "refused"},
                        {"byte", v.byte},
                        {"tokens", v.tokens},
                        {"mask_us", v.mask_us}};
    if (v.disagreed) item["disagreed"] = true;
    out["instances"].push_back(std::move(item));
  }
  for (const Sample& sample : outcome.samples) {
    OrderedJson item = {{"text", sample.text}, {"whole", sample.whole}};
    if (sample.dead_end) item["dead_end"] = true;
    out["samples"].push_back(std::move(item));
  }
  return out;
}

// An incomplete text may end inside a UTF-8 sequence.
std::string Dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

void PrintRefusals(const Outcome& outcome) {
  if (!outcome.error.empty()) fmt::print("error: {}\n", outcome.error);
  for (const Refusal& r : outcome.refusals)
    fmt::print("{} at '{}': {}\n", r.keyword, r.pointer, r.reason);
  if (outcome.refusals.empty()) return;
  fmt::print(
      stderr,
      "A request with this schema is refused with 400. Take these keywords out, or leave them "
      "out where they cannot be enforced: --relax KEYWORD here, \"strict\": false or "
      "x-aisp-lax: 1 in a request.\n");
}

void PrintText(const Outcome& outcome, const Options& options,
               const std::vector<std::string>& texts) {
  PrintRefusals(outcome);
  if (options.refused_only || !outcome.Enforced()) return;
  fmt::print("enforced; compiled in {:.0f} us\n", outcome.compile_us);
  for (size_t i = 0; i < outcome.verdicts.size(); ++i) {
    const Verdict& v = outcome.verdicts[i];
    std::vector<double> us = v.mask_us;
    std::sort(us.begin(), us.end());
    const double middle = us.empty() ? 0 : us[us.size() / 2];
    std::string where;
    if (!v.allowed) {
      where = v.byte == texts[i].size() ? " at its end" : fmt::format(" at byte {}", v.byte);
    }
    fmt::print("{}: {}{} ({} tokens, mask p50 {:.1f} us, max {:.1f} us)\n", options.instances[i],
               v.allowed ? "allowed" : "refused", where, v.tokens, middle,
               us.empty() ? 0 : us.back());
  }
}

std::string WithoutBlanksAround(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n"), end = text.find_last_not_of(" \t\r\n");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

int RunCases(const Options& options, const Tokens& tokens) {
  const auto all = ReadAll(options.cases);
  if (!all) return ReportFailure(all.error().message);
  std::istringstream lines(*all);
  std::string line;
  while (std::getline(lines, line)) {
    if (line.empty()) continue;
    const auto parsed = ParseJson(line);
    const Json* schema = parsed ? parsed->Find("schema") : nullptr;
    const Json* instances = parsed ? parsed->Find("instances") : nullptr;
    if (schema == nullptr || instances == nullptr) {
      return ReportFailure("--cases: a line without schema and instances");
    }
    std::vector<std::string> texts;
    texts.reserve(instances->items.size());
    for (const Json& text : instances->items) texts.push_back(text.text);
    const Outcome outcome = Run(WriteJson(*schema), texts, tokens, options);
    fmt::print("{}\n", Dump(ToJson(outcome)));
  }
  return 0;
}

Result<Options> Parse(const std::vector<std::string>& args) {
  Options out;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& name = args[i];
    if (!name.starts_with("--")) {
      out.instances.push_back(name);
      continue;
    }
    if (name == "--json" || name == "--refused-only") {
      (name == "--json" ? out.json : out.refused_only) = true;
      continue;
    }
    if (i + 1 == args.size()) return InvalidArgument("unknown flag or missing value: " + name);
    const std::string& value = args[++i];
    if (name == "--schema") {
      out.schema = value;
    } else if (name == "--model") {
      out.model = value;
    } else if (name == "--cases") {
      out.cases = value;
    } else if (name == "--relax") {
      out.rules.relaxed.push_back(value);
    } else if (name == "--whitespace" && (value == "flexible" || value == "compact")) {
      out.whitespace = value == "compact" ? Whitespace::kCompact : Whitespace::kFlexible;
    } else if (name == "--format" && (value == "assert" || value == "annotate")) {
      out.rules.assert_formats = value == "assert";
    } else if (!value.empty() && value.size() < 8 &&
               value.find_first_not_of("0123456789") == std::string::npos &&
               (name == "--timeout-ms" || name == "--sample" || name == "--seed")) {
      const int number = std::stoi(value);
      if (name == "--timeout-ms") out.limits.timeout = std::chrono::milliseconds(number);
      if (name == "--sample") out.samples = number;
      if (name == "--seed") out.seed = static_cast<uint32_t>(number);
    } else {
      return InvalidArgument(fmt::format("unknown flag or value: {} {}", name, value));
    }
  }
  if (out.schema.empty() == out.cases.empty())
    return InvalidArgument("give --schema FILE or --cases FILE");
  return out;
}

}  // namespace

int RunConstrain(const std::vector<std::string>& args) {
  if (!args.empty() && (args[0] == "--help" || args[0] == "-h")) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  const auto options = Parse(args);
  if (!options) return ReportUsageError("constrain", options.error().message);
  const auto tokens = Tokens::Open(options->model);
  if (!tokens) return ReportFailure(tokens.error().message);
  if (!options->cases.empty()) return RunCases(*options, *tokens);
  const auto schema = ReadAll(options->schema);
  if (!schema) return ReportFailure(schema.error().message);
  std::vector<std::string> texts;
  for (const std::string& path : options->instances) {
    const auto text = ReadAll(path);
    if (!text) return ReportFailure(text.error().message);
    texts.push_back(WithoutBlanksAround(*text));
  }
  const Outcome outcome = Run(*schema, texts, *tokens, *options);
  if (options->json) {
    OrderedJson out = ToJson(outcome);
    for (size_t i = 0; i < outcome.verdicts.size(); ++i)
      out["instances"][i]["file"] = options->instances[i];
    fmt::print("{}\n", Dump(out));
  } else {
    PrintText(outcome, *options, texts);
    for (const Sample& sample : outcome.samples) {
      fmt::print("{}: {}\n", sample.whole ? "whole" : "cut off", sample.text);
    }
  }
  const bool all = std::all_of(outcome.verdicts.begin(), outcome.verdicts.end(),
                               [](const Verdict& v) { return v.allowed; });
  return outcome.Enforced() && all ? 0 : 1;
}

}  // namespace aisp
