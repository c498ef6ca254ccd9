#include "text/tokenizer_steps.h"

#include "common/strings.h"

namespace aisp {
namespace {

constexpr size_t kMaxSteps = 64;
constexpr int kMaxNesting = 8;
constexpr size_t kMaxLiteralBytes = 1024;

// GPT-2's pattern, which ByteLevel uses when its use_regex is set.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Result<std::shared_ptr<const Regex>> CompileAt(const JsonField& field, std::string_view pattern) {
  auto regex = Regex::Compile(pattern);
  if (!regex) return field.Wrong(regex.error().message);
  return std::make_shared<const Regex>(*std::move(regex));
}

Result<std::string> Literal(const JsonField& field) {
  AISP_ASSIGN_OR_RETURN(std::string s, field.String());
  if (s.empty() || s.size() > kMaxLiteralBytes) {
    return field.Wrong("must have 1 to " + std::to_string(kMaxLiteralBytes) + " bytes");
  }
  return s;
}

// {"String": literal} or {"Regex": pattern}; exactly one field is set.
struct Pattern {
  std::string literal;
  std::shared_ptr<const Regex> regex;
};
Result<Pattern> ParsePattern(const JsonField& field) {
  Pattern p;
  if (field.At("String").IsString()) {
    AISP_ASSIGN_OR_RETURN(p.literal, Literal(field.At("String")));
    return p;
  }
  const JsonField regex = field.At("Regex");
  AISP_ASSIGN_OR_RETURN(const std::string pattern, regex.String());
  AISP_ASSIGN_OR_RETURN(p.regex, CompileAt(regex, pattern));
  return p;
}

// Calls `one(field, type)` for a step, or for each step of a Sequence.
template <typename F>
Status Walk(const JsonField& field, const char* list, int depth, size_t* count, const F& one) {
  if (field.IsNull()) return {};
  AISP_ASSIGN_OR_RETURN(const std::string type, field.At("type").String());
  if (type != "Sequence") {
    if (++*count > kMaxSteps)
      return field.Wrong("is step " + std::to_string(*count) + "; the limit is " +
                         std::to_string(kMaxSteps));
    return one(field, type);
  }
  if (depth >= kMaxNesting)
    return field.Wrong("is nested deeper than " + std::to_string(kMaxNesting));
  for (const JsonField& element : field.At(list).Elements()) {
    AISP_RETURN_IF_ERROR(Walk(element, list, depth + 1, count, one));
  }
  return {};
}

Status AddNormalizer(const JsonField& f, const std::string& type,
                     std::vector<Normalizer::Step>* steps) {
  using Kind = Normalizer::Step::Kind;
  Normalizer::Step step;
  if (type == "NFC") {
    step.kind = Kind::kNfc;
  } else if (type == "NFD") {
    step.kind = Kind::kNfd;
  } else if (type == "Lowercase") {
    step.kind = Kind::kLowercase;
  } else if (type == "Prepend") {
    step.kind = Kind::kPrepend;
    AISP_ASSIGN_OR_RETURN(step.content, Literal(f.At("prepend")));
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    AISP_ASSIGN_OR_RETURN(step.left, f.At("strip_left").BoolOr(true));
    AISP_ASSIGN_OR_RETURN(step.right, f.At("strip_right").BoolOr(true));
  } else if (type == "Replace") {
    AISP_ASSIGN_OR_RETURN(Pattern pattern, ParsePattern(f.At("pattern")));
    AISP_ASSIGN_OR_RETURN(step.content, f.At("content").String());
    step.kind = pattern.regex ? Kind::kReplaceRegex : Kind::kReplace;
    step.from = std::move(pattern.literal);
    step.regex = std::move(pattern.regex);
  } else {
    return f.Unsupported("normalizer " + Excerpt(type));
  }
  steps->push_back(std::move(step));
  return {};
}

Result<PreTokenizer::Behavior> ParseBehavior(const JsonField& f) {
  using Behavior = PreTokenizer::Behavior;
  AISP_ASSIGN_OR_RETURN(const std::string name, f.StringOr("Isolated"));
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return f.Wrong("is \"" + Excerpt(name) + "\", which is no split behaviour");
}

Status AddByteLevel(const JsonField& f, std::vector<PreTokenizer::Step>* steps) {
  using Kind = PreTokenizer::Step::Kind;
  AISP_ASSIGN_OR_RETURN(const bool prefix, f.At("add_prefix_space").BoolOr(true));
  AISP_ASSIGN_OR_RETURN(const bool use_regex, f.At("use_regex").BoolOr(true));
  if (prefix) steps->emplace_back().kind = Kind::kPrefixSpace;
  if (use_regex) {
    PreTokenizer::Step split;
    AISP_ASSIGN_OR_RETURN(split.regex, CompileAt(f, kByteLevelPattern));
    steps->push_back(std::move(split));
  }
  steps->emplace_back().kind = Kind::kByteLevel;
  return {};
}

Status AddMetaspace(const JsonField& f, std::vector<PreTokenizer::Step>* steps) {
  using Prefix = PreTokenizer::Step::Prefix;
  PreTokenizer::Step step;
  step.kind = PreTokenizer::Step::Kind::kMetaspace;
  AISP_ASSIGN_OR_RETURN(step.literal, Literal(f.At("replacement")));
  AISP_ASSIGN_OR_RETURN(step.split, f.At("split").BoolOr(true));
  AISP_ASSIGN_OR_RETURN(const bool add_prefix_space, f.At("add_prefix_space").BoolOr(true));
  AISP_ASSIGN_OR_RETURN(const std::string scheme,
                        f.At("prepend_scheme").StringOr(add_prefix_space ? "always" : "never"));
  if (scheme != "always" && scheme != "never" && scheme != "first") {
    return f.At("prepend_scheme").Wrong("must be always, first or never");
  }
  step.prefix = scheme == "always"  ? Prefix::kAlways
                : scheme == "first" ? Prefix::kFirst
                                    : Prefix::kNever;
  steps->push_back(std::move(step));
  return {};
}

Status AddPreTokenizer(const JsonField& f, const std::string& type,
                       std::vector<PreTokenizer::Step>* steps) {
  using Kind = PreTokenizer::Step::Kind;
  using Behavior = PreTokenizer::Behavior;
  if (type == "ByteLevel") return AddByteLevel(f, steps);
  if (type == "Metaspace") return AddMetaspace(f, steps);
  PreTokenizer::Step step;
  if (type == "Split") {
    AISP_ASSIGN_OR_RETURN(Pattern pattern, ParsePattern(f.At("pattern")));
    AISP_ASSIGN_OR_RETURN(step.behavior, ParseBehavior(f.At("behavior")));
    AISP_ASSIGN_OR_RETURN(step.invert, f.At("invert").BoolOr(false));
    step.kind = pattern.regex ? Kind::kRegex : Kind::kLiteral;
    step.literal = std::move(pattern.literal);
    step.regex = std::move(pattern.regex);
  } else if (type == "Punctuation") {
    step.kind = Kind::kPunctuation;
    AISP_ASSIGN_OR_RETURN(step.behavior, ParseBehavior(f.At("behavior")));
  } else if (type == "Digits") {
    step.kind = Kind::kDigits;
    AISP_ASSIGN_OR_RETURN(const bool individual, f.At("individual_digits").BoolOr(false));
    step.behavior = individual ? Behavior::kIsolated : Behavior::kContiguous;
  } else if (type == "WhitespaceSplit") {
    step.kind = Kind::kWhitespace;
    step.behavior = Behavior::kRemoved;
  } else if (type == "Whitespace") {
    step.behavior = Behavior::kRemoved;
    step.invert = true;
    AISP_ASSIGN_OR_RETURN(step.regex, CompileAt(f, R"([\w\p{M}\p{Pc}]+|[^\w\p{M}\p{Pc}\s]+)"));
  } else if (type == "CharDelimiterSplit") {
    step.kind = Kind::kLiteral;
    step.behavior = Behavior::kRemoved;
    AISP_ASSIGN_OR_RETURN(step.literal, Literal(f.At("delimiter")));
  } else {
    return f.Unsupported("pre-tokenizer " + Excerpt(type));
  }
  steps->push_back(std::move(step));
  return {};
}

// Steps before Fuse apply to single tokens; a Strip after it applies to the front of the text.
Status AddDecoder(const JsonField& f, const std::string& type, bool* fused, DecoderSpec* spec) {
  using Kind = DecoderSpec::Step::Kind;
  DecoderSpec::Step step;
  if (type == "Fuse") {
    *fused = true;
    return {};
  }
  if (type == "Strip") {
    step.kind = Kind::kStrip;
    AISP_ASSIGN_OR_RETURN(step.content, Literal(f.At("content")));
    AISP_ASSIGN_OR_RETURN(const int64_t start, f.At("start").IntOr(0, 0, 64));
    AISP_ASSIGN_OR_RETURN(const int64_t stop, f.At("stop").IntOr(0, 0, 64));
    step.start = static_cast<size_t>(start);
    step.stop = static_cast<size_t>(stop);
    if (*fused) {
      if (stop != 0 || spec->leading_count != 0)
        return f.Unsupported("a second or trailing Strip after Fuse");
      spec->leading = step.content;
      spec->leading_count = step.start;
      return {};
    }
  } else if (*fused) {
    return f.Unsupported("decoder " + Excerpt(type) + " after Fuse");
  } else if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
  } else if (type == "ByteFallback") {
    step.kind = Kind::kByteFallback;
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    AISP_ASSIGN_OR_RETURN(step.from, Literal(f.At("pattern").At("String")));
    AISP_ASSIGN_OR_RETURN(step.content, f.At("content").String());
    if (step.content.size() > kMaxLiteralBytes) return f.At("content").Wrong("is too long");
  } else if (type == "Metaspace") {
    step.kind = Kind::kMetaspace;
    AISP_ASSIGN_OR_RETURN(step.from, Literal(f.At("replacement")));
    AISP_ASSIGN_OR_RETURN(const bool add_prefix_space, f.At("add_prefix_space").BoolOr(true));
    AISP_ASSIGN_OR_RETURN(const std::string scheme,
                          f.At("prepend_scheme").StringOr(add_prefix_space ? "always" : "never"));
    step.drop_first = scheme != "never";
  } else {
    return f.Unsupported("decoder " + Excerpt(type));
  }
  spec->steps.push_back(std::move(step));
  return {};
}

Status AddAround(const JsonField& f, TokenId id, const TokenizerParts& parts,
                 std::vector<TokenId>* around) {
  if (id < 0 || static_cast<size_t>(id) >= parts.special.size()) {
    return f.Wrong("names id " + std::to_string(id) + "; the vocabulary has " +
                   std::to_string(parts.special.size()));
  }
  if (around->size() >= kMaxSpecialAround)
    return f.Wrong("adds more than " + std::to_string(kMaxSpecialAround) + " tokens");
  around->push_back(id);
  return {};
}

Status AddTemplate(const JsonField& f, TokenizerParts* parts) {
  bool seen_text = false;
  for (const JsonField& item : f.At("single").Elements()) {
    if (item.At("Sequence").IsObject()) {
      seen_text = true;
      continue;
    }
    const JsonField name = item.At("SpecialToken").At("id");
    AISP_ASSIGN_OR_RETURN(const std::string key, name.String());
    const JsonField ids = f.At("special_tokens").At(key.c_str()).At("ids");
    if (!ids.IsArray())
      return name.Wrong("names \"" + Excerpt(key) + "\", which special_tokens does not have");
    for (const JsonField& element : ids.Elements()) {
      AISP_ASSIGN_OR_RETURN(const int64_t id, element.Int(0, INT32_MAX));
      AISP_RETURN_IF_ERROR(AddAround(element, static_cast<TokenId>(id), *parts,
                                     seen_text ? &parts->behind : &parts->before));
    }
  }
  if (!seen_text) return f.At("single").Wrong("has no Sequence");
  return {};
}

// RobertaProcessing and BertProcessing: "cls" before, "sep" behind, each [text, id].
Status AddClsSep(const JsonField& f, TokenizerParts* parts) {
  for (const char* key : {"cls", "sep"}) {
    const std::vector<JsonField> pair = f.At(key).Elements();
    if (pair.size() != 2) return f.At(key).Wrong("must be [token, id]");
    AISP_ASSIGN_OR_RETURN(const int64_t id, pair[1].Int(0, INT32_MAX));
    AISP_RETURN_IF_ERROR(AddAround(pair[1], static_cast<TokenId>(id), *parts,
                                   key[0] == 'c' ? &parts->before : &parts->behind));
  }
  return {};
}

}  // namespace

Result<Normalizer> ParseNormalizer(const JsonField& field) {
  std::vector<Normalizer::Step> steps;
  size_t count = 0;
  AISP_RETURN_IF_ERROR(Walk(
      field, "normalizers", 0, &count,
      [&](const JsonField& f, const std::string& type) { return AddNormalizer(f, type, &steps); }));
  return Normalizer(std::move(steps));
}

Result<PreTokenizer> ParsePreTokenizer(const JsonField& field) {
  std::vector<PreTokenizer::Step> steps;
  size_t count = 0;
  AISP_RETURN_IF_ERROR(
      Walk(field, "pretokenizers", 0, &count, [&](const JsonField& f, const std::string& type) {
        return AddPreTokenizer(f, type, &steps);
      }));
  return PreTokenizer(std::move(steps));
}

Result<DecoderSpec> ParseDecoder(const JsonField& field) {
  DecoderSpec spec;
  spec.spaces_between = field.IsNull();
  size_t count = 0;
  bool fused = false;
  AISP_RETURN_IF_ERROR(
      Walk(field, "decoders", 0, &count, [&](const JsonField& f, const std::string& type) {
        return AddDecoder(f, type, &fused, &spec);
      }));
  return spec;
}

Status ParsePostProcessor(const JsonField& field, TokenizerParts* parts) {
  size_t count = 0;
  return Walk(field, "processors", 0, &count,
              [&](const JsonField& f, const std::string& type) -> Status {
                if (type == "ByteLevel") return {};  // changes offsets only
                if (type == "TemplateProcessing") return AddTemplate(f, parts);
                if (type == "RobertaProcessing" || type == "BertProcessing")
                  return AddClsSep(f, parts);
                return f.Unsupported("post-processor " + Excerpt(type));
              });
}

}  // namespace aisp
