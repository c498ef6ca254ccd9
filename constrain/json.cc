#include "constrain/json.h"

#include "common/strings.h"
#include "text/utf8.h"

namespace aisp {
namespace {

constexpr int kMaxDepth = 200;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<Json> Parse() {
    if (!IsValidUtf8(text_)) return InvalidArgument("the text is not valid UTF-8");
    Json out;
    AISP_RETURN_IF_ERROR(Value(&out, 0));
    Space();
    if (at_ != text_.size()) return Error("text behind the value");
    return out;
  }

 private:
  tl::unexpected<aisp::Error> Error(const std::string& what) const {
    return InvalidArgument("not JSON at byte " + std::to_string(at_) + ": " + what);
  }
  void Space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
      ++at_;
    }
  }
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool Take(char c) {
    if (Peek() != c || at_ >= text_.size()) return false;
    ++at_;
    return true;
  }
  bool Word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Status Value(Json* out, int depth) {
    if (depth > kMaxDepth) return Error("more than " + std::to_string(kMaxDepth) + " levels");
    Space();
    switch (Peek()) {
      case '{':
        return Object(out, depth);
      case '[':
        return Array(out, depth);
      case '"':
        out->type = Json::Type::kString;
        return String(&out->text);
      case 't':
      case 'f':
        out->type = Json::Type::kBool;
        out->boolean = Peek() == 't';
        if (!Word(out->boolean ? "true" : "false")) return Error("unknown word");
        return {};
      case 'n':
        if (!Word("null")) return Error("unknown word");
        return {};
      default:
        return Number(out);
    }
  }

  Status Object(Json* out, int depth) {
    out->type = Json::Type::kObject;
    ++at_;
    Space();
    if (Take('}')) return {};
    while (true) {
      Space();
      if (Peek() != '"') return Error("a member's name is expected");
      auto& member = out->members.emplace_back();
      AISP_RETURN_IF_ERROR(String(&member.name));
      Space();
      if (!Take(':')) return Error("':' is expected");
      AISP_RETURN_IF_ERROR(Value(&member.value, depth + 1));
      Space();
      if (Take('}')) return {};
      if (!Take(',')) return Error("',' or '}' is expected");
    }
  }

  Status Array(Json* out, int depth) {
    out->type = Json::Type::kArray;
    ++at_;
    Space();
    if (Take(']')) return {};
    while (true) {
      AISP_RETURN_IF_ERROR(Value(&out->items.emplace_back(), depth + 1));
      Space();
      if (Take(']')) return {};
      if (!Take(',')) return Error("',' or ']' is expected");
    }
  }

  bool Digits() {
    const size_t from = at_;
    while (Peek() >= '0' && Peek() <= '9') ++at_;
    return at_ > from;
  }

  Status Number(Json* out) {
    out->type = Json::Type::kNumber;
    const size_t from = at_;
    Take('-');
    if (!Take('0') && !Digits()) return Error("a value is expected");
    if (Take('.') && !Digits()) return Error("digits are expected");
    if (Peek() == 'e' || Peek() == 'E') {
      ++at_;
      if (Peek() == '+' || Peek() == '-') ++at_;
      if (!Digits()) return Error("digits are expected");
    }
    out->text = std::string(text_.substr(from, at_ - from));
    return {};
  }

  Result<uint32_t> Hex4() {
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = Peek();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return Error("four hexadecimal digits are expected");
      value = value * 16 + static_cast<uint32_t>(digit);
      ++at_;
    }
    return value;
  }

  Status Escape(std::string* out) {
    static constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    const size_t known = kFrom.find(Peek());
    if (at_ < text_.size() && known != std::string_view::npos) {
      out->push_back(kTo[known]);
      ++at_;
      return {};
    }
    if (!Take('u')) return Error("unknown escape");
    AISP_ASSIGN_OR_RETURN(uint32_t c, Hex4());
    if (c >= 0xD800 && c < 0xDC00) {
      if (!Word("\\u")) return Error("a lone surrogate");
      AISP_ASSIGN_OR_RETURN(const uint32_t low, Hex4());
      if (low < 0xDC00 || low > 0xDFFF) return Error("a lone surrogate");
      c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    } else if (c >= 0xDC00 && c < 0xE000) {
      return Error("a lone surrogate");
    }
    AppendUtf8(c, out);
    return {};
  }

  Status String(std::string* out) {
    ++at_;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"') {
        ++at_;
        return {};
      }
      if (static_cast<unsigned char>(c) < 0x20) return Error("a control character in a string");
      ++at_;
      if (c != '\\') {
        out->push_back(c);
      } else {
        AISP_RETURN_IF_ERROR(Escape(out));
      }
    }
    return Error("a string without its end");
  }

  std::string_view text_;
  size_t at_ = 0;
};

void WriteString(std::string_view text, std::string* out) {
  static constexpr char kHex[] = "0123456789abcdef";
  out->push_back('"');
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (byte < 0x20) {
      *out += "\\u00";
      out->push_back(kHex[byte >> 4]);
      out->push_back(kHex[byte & 15]);
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

void Write(const Json& json, std::string* out) {
  switch (json.type) {
    case Json::Type::kNull:
      *out += "null";
      return;
    case Json::Type::kBool:
      *out += json.boolean ? "true" : "false";
      return;
    case Json::Type::kNumber:
      *out += json.text;
      return;
    case Json::Type::kString:
      return WriteString(json.text, out);
    case Json::Type::kArray:
      out->push_back('[');
      for (size_t i = 0; i < json.items.size(); ++i) {
        if (i > 0) out->push_back(',');
        Write(json.items[i], out);
      }
      out->push_back(']');
      return;
    case Json::Type::kObject:
      out->push_back('{');
      for (size_t i = 0; i < json.members.size(); ++i) {
        if (i > 0) out->push_back(',');
        WriteString(json.members[i].name, out);
        out->push_back(':');
        Write(json.members[i].value, out);
      }
      out->push_back('}');
      return;
  }
}

}  // namespace

const Json* Json::Find(std::string_view name) const {
  for (auto it = members.rbegin(); it != members.rend(); ++it) {
    if (it->name == name) return &it->value;
  }
  return nullptr;
}

Result<Json> ParseJson(std::string_view text) { return Parser(text).Parse(); }

std::string WriteJson(const Json& json) {
  std::string out;
  Write(json, &out);
  return out;
}

}  // namespace aisp
