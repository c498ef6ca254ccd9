#include "constrain/grammar_text.h"

#include <algorithm>
#include <charconv>

#include "common/strings.h"
#include "constrain/pattern.h"
#include "text/utf8.h"

namespace aisp {
namespace {

constexpr int kMaxDepth = 100;
constexpr int32_t kMaxRepeat = 2000;

bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

// Patterns of Lark's own library that are regular.
const std::map<std::string_view, std::string_view>& CommonTerminals() {
  static const std::map<std::string_view, std::string_view> kTerminals = {
      {"DIGIT", "[0-9]"},
      {"INT", "[0-9]+"},
      {"SIGNED_INT", "[+-]?[0-9]+"},
      {"FLOAT", "([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+"},
      {"NUMBER", "([0-9]+\\.?[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
      {"SIGNED_NUMBER", "[+-]?([0-9]+\\.?[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
      {"ESCAPED_STRING", "\"([^\"\\\\]|\\\\.)*\""},
      {"LETTER", "[a-zA-Z]"},
      {"WORD", "[a-zA-Z]+"},
      {"CNAME", "[_a-zA-Z][_a-zA-Z0-9]*"},
      {"WS", "[ \\t\\f\\r\\n]+"},
      {"WS_INLINE", "[ \\t]+"},
      {"NEWLINE", "(\\r?\\n)+"},
  };
  return kTerminals;
}

class Reader {
 public:
  Reader(std::string_view text, bool lark, Languages* languages)
      : text_(text), lark_(lark), l_(*languages) {}

  Result<GrammarText> Read() {
    out_.lark = lark_;
    out_.root = lark_ ? "start" : "root";
    for (Skip(); at_ < text_.size(); Skip()) {
      if (lark_ && text_[at_] == '%') {
        if (!Directive()) return Failed();
      } else if (!Rule()) {
        return Failed();
      }
    }
    if (!out_.rules.contains(out_.root)) {
      return InvalidArgument("the grammar has no rule '" + out_.root + "'");
    }
    return std::move(out_);
  }

 private:
  tl::unexpected<Error> Failed() {
    const auto line = std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(at_), '\n');
    return InvalidArgument("the grammar, line " + std::to_string(line + 1) + ": " + error_);
  }
  bool Wrong(std::string what) {
    if (error_.empty()) error_ = std::move(what);
    return false;
  }

  // Skips blanks and comments.
  void Skip() {
    while (at_ < text_.size()) {
      const std::string_view rest = text_.substr(at_);
      const bool comment = lark_ ? rest.starts_with("//") : rest[0] == '#';
      if (comment) {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (std::string_view(" \t\r\n").find(rest[0]) != std::string_view::npos) {
        ++at_;
      } else {
        return;
      }
    }
  }
  bool Take(std::string_view word) {
    Skip();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  std::string Name() {
    Skip();
    const size_t begin = at_;
    while (at_ < text_.size() && IsNameChar(text_[at_]) && (!lark_ || text_[at_] != '-')) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }
  // Reads a name that is a rule's head; otherwise consumes nothing.
  bool Head(std::string* name) {
    const size_t before = at_;
    if (lark_) Take("?") || Take("!");
    *name = Name();
    if (lark_ && !name->empty() && Take(".")) Name();  // a priority
    if (!name->empty() && Take(lark_ ? ":" : "::=")) return true;
    at_ = before;
    return false;
  }

  bool Rule() {
    std::string name;
    if (!Head(&name)) return Wrong("a rule is expected, as in `name ::= ...` or `name: ...`");
    GrammarNode body;
    if (!Choice(&body, 0)) return false;
    if (out_.rules.contains(name)) return Wrong("rule '" + name + "' is there twice");
    out_.rules[name] = std::move(body);
    return true;
  }

  bool Directive() {
    if (Take("%ignore")) {
      GrammarNode body;
      if (!Choice(&body, 0)) return false;
      const std::string name = "%ignore" + std::to_string(out_.ignored.size());
      out_.rules[name] = std::move(body);
      out_.ignored.push_back(name);
      return true;
    }
    if (!Take("%import")) return Wrong("only %ignore and %import common.NAME are understood");
    if (!Take("common.")) return Wrong("only names of `common` can be imported");
    const std::string name = Name();
    const auto known = CommonTerminals().find(name);
    if (known == CommonTerminals().end())
      return Wrong("common." + name + " is not known to this server");
    std::string as = name;
    if (Take("->")) as = Name();
    GrammarNode body;
    if (!Pattern(known->second, &body)) return false;
    out_.rules[as] = std::move(body);
    return true;
  }

  bool Choice(GrammarNode* out, int depth) {
    if (depth > kMaxDepth) return Wrong("more than 100 groups inside each other");
    out->kind = GrammarNode::Kind::kChoice;
    do {
      GrammarNode sequence;
      if (!Sequence(&sequence, depth)) return false;
      out->children.push_back(std::move(sequence));
    } while (Take("|"));
    return true;
  }

  bool AtSequenceEnd() {
    Skip();
    if (at_ == text_.size()) return true;
    const char c = text_[at_];
    if (c == '|' || c == ')' || (lark_ && (c == ']' || c == '%'))) return true;
    const size_t before = at_;
    std::string name;
    const bool head = Head(&name);
    at_ = before;
    return head;
  }

  bool Sequence(GrammarNode* out, int depth) {
    out->kind = GrammarNode::Kind::kSequence;
    while (!AtSequenceEnd()) {
      if (lark_ && Take("->")) {
        Name();  // an alias, irrelevant here
        continue;
      }
      GrammarNode item;
      if (!Item(&item, depth) || !Postfix(&item)) return false;
      out->children.push_back(std::move(item));
    }
    return true;
  }

  bool Item(GrammarNode* out, int depth) {
    const char c = text_[at_];
    if (c == '(' || (lark_ && c == '[')) {
      ++at_;
      if (!Choice(out, depth + 1)) return false;
      if (!Take(c == '(' ? ")" : "]")) return Wrong(c == '(' ? "a ) is missing" : "a ] is missing");
      if (c == '[') *out = Repeated(std::move(*out), 0, 1);
      return true;
    }
    if (c == '"') return Text(out);
    if (lark_ && c == '/') return Slashes(out);
    if (!lark_ && (c == '[' || c == '.')) return Class(out);
    out->kind = GrammarNode::Kind::kRule;
    out->name = Name();
    if (out->name.empty()) return Wrong(std::string("'") + c + "' is not understood here");
    return true;
  }

  static GrammarNode Repeated(GrammarNode node, int32_t min, int32_t max) {
    GrammarNode out;
    out.kind = GrammarNode::Kind::kRepeat;
    out.min = min;
    out.max = max;
    out.children.push_back(std::move(node));
    return out;
  }

  bool Number(int32_t* value) {
    Skip();
    const char* end = text_.data() + text_.size();
    const auto read = std::from_chars(text_.data() + at_, end, *value);
    if (read.ec != std::errc() || *value < 0 || *value > kMaxRepeat)
      return Wrong("a number from 0 to 2000 is expected");
    at_ = static_cast<size_t>(read.ptr - text_.data());
    return true;
  }

  bool Postfix(GrammarNode* item) {
    while (true) {
      if (Take("*")) {
        *item = Repeated(std::move(*item), 0, -1);
      } else if (Take("+")) {
        *item = Repeated(std::move(*item), 1, -1);
      } else if (Take("?")) {
        *item = Repeated(std::move(*item), 0, 1);
      } else if (!lark_ && Take("{")) {
        if (!Braces(item)) return false;
      } else if (lark_ && Take("~")) {
        int32_t min = 0;
        if (!Number(&min)) return false;
        int32_t max = min;
        if (Take("..") && !Number(&max)) return false;
        if (max < min) return Wrong("a repetition whose end is below its beginning");
        *item = Repeated(std::move(*item), min, max);
      } else {
        return true;
      }
    }
  }

  bool Braces(GrammarNode* item) {
    int32_t min = 0;
    Skip();
    if (at_ < text_.size() && text_[at_] != ',' && !Number(&min)) return false;
    int32_t max = min;
    if (Take(",")) {
      max = -1;
      Skip();
      if (at_ < text_.size() && text_[at_] != '}' && !Number(&max)) return false;
    }
    if (!Take("}")) return Wrong("a } is missing");
    if (max >= 0 && max < min) return Wrong("a repetition whose end is below its beginning");
    *item = Repeated(std::move(*item), min, max);
    return true;
  }

  // One code point, escaped or not.
  bool CodePoint(uint32_t* c) {
    if (at_ >= text_.size()) return Wrong("the text is not closed");
    if (text_[at_] != '\\') {
      *c = DecodeUtf8(text_, &at_);
      return true;
    }
    if (++at_ >= text_.size()) return Wrong("the text is not closed");
    static constexpr std::string_view kFrom = "nrt0", kTo{"\n\r\t\0", 4};
    const char escape = text_[at_++];
    const size_t known = kFrom.find(escape);
    const size_t digits = escape == 'x' ? 2 : escape == 'u' ? 4 : escape == 'U' ? 8 : 0;
    if (known != std::string_view::npos) {
      *c = static_cast<uint8_t>(kTo[known]);
    } else if (digits == 0) {
      if (IsNameChar(escape)) return Wrong(std::string("the escape \\") + escape + " is not known");
      *c = static_cast<uint8_t>(escape);
    } else {
      const std::string_view hex = text_.substr(at_, digits);
      const auto read = std::from_chars(hex.data(), hex.data() + hex.size(), *c, 16);
      const bool surrogate = *c >= 0xD800 && *c < 0xE000;
      if (hex.size() < digits || read.ptr != hex.data() + digits || *c > kMaxCodePoint || surrogate)
        return Wrong("an escape that is no code point");
      at_ += digits;
    }
    return true;
  }

  bool Quoted(std::string* out) {
    ++at_;
    while (at_ < text_.size() && text_[at_] != '"') {
      uint32_t c = 0;
      if (!CodePoint(&c)) return false;
      AppendUtf8(c, out);
    }
    if (at_ >= text_.size()) return Wrong("a text is not closed");
    ++at_;
    return true;
  }

  bool Text(GrammarNode* out) {
    std::string text, last;
    if (!Quoted(&text)) return false;
    out->kind = GrammarNode::Kind::kLanguage;
    if (lark_ && at_ < text_.size() && text_[at_] == 'i')
      return Wrong("the flag i is not supported");
    if (!lark_ || !Take("..")) {
      out->language = l_.Literal(text);
      return true;
    }
    Skip();
    if (at_ >= text_.size() || text_[at_] != '"' || !Quoted(&last))
      return Wrong("a text is missing");
    const std::u32string a = ToUtf32(text), b = ToUtf32(last);
    if (a.size() != 1 || b.size() != 1 || b[0] < a[0]) return Wrong("a range of two characters");
    out->language = l_.Set(CharSet::Of({{a[0], b[0]}}));
    return true;
  }

  bool Pattern(std::string_view pattern, GrammarNode* out) {
    const auto language = CompileWholePattern(pattern, &l_);
    if (!language) return Wrong(language.error().message);
    out->kind = GrammarNode::Kind::kLanguage;
    out->language = *language;
    return true;
  }

  bool Slashes(GrammarNode* out) {
    const size_t begin = ++at_;
    while (at_ < text_.size() && text_[at_] != '/' && text_[at_] != '\n')
      at_ += text_[at_] == '\\' ? 2 : 1;
    at_ = std::min(at_, text_.size());
    if (at_ == text_.size() || text_[at_] != '/') return Wrong("a pattern is not closed");
    const std::string_view pattern = text_.substr(begin, at_ - begin);
    ++at_;
    const bool flag =
        at_ < text_.size() && std::string_view("imslux").find(text_[at_]) != std::string_view::npos;
    if (flag) return Wrong("flags of patterns are not supported");
    return Pattern(pattern, out);
  }

  bool Class(GrammarNode* out) {
    std::vector<CharSet::Range> ranges;
    out->kind = GrammarNode::Kind::kLanguage;
    if (text_[at_++] == '.') {
      out->language = l_.Set(CharSet::Any());
      return true;
    }
    const bool negated = at_ < text_.size() && text_[at_] == '^';
    at_ += negated;
    while (at_ < text_.size() && text_[at_] != ']') {
      uint32_t from = 0;
      if (!CodePoint(&from)) return false;
      uint32_t to = from;
      if (at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']') {
        ++at_;
        if (!CodePoint(&to)) return false;
      }
      if (to < from) return Wrong("a range whose end is below its beginning");
      ranges.emplace_back(from, to);
    }
    if (at_ >= text_.size()) return Wrong("a ] is missing");
    ++at_;
    const CharSet set = CharSet::Of(std::move(ranges));
    out->language = l_.Set(negated ? set.Complement() : set);
    return true;
  }

  std::string_view text_;
  bool lark_;
  Languages& l_;
  size_t at_ = 0;
  std::string error_;
  GrammarText out_;
};

}  // namespace

Result<GrammarText> ReadGrammar(std::string_view text, Languages* languages) {
  if (text.size() > kMaxGrammarBytes) {
    return InvalidArgument("the grammar has " + std::to_string(text.size()) +
                           " bytes; at most 262144 are read");
  }
  if (!IsValidUtf8(text)) return InvalidArgument("the grammar is not valid UTF-8");
  const bool lark = text.find("::=") == std::string_view::npos;
  return Reader(text, lark, languages).Read();
}

}  // namespace aisp
