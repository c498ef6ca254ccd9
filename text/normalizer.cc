#include "text/normalizer.h"

#include "text/unicode.h"
#include "text/utf8.h"

namespace aisp {
namespace {

std::string Lowercase(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) AppendLower(DecodeUtf8(text, &i), &out);
  return ToUtf8(out);
}

std::string Strip(std::string_view text, bool left, bool right) {
  std::u32string s = ToUtf32(text);
  size_t begin = 0, end = s.size();
  while (left && begin < end && IsWhitespace(s[begin])) ++begin;
  while (right && end > begin && IsWhitespace(s[end - 1])) --end;
  return ToUtf8(std::u32string_view(s).substr(begin, end - begin));
}

std::string CollapseSpaces(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == ' ' && (out.empty() || out.back() == ' ')) continue;
    out.push_back(c);
  }
  if (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

Result<std::string> ReplaceMatches(std::string_view text, const Regex& regex, std::string_view to) {
  Regex::Matcher matcher(regex);
  std::string out;
  size_t done = 0, begin = 0, end = 0;
  while (true) {
    AISP_ASSIGN_OR_RETURN(const bool found, matcher.Find(text, done, &begin, &end));
    if (!found) break;
    out.append(text.substr(done, begin - done)).append(to);
    done = end;
  }
  out.append(text.substr(done));
  return out;
}

}  // namespace

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  if (from.empty()) return std::string(text);
  size_t done = 0;
  for (size_t at; (at = text.find(from, done)) != std::string_view::npos; done = at + from.size()) {
    out.append(text.substr(done, at - done)).append(to);
  }
  out.append(text.substr(done));
  return out;
}

Result<std::string> Normalizer::Apply(std::string_view valid_utf8) const {
  std::string text(valid_utf8);
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Step::Kind::kNfc:
        text = NormalizeNfc(text);
        break;
      case Step::Kind::kNfd:
        text = NormalizeNfd(text);
        break;
      case Step::Kind::kLowercase:
        text = Lowercase(text);
        break;
      case Step::Kind::kPrepend:
        if (!text.empty()) text.insert(0, step.content);
        break;
      case Step::Kind::kReplace:
        text = ReplaceAll(text, step.from, step.content);
        break;
      case Step::Kind::kReplaceRegex: {
        AISP_ASSIGN_OR_RETURN(text, ReplaceMatches(text, *step.regex, step.content));
        break;
      }
      case Step::Kind::kStrip:
        text = Strip(text, step.left, step.right);
        break;
      case Step::Kind::kCollapseSpaces:
        text = CollapseSpaces(text);
        break;
    }
    if (text.size() / kMaxNormalizedGrowth > valid_utf8.size() + 1024) {
      return ResourceExhausted("the tokenizer's normalizer makes " + std::to_string(text.size()) +
                               " bytes of " + std::to_string(valid_utf8.size()) +
                               "; the limit is " + std::to_string(kMaxNormalizedGrowth) +
                               " times as many");
    }
  }
  return text;
}

}  // namespace aisp
