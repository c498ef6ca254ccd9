#include "constrain/pattern_parser.h"

#include <optional>
#include <utility>

#include "common/strings.h"
#include "constrain/fold_case.h"
#include "constrain/pattern.h"
#include "constrain/unicode_property.h"
#include "text/utf8.h"

namespace aisp {
namespace {

constexpr int kMaxDepth = 60;
constexpr int32_t kMaxRepeat = 100'000;

CharSet Digits() { return CharSet::Of({{'0', '9'}}); }
CharSet Spaces() {
  return CharSet::Of({{9, 13},
                      {' ', ' '},
                      {0xA0, 0xA0},
                      {0x1680, 0x1680},
                      {0x2000, 0x200A},
                      {0x2028, 0x2029},
                      {0x202F, 0x202F},
                      {0x205F, 0x205F},
                      {0x3000, 0x3000},
                      {0xFEFF, 0xFEFF}});
}
CharSet LineEnds() { return CharSet::Of({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}); }

class Parser {
 public:
  explicit Parser(std::string_view pattern) : text_(ToUtf32(pattern)) {}

  Result<PatternNode> Parse() {
    PatternNode out;
    AISP_RETURN_IF_ERROR(Choice(&out, 0));
    if (at_ < text_.size()) return Bad("an unmatched ')'");
    return out;
  }

 private:
  tl::unexpected<Error> Bad(const std::string& what) const {
    return InvalidArgument("pattern, character " + std::to_string(at_) + ": " + what);
  }
  tl::unexpected<Error> No(const std::string& what) const {
    return Unimplemented("pattern, character " + std::to_string(at_) + ": " + what +
                         " cannot be enforced");
  }
  bool End() const { return at_ >= text_.size(); }
  char32_t Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : U'\0';
  }
  bool Take(char32_t c) {
    if (End() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool Word(std::u32string_view word) {
    if (std::u32string_view(text_).substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  // Flags of a group (ECMA-262 2025, 22.2.1) up to its `:` or end: i and s, set or cleared. `(?i)`
  // is not ECMA-262, but has no other meaning there, and engines that read it agree.
  Status Flags() {
    bool on = true;
    for (; !End() && Peek() != U':' && Peek() != U')'; ++at_) {
      switch (Peek()) {
        case U'-':
          on = false;
          break;
        case U'i':
          fold_ = on;
          break;
        case U's':
          dot_all_ = on;
          break;
        case U'u':
          break;  // the flag u: patterns are of code points anyway
        default:
          return No("a group with flags other than i and s");
      }
    }
    return {};
  }

  // The set, folded under the flag i.
  CharSet Cased(const CharSet& set) const { return fold_ ? FoldCase(set) : set; }

  Status Choice(PatternNode* out, int depth) {
    if (depth > kMaxDepth) return Bad("groups nest too deep");
    out->kind = PatternNode::Kind::kChoice;
    do {
      PatternNode& branch = out->children.emplace_back();
      while (!End() && Peek() != U'|' && Peek() != U')') AISP_RETURN_IF_ERROR(Term(&branch, depth));
    } while (Take(U'|'));
    if (out->children.size() == 1) {
      PatternNode only = std::move(out->children[0]);
      *out = std::move(only);
    }
    return {};
  }

  Status Term(PatternNode* sequence, int depth) {
    PatternNode node;
    AISP_RETURN_IF_ERROR(Atom(&node, depth));
    while (true) {
      int32_t min = 0, max = 0;
      AISP_ASSIGN_OR_RETURN(const bool quantified, Quantifier(&min, &max));
      if (!quantified) break;
      if (node.kind == PatternNode::Kind::kBegin || node.kind == PatternNode::Kind::kEnd ||
          node.kind == PatternNode::Kind::kBoundary || node.kind == PatternNode::Kind::kRepeat) {
        return Bad("nothing to repeat");
      }
      if (node.kind == PatternNode::Kind::kLookAhead) {  // repeating a look-ahead changes nothing
        if (min == 0) node = {};
        continue;
      }
      PatternNode repeat{PatternNode::Kind::kRepeat, false, min, max, {}, {}};
      repeat.children.push_back(std::move(node));
      node = std::move(repeat);
    }
    sequence->children.push_back(std::move(node));
    return {};
  }

  Result<bool> Quantifier(int32_t* min, int32_t* max) {
    if (Take(U'*')) {
      *min = 0, *max = -1;
    } else if (Take(U'+')) {
      *min = 1, *max = -1;
    } else if (Take(U'?')) {
      *min = 0, *max = 1;
    } else if (Peek() == U'{') {
      AISP_ASSIGN_OR_RETURN(const bool braces, Braces(min, max));
      if (!braces) return false;
    } else {
      return false;
    }
    Take(U'?');  // lazy: the same language
    if (Peek() == U'+') return No("a possessive quantifier");
    return true;
  }

  Result<bool> Braces(int32_t* min, int32_t* max) {
    const size_t from = at_++;
    if (Peek() == U',' && Peek(1) >= U'0' && Peek(1) <= U'9') {
      return No("{,n}, which engines read differently,");
    }
    const bool low = Count(min);
    bool high = low;
    *max = *min;
    if (low && Take(U',')) {
      *max = -1;
      if (Peek() != U'}') high = Count(max);
    }
    if (!low || !high || !Take(U'}')) {
      at_ = from;
      return false;  // a literal brace
    }
    if (*max >= 0 && *max < *min) return Bad("a quantifier whose bounds are out of order");
    if (*min > kMaxRepeat || *max > kMaxRepeat) return No("more than 100000 repetitions");
    return true;
  }
  bool Count(int32_t* out) {
    const size_t from = at_;
    int64_t value = 0;
    for (; Peek() >= U'0' && Peek() <= U'9'; ++at_) {
      value = std::min<int64_t>(value * 10 + static_cast<int64_t>(Peek() - U'0'), kMaxRepeat + 1);
    }
    *out = static_cast<int32_t>(value);
    return at_ > from;
  }

  Status Atom(PatternNode* out, int depth) {
    const char32_t c = Peek();
    ++at_;
    out->kind = PatternNode::Kind::kSet;
    switch (c) {
      case U'^':
        out->kind = PatternNode::Kind::kBegin;
        return {};
      case U'$':
        out->kind = PatternNode::Kind::kEnd;
        return {};
      case U'.':
        out->set = dot_all_ ? CharSet::Any() : LineEnds().Complement();
        return {};
      case U'(':
        return Group(out, depth);
      case U'[':
        return Class(&out->set);
      case U'\\':
        return Escape(out);
      case U'*':
      case U'+':
      case U'?':
        --at_;
        return Bad("nothing to repeat");
      default:
        out->set = Cased(CharSet::One(c));
        return {};
    }
  }

  Status Group(PatternNode* out, int depth) {
    const bool fold = fold_, dot_all = dot_all_;
    bool goes_on = false;  // `(?i)`: the flags hold for the rest of the enclosing group
    const Status status = GroupBody(out, depth, &goes_on);
    if (goes_on) return status;
    fold_ = fold;
    dot_all_ = dot_all;
    return status;
  }

  Status GroupBody(PatternNode* out, int depth, bool* goes_on) {
    if (Peek() == U'?') {
      ++at_;
      if (Take(U'=') || Peek() == U'!') {
        out->kind = PatternNode::Kind::kLookAhead;
        out->negated = Take(U'!');
        AISP_RETURN_IF_ERROR(Choice(&out->children.emplace_back(), depth + 1));
        return Take(U')') ? Status() : Bad("a group without its end");
      }
      if (Peek() == U'<' && (Peek(1) == U'=' || Peek(1) == U'!')) {
        out->kind = PatternNode::Kind::kLookBehind;
        out->negated = Peek(1) == U'!';
        at_ += 2;
        AISP_RETURN_IF_ERROR(Choice(&out->children.emplace_back(), depth + 1));
        return Take(U')') ? Status() : Bad("a group without its end");
      }
      if (Take(U'P') && Peek() != U'<') return No("this group");
      if (Take(U'<')) {
        while (!End() && Peek() != U'>') ++at_;
        if (!Take(U'>')) return Bad("a group's name without its end");
      } else if (!Take(U':')) {
        AISP_RETURN_IF_ERROR(Flags());
        if (Take(U')')) {
          *out = {};
          *goes_on = true;
          return {};
        }
        if (!Take(U':')) return Bad("a group of flags without its end");
      }
    }
    AISP_RETURN_IF_ERROR(Choice(out, depth + 1));
    if (!Take(U')')) return Bad("a group without its end");
    if (out->kind != PatternNode::Kind::kSequence) {
      PatternNode group;  // so that a quantifier applies to the whole group
      group.children.push_back(std::move(*out));
      *out = std::move(group);
    }
    return {};
  }

  Status Escape(PatternNode* out) {
    if (End()) return Bad("a lone backslash");
    const char32_t c = Peek();
    if (c == U'b' || c == U'B') {
      ++at_;
      out->kind = PatternNode::Kind::kBoundary;
      out->negated = c == U'B';
      return {};
    }
    // Errors in ECMA-262 with flag u; here the text's ends, as in other engines.
    if (c == U'A' || c == U'Z' || c == U'z') {
      ++at_;
      out->kind = c == U'A' ? PatternNode::Kind::kBegin : PatternNode::Kind::kEnd;
      return {};
    }
    if ((c >= U'1' && c <= U'9') || c == U'k') return No("a back-reference");
    return EscapedSet(&out->set);
  }

  // After a backslash, inside or outside a class.
  Status EscapedSet(CharSet* out) {
    const char32_t c = Peek();
    ++at_;
    switch (c) {
      case U'd':
      case U'D':
        *out = c == U'd' ? Digits() : Digits().Complement();
        return {};
      case U'w':
      case U'W':
        *out = Cased(WordCharacters());
        if (c == U'W') *out = out->Complement();
        return {};
      case U's':
      case U'S':
        *out = c == U's' ? Spaces() : Spaces().Complement();
        return {};
      case U'p':
      case U'P':
        return PropertySet(c == U'P', out);
      default:
        break;
    }
    AISP_ASSIGN_OR_RETURN(const char32_t one, EscapedCharacter(c));
    *out = Cased(CharSet::One(one));
    return {};
  }

  Status PropertySet(bool negated, CharSet* out) {
    if (!Take(U'{')) return No("\\p without braces");
    if (fold_) return No("\\p under the flag i");
    std::string name;
    while (!End() && Peek() != U'}') {
      if (Peek() > 127) return Bad("not a property");
      name.push_back(static_cast<char>(text_[at_++]));
    }
    if (!Take(U'}')) return Bad("a property without its end");
    const auto set = UnicodeProperty(name);
    if (!set) return No("the property '" + name + "'");
    *out = negated ? set->Complement() : *set;
    return {};
  }

  Result<char32_t> EscapedCharacter(char32_t c) {
    switch (c) {
      case U't':
        return U'\t';
      case U'n':
        return U'\n';
      case U'r':
        return U'\r';
      case U'f':
        return U'\f';
      case U'v':
        return U'\v';
      case U'0':
        return U'\0';
      case U'c':
        if ((Peek() | 32) < U'a' || (Peek() | 32) > U'z') return Bad("\\c wants a letter");
        return text_[at_++] & 31;
      case U'x':
        return Hex(2);
      case U'u':
        return UnicodeEscape();
      default:
        break;
    }
    const bool letter_or_digit = (c >= U'0' && c <= U'9') || ((c | 32) >= U'a' && (c | 32) <= U'z');
    if (letter_or_digit) {
      return No(std::string("the escape \\") + static_cast<char>(c) +
                ", which engines read differently,");
    }
    return c;
  }

  Result<char32_t> Hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char32_t c = Peek(), lower = c | 32;
      if (c >= U'0' && c <= U'9') {
        value = value * 16 + (c - U'0');
      } else if (lower >= U'a' && lower <= U'f') {
        value = value * 16 + (lower - U'a' + 10);
      } else {
        return Bad("hexadecimal digits are expected");
      }
    }
    return value;
  }

  Result<char32_t> UnicodeEscape() {
    if (Take(U'{')) {
      char32_t value = 0;
      while (Peek() != U'}') {
        AISP_ASSIGN_OR_RETURN(const char32_t digit, Hex(1));
        value = value * 16 + digit;
        if (value > kMaxCodePoint) return Bad("a code point beyond U+10FFFF");
      }
      ++at_;
      return value;
    }
    AISP_ASSIGN_OR_RETURN(char32_t value, Hex(4));
    if (value >= 0xD800 && value < 0xDC00 && Word(U"\\u")) {
      const size_t behind = at_ - 2;
      AISP_ASSIGN_OR_RETURN(const char32_t low, Hex(4));
      const bool pair = low >= 0xDC00 && low <= 0xDFFF;
      if (!pair) at_ = behind;  // a lone surrogate, which no text contains
      if (pair) value = 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
    }
    return value;
  }

  // A member of a class: a character (*single) or a set such as \d.
  Status ClassAtom(CharSet* set, std::optional<char32_t>* single) {
    if (!Take(U'\\')) {
      *single = text_[at_++];
    } else if (End()) {
      return Bad("a lone backslash");
    } else if (Take(U'b')) {
      *single = U'\b';
    } else if (std::u32string_view(U"dDwWsSpP").find(Peek()) == std::u32string_view::npos) {
      const char32_t c = text_[at_++];
      AISP_ASSIGN_OR_RETURN(*single, EscapedCharacter(c));
    } else {
      const bool fold = std::exchange(fold_, false);
      const Status status = EscapedSet(set);
      fold_ = fold;
      AISP_RETURN_IF_ERROR(status);
      if (set->Size() == 1) *single = set->ranges()[0].first;
      return {};
    }
    *set = CharSet::One(**single);
    return {};
  }

  Status Class(CharSet* out) {
    const bool negated = Take(U'^');
    CharSet all;
    while (!Take(U']')) {
      if (End()) return Bad("a class without its end");
      CharSet set, high_set;
      std::optional<char32_t> low, high;
      AISP_RETURN_IF_ERROR(ClassAtom(&set, &low));
      if (Peek() == U'-' && Peek(1) != U']' && at_ + 1 < text_.size() && low) {
        const size_t dash = at_++;
        AISP_RETURN_IF_ERROR(ClassAtom(&high_set, &high));
        if (!high) {
          at_ = dash;  // in [a-\d] the dash is a member
        } else {
          if (*high < *low) return Bad("a range out of order");
          set = CharSet::Of({{*low, *high}});
        }
      }
      all = all.Union(Cased(set));
    }
    *out = negated ? all.Complement() : all;
    return {};
  }

  std::u32string text_;
  size_t at_ = 0;
  bool fold_ = false, dot_all_ = false;  // flags i and s
};

}  // namespace

const CharSet& WordCharacters() {
  static const CharSet kSet = CharSet::Of({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}});
  return kSet;
}

Result<PatternNode> ParsePattern(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return Unimplemented("a pattern of " + std::to_string(pattern.size()) +
                         " bytes; the limit is " + std::to_string(kMaxPatternBytes));
  }
  if (!IsValidUtf8(pattern)) return InvalidArgument("a pattern that is not valid UTF-8");
  return Parser(pattern).Parse();
}

}  // namespace aisp
