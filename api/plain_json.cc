#include "api/plain_json.h"

#include <charconv>
#include <string>
#include <utility>

#include "common/strings.h"

namespace aisp {
namespace {

// More cannot overflow an int64_t.
constexpr size_t kMostDigits = 18;

class Parser {
 public:
  Parser(std::string_view text, int max_depth)
      : at_(text.data()), end_(text.data() + text.size()), max_depth_(max_depth) {}

  std::optional<Value> Parse() {
    std::optional<Value> value = ParseValue(0);
    SkipSpace();
    if (at_ != end_) return std::nullopt;
    return value;
  }

 private:
  void SkipSpace() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
  }
  // After space.
  bool Take(char c) {
    SkipSpace();
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  bool TakeWord(std::string_view word) {
    if (!std::string_view(at_, static_cast<size_t>(end_ - at_)).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  static bool IsDigit(char c) { return c >= '0' && c <= '9'; }

  // `depth` containers are open.
  std::optional<Value> ParseValue(int depth) {
    SkipSpace();
    if (at_ == end_) return std::nullopt;
    switch (*at_) {
      case '{':
        return depth < max_depth_ ? ParseObject(depth + 1) : std::nullopt;
      case '[':
        return depth < max_depth_ ? ParseArray(depth + 1) : std::nullopt;
      case '"': {
        std::string text;
        if (!ParseString(&text)) return std::nullopt;
        return Value(std::move(text));
      }
      case 't':
        return TakeWord("true") ? std::optional<Value>(Value(true)) : std::nullopt;
      case 'f':
        return TakeWord("false") ? std::optional<Value>(Value(false)) : std::nullopt;
      case 'n':
        return TakeWord("null") ? std::optional<Value>(Value()) : std::nullopt;
      default:
        return ParseNumber();
    }
  }

  std::optional<Value> ParseArray(int depth) {
    ++at_;
    Value::List list;
    if (Take(']')) return Value(std::move(list));
    do {
      std::optional<Value> value = ParseValue(depth);
      if (!value) return std::nullopt;
      list.push_back(std::move(*value));
    } while (Take(','));
    if (!Take(']')) return std::nullopt;
    return Value(std::move(list));
  }

  std::optional<Value> ParseObject(int depth) {
    ++at_;
    Value::Map map;
    if (Take('}')) return Value(std::move(map));
    do {
      SkipSpace();
      std::string key;
      if (at_ == end_ || *at_ != '"' || !ParseString(&key) || !Take(':')) return std::nullopt;
      std::optional<Value> value = ParseValue(depth);
      if (!value) return std::nullopt;
      map.Set(std::move(key), std::move(*value));
    } while (Take(','));
    if (!Take('}')) return std::nullopt;
    return Value(std::move(map));
  }

  bool ParseString(std::string* out) {
    const char* begin = ++at_;
    bool ascii = true;
    for (;;) {
      while (at_ != end_ && *at_ != '"' && *at_ != '\\') {
        const auto byte = static_cast<unsigned char>(*at_++);
        if (byte < 0x20) return false;
        ascii = ascii && byte < 0x80;
      }
      if (at_ == end_) return false;
      out->append(begin, at_);
      if (*at_++ == '"') break;
      const char* const escapes = R"("\/bfnrt)";
      const size_t which =
          at_ == end_ ? std::string_view::npos : std::string_view(escapes).find(*at_);
      if (which == std::string_view::npos) return false;
      out->push_back("\"\\/\b\f\n\r\t"[which]);
      begin = ++at_;
    }
    return ascii || IsValidUtf8(*out);
  }

  std::optional<Value> ParseNumber() {
    const char* const begin = at_;
    if (*at_ == '-') ++at_;
    const char* const digits = at_;
    while (at_ != end_ && IsDigit(*at_)) ++at_;
    const auto count = static_cast<size_t>(at_ - digits);
    if (count == 0 || (count > 1 && *digits == '0')) return std::nullopt;
    if (at_ != end_ && (*at_ == '.' || *at_ == 'e' || *at_ == 'E')) return ParseFloat(begin);
    if (count > kMostDigits) return std::nullopt;
    int64_t number = 0;
    std::from_chars(begin, at_, number);
    return Value(number);
  }

  // JSON wants digits after '.' and after the exponent; from_chars does without.
  std::optional<Value> ParseFloat(const char* begin) {
    const auto digits = [this] {
      const char* const first = at_;
      while (at_ != end_ && IsDigit(*at_)) ++at_;
      return at_ != first;
    };
    if (*at_ == '.') {
      ++at_;
      if (!digits()) return std::nullopt;
    }
    if (at_ != end_ && (*at_ == 'e' || *at_ == 'E')) {
      ++at_;
      if (at_ != end_ && (*at_ == '+' || *at_ == '-')) ++at_;
      if (!digits()) return std::nullopt;
    }
    double number = 0;
    if (std::from_chars(begin, at_, number).ec != std::errc()) return std::nullopt;
    return Value(number);
  }

  const char* at_;
  const char* const end_;
  const int max_depth_;
};

}  // namespace

std::optional<Value> ParsePlainJson(std::string_view text, int max_depth) {
  return Parser(text, max_depth).Parse();
}

}  // namespace aisp
