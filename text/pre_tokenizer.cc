#include "text/pre_tokenizer.h"

#include <algorithm>
#include <optional>

#include "text/byte_level.h"
#include "text/normalizer.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace aisp {
namespace {

using Step = PreTokenizer::Step;
using Behavior = PreTokenizer::Behavior;

struct Span {
  size_t begin, end;
  bool match;
};

bool Matches(Step::Kind kind, char32_t c) {
  switch (kind) {
    case Step::Kind::kDigits:
      return IsNumber(c);
    case Step::Kind::kPunctuation:
      return c < 0x80 ? (c > ' ' && c < 0x7F && !(c >= '0' && c <= '9') &&
                         !((c | 32) >= 'a' && (c | 32) <= 'z'))
                      : IsPunctuation(c);
    default:
      return IsWhitespace(c);
  }
}

// Divides `text` into spans: matches and what lies between them.
class Spans {
 public:
  Spans(std::string_view text, std::vector<Span>* out) : size_(text.size()), out_(out) {
    out_->clear();
  }
  void Add(size_t begin, size_t end) {
    if (begin > done_) out_->push_back({done_, begin, false});
    out_->push_back({begin, end, true});
    done_ = end;
  }
  void Finish() {
    if (done_ < size_) out_->push_back({done_, size_, false});
  }

 private:
  size_t size_;
  size_t done_ = 0;
  std::vector<Span>* out_;
};

Status FindSpans(const Step& step, Regex::Matcher* matcher, std::string_view text,
                 std::vector<Span>* out) {
  Spans spans(text, out);
  if (step.kind == Step::Kind::kRegex) {
    size_t begin = 0, end = 0;
    while (true) {
      AISP_ASSIGN_OR_RETURN(const bool found, matcher->Find(text, end, &begin, &end));
      if (!found) break;
      spans.Add(begin, end);
    }
  } else if (step.kind == Step::Kind::kLiteral) {
    for (size_t at = 0; (at = text.find(step.literal, at)) != std::string_view::npos;
         at += step.literal.size()) {
      spans.Add(at, at + step.literal.size());
    }
  } else {
    for (size_t i = 0; i < text.size();) {
      const size_t begin = i;
      if (Matches(step.kind, DecodeUtf8(text, &i))) spans.Add(begin, i);
    }
  }
  spans.Finish();
  return {};
}

void Combine(std::vector<Span>* spans, Behavior behavior) {
  if (behavior == Behavior::kIsolated) return;
  if (behavior == Behavior::kRemoved) {
    std::erase_if(*spans, [](const Span& s) { return s.match; });
    return;
  }
  std::vector<Span> out;
  const bool backwards = behavior == Behavior::kMergedWithNext;
  if (backwards) std::reverse(spans->begin(), spans->end());
  bool previous_match = false;
  for (const Span& s : *spans) {
    const bool join =
        behavior == Behavior::kContiguous ? s.match == previous_match : s.match && !previous_match;
    if (join && !out.empty()) {
      out.back().begin = std::min(out.back().begin, s.begin);
      out.back().end = std::max(out.back().end, s.end);
    } else {
      out.push_back(s);
    }
    previous_match = s.match;
  }
  if (backwards) std::reverse(out.begin(), out.end());
  *spans = std::move(out);
}

Status SplitWords(const Step& step, std::vector<std::string_view>* words) {
  std::optional<Regex::Matcher> matcher;
  if (step.kind == Step::Kind::kRegex) matcher.emplace(*step.regex);
  std::vector<std::string_view> out;
  std::vector<Span> spans;
  for (const std::string_view word : *words) {
    AISP_RETURN_IF_ERROR(FindSpans(step, matcher ? &*matcher : nullptr, word, &spans));
    if (step.invert) {
      for (Span& s : spans) s.match = !s.match;
    }
    Combine(&spans, step.behavior);
    for (const Span& s : spans) {
      if (s.end > s.begin) out.push_back(word.substr(s.begin, s.end - s.begin));
    }
  }
  words->swap(out);
  return {};
}

// Replaces word `i` by a string that the run owns.
void Store(size_t i, std::string text, PreTokenizer::Words* w) {
  w->storage.push_back(std::make_unique<std::string>(std::move(text)));
  w->words[i] = *w->storage.back();
}

// Replaces every word by f(word), in one string that the run owns.
template <typename F>
void Transform(F f, PreTokenizer::Words* w) {
  auto text = std::make_unique<std::string>();
  std::vector<size_t> ends;
  ends.reserve(w->words.size());
  for (const std::string_view word : w->words) {
    text->append(f(word));
    ends.push_back(text->size());
  }
  size_t begin = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    w->words[i] = std::string_view(*text).substr(begin, ends[i] - begin);
    begin = ends[i];
  }
  w->storage.push_back(std::move(text));
}

void PrefixSpaces(PreTokenizer::Words* w) {
  for (size_t i = 0; i < w->words.size(); ++i) {
    if (!w->words[i].starts_with(' ')) Store(i, " " + std::string(w->words[i]), w);
  }
}

void Metaspace(const Step& step, bool at_start, PreTokenizer::Words* w) {
  for (size_t i = 0; i < w->words.size(); ++i) {
    std::string text = ReplaceAll(w->words[i], " ", step.literal);
    const bool prefix = step.prefix == Step::Prefix::kAlways ||
                        (step.prefix == Step::Prefix::kFirst && at_start && i == 0);
    if (prefix && !text.starts_with(step.literal)) text.insert(0, step.literal);
    Store(i, std::move(text), w);
  }
}

}  // namespace

PreTokenizer::PreTokenizer(std::vector<Step> steps) : steps_(std::move(steps)) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (steps_[i].kind != Step::Kind::kByteLevel) continue;
    byte_level_ = true;
    materialize_ = materialize_ || i + 1 < steps_.size();
  }
}

Result<PreTokenizer::Words> PreTokenizer::Run(std::string_view text, bool at_start) const {
  Words w;
  if (text.empty()) return w;
  w.words.push_back(text);
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Step::Kind::kByteLevel:
        if (!materialize_) break;
        Transform([](std::string_view word) { return BytesToAlphabet(word); }, &w);
        break;
      case Step::Kind::kMetaspace: {
        Metaspace(step, at_start, &w);
        if (!step.split) break;
        Step before;
        before.kind = Step::Kind::kLiteral;
        before.literal = step.literal;
        before.behavior = Behavior::kMergedWithNext;
        AISP_RETURN_IF_ERROR(SplitWords(before, &w.words));
        break;
      }
      case Step::Kind::kPrefixSpace:
        PrefixSpaces(&w);
        break;
      default:
        AISP_RETURN_IF_ERROR(SplitWords(step, &w.words));
    }
  }
  if (materialize_) {
    Transform(
        [](std::string_view word) { return AlphabetToBytes(word).value_or(std::string(word)); },
        &w);
  }
  return w;
}

}  // namespace aisp
