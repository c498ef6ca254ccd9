#include "text/jinja_lexer.h"

#include <algorithm>
#include <array>

#include "text/unicode.h"
#include "text/utf8.h"

namespace aisp::jinja {
namespace {

bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool IsNameChar(char c) { return IsNameStart(c) || IsDigit(c); }

// Converts \r\n and \r to \n and drops one newline at the end.
std::string NormalizeNewlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out.push_back(source[i]);
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

constexpr std::array<std::string_view, 24> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~",
    "[",  "]",  "(",  ")",  "{",  "}",  ">", "<", "=", ".", ":", "|"};

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(NormalizeNewlines(source)), s_(source_) {}

  Result<std::vector<Token>> Run() {
    while (pos_ < s_.size()) AISP_RETURN_IF_ERROR(Root());
    Add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void Add(Token::Kind kind, std::string text) {
    tokens_.push_back({kind, std::move(text), line_});
  }

  // Moves to `to`, counting lines.
  void Advance(size_t to) {
    line_ += static_cast<int>(std::count(s_.begin() + static_cast<ptrdiff_t>(pos_),
                                         s_.begin() + static_cast<ptrdiff_t>(to), '\n'));
    if (to > pos_) line_starting_ = s_[to - 1] == '\n';
    pos_ = to;
  }

  char At(size_t i) const { return i < s_.size() ? s_[i] : '\0'; }

  // Adds data up to the next tag and strips the white space before it as the tag asks.
  void AddData(size_t tag, char sign, bool lstrip) {
    std::string_view data = s_.substr(pos_, tag - pos_);
    if (sign == '-') {
      while (!data.empty() && IsSpace(data.back())) data.remove_suffix(1);
    } else if (sign != '+' && lstrip) {
      const size_t newline = data.rfind('\n');
      const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
      const bool blank =
          std::all_of(data.begin() + static_cast<ptrdiff_t>(line), data.end(), IsSpace);
      if ((line > 0 || line_starting_) && blank) data = data.substr(0, line);
    }
    if (!data.empty()) Add(Token::Kind::kData, std::string(data));
    Advance(tag);
  }

  Status Root() {
    size_t tag = pos_;
    while (true) {
      tag = s_.find('{', tag);
      if (tag == std::string_view::npos) {
        AddData(s_.size(), '+', false);
        return {};
      }
      const char next = At(tag + 1);
      if (next == '%' || next == '{' || next == '#') break;
      ++tag;
    }
    const char type = At(tag + 1);
    const char sign = At(tag + 2) == '-' || At(tag + 2) == '+' ? At(tag + 2) : '\0';
    AddData(tag, sign, type != '{');
    const size_t body = tag + (sign != '\0' ? 3 : 2);
    if (type == '#') return Comment(body);
    if (type == '%' && IsRaw(body)) return Raw(body);
    Add(type == '%' ? Token::Kind::kBlockBegin : Token::Kind::kVariableBegin, "");
    Advance(body);
    return Inside(type == '%' ? '%' : '}');
  }

  // After a closing tag at `end`: a "-" strips all following white space, a block or comment one
  // newline.
  void FinishTag(size_t end, char sign, bool trim) {
    if (sign == '-') {
      while (end < s_.size() && IsSpace(s_[end])) ++end;
    } else if (sign != '+' && trim && At(end) == '\n') {
      ++end;
    }
    Advance(end);
  }

  Status Comment(size_t body) {
    const size_t end = s_.find("#}", body);
    if (end == std::string_view::npos) return TemplateError(line_, "missing end of comment tag");
    const char before = end > body ? s_[end - 1] : '\0';
    FinishTag(end + 2, before == '-' || before == '+' ? before : '\0', true);
    return {};
  }

  size_t SkipSpace(size_t i) const {
    while (i < s_.size() && IsSpace(s_[i])) ++i;
    return i;
  }

  // Reads `word` and a block's end from `i`; returns where it ends, or npos.
  size_t BlockEndAfter(size_t i, std::string_view word, char* sign) const {
    i = SkipSpace(i);
    if (s_.substr(i, word.size()) != word) return std::string_view::npos;
    i = SkipSpace(i + word.size());
    *sign = At(i) == '-' || At(i) == '+' ? At(i) : '\0';
    if (*sign != '\0') ++i;
    return At(i) == '%' && At(i + 1) == '}' ? i + 2 : std::string_view::npos;
  }

  bool IsRaw(size_t body) const {
    char sign = '\0';
    return BlockEndAfter(body, "raw", &sign) != std::string_view::npos;
  }

  Status Raw(size_t body) {
    char sign = '\0';
    const int line = line_;
    FinishTag(BlockEndAfter(body, "raw", &sign), sign, true);
    for (size_t tag = pos_; (tag = s_.find("{%", tag)) != std::string_view::npos; ++tag) {
      const char open = At(tag + 2) == '-' || At(tag + 2) == '+' ? At(tag + 2) : '\0';
      const size_t end = BlockEndAfter(tag + (open != '\0' ? 3 : 2), "endraw", &sign);
      if (end == std::string_view::npos) continue;
      AddData(tag, open, true);
      FinishTag(end, sign, true);
      return {};
    }
    return TemplateError(line, "missing end of raw block");
  }

  // Tokens up to the tag's end. `close`: '%' for a block, '}' for a variable.
  Status Inside(char close) {
    const int line = line_;
    std::vector<char> open;
    while (true) {
      Advance(SkipSpace(pos_));
      if (pos_ >= s_.size()) return TemplateError(line, "tag is never closed");
      if (open.empty()) {
        const char sign = s_[pos_] == '-' || (s_[pos_] == '+' && close == '%') ? s_[pos_] : '\0';
        const size_t at = pos_ + (sign != '\0' ? 1 : 0);
        if (At(at) == close && At(at + 1) == '}') {
          Add(close == '%' ? Token::Kind::kBlockEnd : Token::Kind::kVariableEnd, "");
          FinishTag(at + 2, sign, close == '%');
          return {};
        }
      }
      AISP_RETURN_IF_ERROR(OneToken(&open));
    }
  }

  Status OneToken(std::vector<char>* open) {
    const char c = s_[pos_];
    if (c == '"' || c == '\'') return String(c);
    if (IsDigit(c)) return Number();
    if (IsNameStart(c)) {
      size_t end = pos_;
      while (end < s_.size() && IsNameChar(s_[end])) ++end;
      Add(Token::Kind::kName, std::string(s_.substr(pos_, end - pos_)));
      Advance(end);
      return {};
    }
    if (c == ',' || c == ';') return Operator(std::string_view(&s_[pos_], 1));
    for (const std::string_view op : kOperators) {
      if (s_.substr(pos_, op.size()) != op) continue;
      if (c == '(' || c == '[' || c == '{') open->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
      if (c == ')' || c == ']' || c == '}') {
        if (open->empty() || open->back() != c)
          return TemplateError(line_, std::string("unexpected '") + c + "'");
        open->pop_back();
      }
      return Operator(op);
    }
    return TemplateError(line_, std::string("unexpected character '") + c + "'");
  }

  Status Operator(std::string_view op) {
    Add(Token::Kind::kOperator, std::string(op));
    Advance(pos_ + op.size());
    return {};
  }

  Status Number() {
    size_t end = pos_;
    const auto digits = [&] {
      while (IsDigit(At(end)) || (At(end) == '_' && IsDigit(At(end + 1)))) ++end;
    };
    digits();
    bool real = false;
    if (At(end) == '.' && IsDigit(At(end + 1))) {
      real = true;
      ++end;
      digits();
    }
    const size_t exponent = end + (At(end + 1) == '+' || At(end + 1) == '-' ? 2 : 1);
    if ((At(end) == 'e' || At(end) == 'E') && IsDigit(At(exponent))) {
      real = true;
      end = exponent;
      digits();
    }
    std::string text(s_.substr(pos_, end - pos_));
    std::erase(text, '_');
    Add(real ? Token::Kind::kFloat : Token::Kind::kInteger, std::move(text));
    Advance(end);
    return {};
  }

  // A string literal with Python's escapes (the unicode-escape codec).
  Status String(char quote) {
    std::string value;
    size_t i = pos_ + 1;
    while (i < s_.size() && s_[i] != quote) {
      if (s_[i] != '\\') {
        value.push_back(s_[i++]);
        continue;
      }
      AISP_RETURN_IF_ERROR(Escape(&i, &value));
    }
    if (i >= s_.size()) return TemplateError(line_, "string is never closed");
    Add(Token::Kind::kString, std::move(value));
    Advance(i + 1);
    return {};
  }

  Status Escape(size_t* i, std::string* value) {
    static constexpr std::string_view kFrom = "\\'\"abfnrtv";
    static constexpr std::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
    const char c = At(*i + 1);
    if (const size_t simple = kFrom.find(c); c != '\0' && simple != std::string_view::npos) {
      value->push_back(kTo[simple]);
      *i += 2;
      return {};
    }
    if (c == '\n') {
      *i += 2;
      return {};
    }
    if (c >= '0' && c <= '7') {
      char32_t code = 0;
      size_t j = *i + 1;
      for (; j < *i + 4 && At(j) >= '0' && At(j) <= '7'; ++j)
        code = code * 8 + static_cast<char32_t>(At(j) - '0');
      AppendUtf8(code, value);
      *i = j;
      return {};
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {  // not an escape: the backslash stays
      value->push_back('\\');
      ++*i;
      return {};
    }
    char32_t code = 0;
    for (size_t j = *i + 2; j < *i + 2 + digits; ++j) {
      const char h = At(j);
      const int digit = IsDigit(h)                           ? h - '0'
                        : (h | 32) >= 'a' && (h | 32) <= 'f' ? (h | 32) - 'a' + 10
                                                             : -1;
      if (digit < 0) return TemplateError(line_, "broken escape in a string");
      code = code << 4 | static_cast<char32_t>(digit);
    }
    if (code > 0x10FFFF) return TemplateError(line_, "escape beyond U+10FFFF");
    AppendUtf8(code, value);
    *i += 2 + digits;
    return {};
  }

  std::string source_;
  std::string_view s_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

tl::unexpected<Error> TemplateError(int line, std::string_view message) {
  return InvalidArgument("chat template, line " + std::to_string(line) + ": " +
                         std::string(message));
}

Result<std::vector<Token>> Tokenize(std::string_view source) { return Lexer(source).Run(); }

}  // namespace aisp::jinja
