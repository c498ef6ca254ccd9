// Values as text: str() and repr() as Python has them, JSON, and Python's "%" formatting.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "text/jinja_interpreter.h"
#include "text/jinja_strings.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace aisp::jinja {
namespace {

bool IsPrintable(char32_t c) {
  if (c == ' ') return true;
  const Category category = CategoryOf(c);
  return category > Category::kCs && category < Category::kZl;
}

std::string Hex(char32_t c, int digits) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4)
    out.push_back(kDigits[c >> shift & 15]);
  return out;
}

std::string ReprString(std::string_view s) {
  const char quote =
      s.find('\'') != std::string_view::npos && s.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t i = 0; i < s.size();) {
    const char32_t c = DecodeUtf8(s, &i);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out.push_back('\\');
      out.push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (IsPrintable(c)) {
      AppendUtf8(c, &out);
    } else {
      out += c < 0x100 ? "\\x" + Hex(c, 2) : c < 0x10000 ? "\\u" + Hex(c, 4) : "\\U" + Hex(c, 8);
    }
  }
  out.push_back(quote);
  return out;
}

void AppendJsonString(std::string_view s, bool ascii, std::string* out) {
  out->push_back('"');
  for (size_t i = 0; i < s.size();) {
    const char32_t c = DecodeUtf8(s, &i);
    switch (c) {
      case '"':
        *out += "\\\"";
        break;
      case '\\':
        *out += "\\\\";
        break;
      case '\n':
        *out += "\\n";
        break;
      case '\r':
        *out += "\\r";
        break;
      case '\t':
        *out += "\\t";
        break;
      case '\f':
        *out += "\\f";
        break;
      case '\b':
        *out += "\\b";
        break;
      default:
        if (c < 0x20 || (ascii && c >= 0x7F && c < 0x10000 && c != 0x7F)) {
          *out += "\\u" + Hex(c, 4);
        } else if (ascii && c >= 0x10000) {
          *out += "\\u" + Hex(0xD800 + ((c - 0x10000) >> 10), 4) + "\\u" +
                  Hex(0xDC00 + ((c - 0x10000) & 0x3FF), 4);
        } else {
          AppendUtf8(c, out);
        }
    }
  }
  out->push_back('"');
}

// json.dumps with its parameters.
class JsonWriter {
 public:
  JsonWriter(Interpreter& in, std::string* out) : in_(in), out_(*out) {}
  bool ascii = false, sort_keys = false, indented = false;
  std::string indent, item_separator = ", ", key_separator = ": ";

  Status Write(const Value& v, int level) {
    AISP_RETURN_IF_ERROR(in_.Charge(1));
    AISP_RETURN_IF_ERROR(WriteOne(v, level));
    return Pay();
  }

 private:
  // Charges the bytes written since the last call: separators and indents may be long.
  Status Pay() {
    AISP_RETURN_IF_ERROR(in_.Fits(out_.size()));
    const size_t steps = (out_.size() - paid_) / kBytesPerStep;
    paid_ += steps * kBytesPerStep;
    return in_.Charge(steps);
  }
  Status WriteOne(const Value& v, int level) {
    switch (v.kind()) {
      case Value::Kind::kNone:
        out_ += "null";
        return {};
      case Value::Kind::kBool:
        out_ += v.AsBool() ? "true" : "false";
        return {};
      case Value::Kind::kInt:
        out_ += std::to_string(v.AsInt());
        return {};
      case Value::Kind::kFloat:
        out_ += std::isnan(v.AsFloat())   ? "NaN"
                : std::isinf(v.AsFloat()) ? (v.AsFloat() > 0 ? "Infinity" : "-Infinity")
                                          : PythonFloat(v.AsFloat());
        return {};
      case Value::Kind::kString:
        AppendJsonString(v.AsString(), ascii, &out_);
        return {};
      case Value::Kind::kList:
        return WriteList(v.AsList(), level);
      case Value::Kind::kMap:
        return WriteMap(v.AsMap(), level);
      default:
        return in_.Fail("Object of type " + std::string(PythonTypeName(v)) +
                        " is not JSON serializable");
    }
  }
  Status Break(int level) {
    if (!indented) return {};
    AISP_RETURN_IF_ERROR(in_.Fits(out_.size() + static_cast<size_t>(level) * indent.size()));
    out_.push_back('\n');
    for (int i = 0; i < level; ++i) out_ += indent;
    return {};
  }
  Status WriteList(const Value::List& items, int level) {
    out_.push_back('[');
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += item_separator;
      AISP_RETURN_IF_ERROR(Break(level + 1));
      AISP_RETURN_IF_ERROR(Write(items[i], level + 1));
    }
    if (!items.empty()) AISP_RETURN_IF_ERROR(Break(level));
    out_.push_back(']');
    return {};
  }
  Status WriteMap(const Value::Map& map, int level) {
    std::vector<const std::pair<std::string, Value>*> entries;
    for (const auto& entry : map) entries.push_back(&entry);
    if (sort_keys)
      std::sort(entries.begin(), entries.end(),
                [](const auto* a, const auto* b) { return a->first < b->first; });
    out_.push_back('{');
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_ += item_separator;
      AISP_RETURN_IF_ERROR(Break(level + 1));
      AppendJsonString(entries[i]->first, ascii, &out_);
      out_ += key_separator;
      AISP_RETURN_IF_ERROR(Write(entries[i]->second, level + 1));
    }
    if (!entries.empty()) AISP_RETURN_IF_ERROR(Break(level));
    out_.push_back('}');
    return {};
  }

  Interpreter& in_;
  std::string& out_;
  size_t paid_ = 0;
};

}  // namespace

Result<std::string> Interpreter::Str(const Value& v) {
  if (v.IsString()) {
    AISP_RETURN_IF_ERROR(ChargeBytes(v.AsString().size()));
    return v.AsString();
  }
  if (v.IsUndefined()) return std::string();
  return Repr(v);
}

Result<std::string> Interpreter::Repr(const Value& v) {
  AISP_RETURN_IF_ERROR(Charge(1));
  std::string out;
  switch (v.kind()) {
    case Value::Kind::kUndefined:
      return std::string("Undefined");
    case Value::Kind::kNone:
      return std::string("None");
    case Value::Kind::kBool:
      return std::string(v.AsBool() ? "True" : "False");
    case Value::Kind::kInt:
      return std::to_string(v.AsInt());
    case Value::Kind::kFloat:
      return PythonFloat(v.AsFloat());
    case Value::Kind::kString:
      out = ReprString(v.AsString());
      break;
    case Value::Kind::kList: {
      out = v.IsTuple() ? "(" : "[";
      for (size_t i = 0; i < v.AsList().size(); ++i) {
        AISP_ASSIGN_OR_RETURN(const std::string item, Repr(v.AsList()[i]));
        AISP_RETURN_IF_ERROR(Fits(out.size() + item.size()));
        out += (i > 0 ? ", " : "") + item;
      }
      if (v.IsTuple() && v.AsList().size() == 1) out += ",";
      out += v.IsTuple() ? ")" : "]";
      break;
    }
    case Value::Kind::kMap: {
      out = "{";
      for (const auto& [key, value] : v.AsMap()) {
        AISP_ASSIGN_OR_RETURN(const std::string item, Repr(value));
        AISP_RETURN_IF_ERROR(Fits(out.size() + key.size() + item.size()));
        out += (out.size() > 1 ? ", " : "") + ReprString(key) + ": " + item;
      }
      out += "}";
      break;
    }
    case Value::Kind::kObject:
      out = "<" + std::string(v.AsObject()->TypeName()) + " object>";
      break;
  }
  AISP_RETURN_IF_ERROR(ChargeBytes(out.size()));
  return out;
}

Result<std::string> Interpreter::ToJson(const Value& value, const Args& args) {
  std::string out;
  JsonWriter writer(*this, &out);
  // transformers: tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False)
  const auto named = [&](std::string_view name) -> const Value* {
    return args.Find(SIZE_MAX, name);
  };
  if (const Value* v = named("ensure_ascii")) writer.ascii = Truthy(*v);
  if (const Value* v = named("sort_keys")) writer.sort_keys = Truthy(*v);
  const Value* indent = named("indent");
  if (indent == nullptr && !args.positional.empty() && args.positional[0].IsInt())
    indent = &args.positional[0];
  if (indent != nullptr && !indent->IsNone()) {
    writer.indented = true;
    writer.item_separator = ",";
    if (indent->IsString()) {
      writer.indent = indent->AsString();
    } else if (IsIntegral(*indent)) {
      writer.indent.assign(static_cast<size_t>(std::clamp<int64_t>(AsInteger(*indent), 0, 64)),
                           ' ');
    } else {
      return Fail("tojson: indent must be a number or a string");
    }
  }
  if (const Value* v = named("separators"); v != nullptr && !v->IsNone()) {
    if (!v->IsList() || v->AsList().size() != 2 || !v->AsList()[0].IsString() ||
        !v->AsList()[1].IsString()) {
      return Fail("tojson: separators must be two strings");
    }
    writer.item_separator = v->AsList()[0].AsString();
    writer.key_separator = v->AsList()[1].AsString();
  }
  AISP_RETURN_IF_ERROR(writer.Write(value, 0));
  return out;
}

Result<std::string> Interpreter::PercentFormat(std::string_view format, const Value& args) {
  const Value::List values = args.IsTuple() ? args.AsList() : Value::List{args};
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out.push_back(format[i]);
      continue;
    }
    std::string spec = "%";
    for (++i; i < format.size() &&
              std::string_view("0123456789.+- #").find(format[i]) != std::string_view::npos;
         ++i) {
      spec.push_back(format[i]);
    }
    if (i >= format.size()) return Fail("incomplete format");
    const char type = format[i];
    if (type == '%') {
      out.push_back('%');
      continue;
    }
    if (next >= values.size()) return Fail("not enough arguments for format string");
    AISP_RETURN_IF_ERROR(Fits(out.size()));
    const Value& v = values[next++];
    if (type == 's' || type == 'r') {
      if (spec.size() > 1) return Fail("format '" + spec + type + "' is not supported");
      AISP_ASSIGN_OR_RETURN(const std::string text, type == 's' ? Str(v) : Repr(v));
      out += text;
      continue;
    }
    const bool integer = type == 'd' || type == 'i' || type == 'x' || type == 'X' || type == 'o';
    if ((!integer && std::string_view("fFeEgG").find(type) == std::string_view::npos) ||
        spec.size() > 8) {
      return Fail("format '" + spec + type + "' is not supported");
    }
    if (!v.IsNumber())
      return Fail("%" + std::string(1, type) + " format: a number is required, not " +
                  std::string(PythonTypeName(v)));
    const double d = v.IsFloat()  ? v.AsFloat()
                     : v.IsInt()  ? static_cast<double>(v.AsInt())
                     : v.AsBool() ? 1
                                  : 0;
    if (integer && (!std::isfinite(d) || std::fabs(d) > 9e18))
      return Fail("number out of range for format");
    const int64_t n = v.IsInt() ? v.AsInt() : static_cast<int64_t>(d);
    // The specification is short, so width and precision have few digits; output beyond the buffer
    // is refused.
    char buffer[1024];
    const std::string c_format = spec + (integer ? "ll" : "") + type;
    const int size =
        integer ? std::snprintf(buffer, sizeof(buffer), c_format.c_str(), static_cast<long long>(n))
                : std::snprintf(buffer, sizeof(buffer), c_format.c_str(), d);
    if (size < 0 || static_cast<size_t>(size) >= sizeof(buffer))
      return Fail("format '" + spec + type + "' is too wide");
    out.append(buffer, static_cast<size_t>(size));
  }
  if (next < values.size()) return Fail("not all arguments converted during string formatting");
  return out;
}

}  // namespace aisp::jinja
