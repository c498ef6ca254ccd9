// Filters on text and numbers, and on any value.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "common/strings.h"
#include "text/jinja_filters.h"
#include "text/jinja_strings.h"
#include "text/normalizer.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace aisp::jinja {
namespace {

template <std::string (*kMap)(std::string_view)>
Result<Value> MapText(Interpreter& in, const Value& v, const Args&) {
  AISP_ASSIGN_OR_RETURN(const std::string s, in.Str(v));
  return Value(kMap(s));
}

// jinja2's own title: words start after white space, hyphens and opening brackets.
std::string TitleWords(std::string_view s) {
  std::string out;
  bool start = true;
  for (size_t i = 0; i < s.size();) {
    const size_t begin = i;
    const char32_t c = DecodeUtf8(s, &i);
    const std::string_view one = s.substr(begin, i - begin);
    out += start ? Upper(one) : Lower(one);
    start = IsWhitespace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  }
  return out;
}

std::string UrlEncode(std::string_view s) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : s) {
    const auto b = static_cast<unsigned char>(c);
    if (std::isalnum(b) != 0 || std::string_view("_.-~/").find(c) != std::string_view::npos) {
      out.push_back(c);
    } else {
      out += {'%', kHex[b >> 4], kHex[b & 15]};
    }
  }
  return out;
}

Result<Value> Trim_(Interpreter& in, const Value& v, const Args& args) {
  AISP_ASSIGN_OR_RETURN(const std::string s, in.Str(v));
  const Value* chars = args.Find(0, "chars");
  if (chars == nullptr || chars->IsNone())
    return Value(StripChars(s, std::nullopt, StripSide::kBoth));
  AISP_ASSIGN_OR_RETURN(const std::string set, in.Str(*chars));
  return Value(StripChars(s, set, StripSide::kBoth));
}

Result<Value> ToJsonFilter(Interpreter& in, const Value& v, const Args& args) {
  AISP_ASSIGN_OR_RETURN(std::string out, in.ToJson(v, args));
  return Value(std::move(out));
}

Result<Value> Default(Interpreter& in, const Value& v, const Args& args) {
  const bool missing = v.IsUndefined() || (Flag(in, args, 1, "boolean") && !in.Truthy(v));
  if (!missing) return v;
  const Value* fallback = args.Find(0, "default_value");
  return fallback != nullptr ? *fallback : Value("");
}

Result<Value> StringFilter(Interpreter& in, const Value& v, const Args&) {
  AISP_ASSIGN_OR_RETURN(std::string s, in.Str(v));
  return Value(std::move(s));
}

Result<Value> Safe(Interpreter& in, const Value& v, const Args&) {
  AISP_ASSIGN_OR_RETURN(std::string s, in.Str(v));
  return Value::Markup(std::move(s));
}

template <bool kForce>
Result<Value> Escape(Interpreter& in, const Value& v, const Args&) {
  if (v.IsMarkup() && !kForce) return v;
  AISP_ASSIGN_OR_RETURN(const std::string s, in.Str(v));
  return Value::Markup(EscapeHtml(s));
}

Result<Value> Replace(Interpreter& in, const Value& v, const Args& args) {
  AISP_ASSIGN_OR_RETURN(const std::string s, in.Str(v));
  AISP_ASSIGN_OR_RETURN(const std::string from, Text(in, args, 0, "old", ""));
  AISP_ASSIGN_OR_RETURN(const std::string to, Text(in, args, 1, "new", ""));
  AISP_ASSIGN_OR_RETURN(const int64_t count, Integer(in, args, 2, "count", -1));
  return Replaced(in, s, from, to, count);
}

Result<Value> Indent(Interpreter& in, const Value& v, const Args& args) {
  AISP_ASSIGN_OR_RETURN(std::string s, in.Str(v));
  std::string indent(4, ' ');
  if (const Value* width = args.Find(0, "width"); width != nullptr && width->IsString()) {
    indent = width->AsString();
  } else {
    AISP_ASSIGN_OR_RETURN(const int64_t n, Integer(in, args, 0, "width", 4));
    indent.assign(static_cast<size_t>(std::clamp<int64_t>(n, 0, 1024)), ' ');
  }
  const bool first = Flag(in, args, 1, "first"), blank = Flag(in, args, 2, "blank");
  const size_t count = CountLines(s);
  AISP_RETURN_IF_ERROR(in.Charge(count * (indent.size() / kBytesPerStep + 1)));
  AISP_RETURN_IF_ERROR(in.Fits(s.size() + count * indent.size()));
  const std::vector<std::string> lines = SplitLines(s + "\n", false);
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.push_back('\n');
    if (i == 0 ? first : blank || !lines[i].empty()) out += indent;
    out += lines[i];
  }
  return Value(std::move(out));
}

Result<Value> Int(Interpreter& in, const Value& v, const Args& args) {
  const Value* given = args.Find(0, "default");
  const Value fallback = given != nullptr ? *given : Value(int64_t{0});
  AISP_ASSIGN_OR_RETURN(const int64_t base, Integer(in, args, 1, "base", 10));
  if (v.IsInt()) return v;
  if (v.IsBool()) return Value(v.AsBool() ? 1 : 0);
  double d = NAN;
  if (v.IsFloat()) d = v.AsFloat();
  if (v.IsString()) {
    AISP_RETURN_IF_ERROR(in.ChargeBytes(v.AsString().size()));
    const std::string s = StripChars(v.AsString(), std::nullopt, StripSide::kBoth);
    const std::string digits = s.starts_with('+') ? s.substr(1) : s;
    if (base == 10) {
      if (const auto parsed = ParseInt(digits)) return Value(*parsed);
      if (const auto parsed = ParseDouble(digits)) d = *parsed;
    } else if (base >= 2 && base <= 36) {
      char* end = nullptr;
      const long long parsed = std::strtoll(digits.c_str(), &end, static_cast<int>(base));
      if (!digits.empty() && *end == '\0') return Value(static_cast<int64_t>(parsed));
    }
  }
  return std::isfinite(d) && std::fabs(d) < 9e18 ? Value(static_cast<int64_t>(d)) : fallback;
}

Result<Value> Float(Interpreter& in, const Value& v, const Args& args) {
  if (v.IsFloat()) return v;
  if (v.IsInt()) return Value(static_cast<double>(v.AsInt()));
  if (v.IsBool()) return Value(v.AsBool() ? 1.0 : 0.0);
  if (v.IsString()) {
    AISP_RETURN_IF_ERROR(in.ChargeBytes(v.AsString().size()));
    const std::string s = StripChars(v.AsString(), std::nullopt, StripSide::kBoth);
    if (const auto parsed = ParseDouble(s.starts_with('+') ? s.substr(1) : s))
      return Value(*parsed);
  }
  const Value* fallback = args.Find(0, "default");
  return fallback != nullptr ? *fallback : Value(0.0);
}

Result<Value> Abs(Interpreter& in, const Value& v, const Args&) {
  if (v.IsFloat()) return Value(std::fabs(v.AsFloat()));
  if (v.IsInt() && v.AsInt() >= 0) return v;
  return in.Negate(v, "-");
}

Result<Value> Round(Interpreter& in, const Value& v, const Args& args) {
  if (!v.IsNumber()) return in.Fail("round needs a number, not " + std::string(PythonTypeName(v)));
  AISP_ASSIGN_OR_RETURN(const int64_t precision, Integer(in, args, 0, "precision", 0));
  AISP_ASSIGN_OR_RETURN(const std::string method, Text(in, args, 1, "method", "common"));
  const double d = v.IsFloat()  ? v.AsFloat()
                   : v.IsInt()  ? static_cast<double>(v.AsInt())
                   : v.AsBool() ? 1
                                : 0;
  const double scale =
      std::pow(10.0, static_cast<double>(std::clamp<int64_t>(precision, -300, 300)));
  if (method == "ceil") return Value(std::ceil(d * scale) / scale);
  if (method == "floor") return Value(std::floor(d * scale) / scale);
  if (method != "common") return in.Fail("round: method must be common, ceil or floor");
  if (precision > 15 || !std::isfinite(d * scale)) return v;
  if (precision <= 0) return Value(std::nearbyint(d * scale) / scale);
  // As Python: rounds the decimal digits, not the scaled double.
  char buffer[400];
  std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(precision), d);
  return Value(std::strtod(buffer, nullptr));
}

Result<Value> Attr(Interpreter& in, const Value& v, const Args& args) {
  AISP_ASSIGN_OR_RETURN(const std::string name, Text(in, args, 0, "name", ""));
  return in.GetAttr(v, name);
}

Result<Value> Truncate(Interpreter& in, const Value& v, const Args& args) {
  AISP_ASSIGN_OR_RETURN(const std::string s, in.Str(v));
  AISP_ASSIGN_OR_RETURN(const int64_t length, Integer(in, args, 0, "length", 255));
  AISP_ASSIGN_OR_RETURN(const std::string end, Text(in, args, 2, "end", "..."));
  AISP_ASSIGN_OR_RETURN(const int64_t leeway, Integer(in, args, 3, "leeway", 5));
  const std::u32string text = ToUtf32(s);
  const auto size = static_cast<int64_t>(text.size());
  const auto end_size = static_cast<int64_t>(CountCodePoints(end));
  if (length < end_size) return in.Fail("truncate: length is shorter than end");
  if (leeway < 0 || leeway > INT32_MAX || size <= length + leeway) return Value(s);
  std::u32string cut = text.substr(0, static_cast<size_t>(length - end_size));
  if (!Flag(in, args, 1, "killwords")) {
    const size_t space = cut.rfind(U' ');
    if (space != std::u32string::npos) cut.resize(space);
  }
  return Value(ToUtf8(cut) + end);
}

Result<Value> Center(Interpreter& in, const Value& v, const Args& args) {
  AISP_ASSIGN_OR_RETURN(const std::string s, in.Str(v));
  AISP_ASSIGN_OR_RETURN(const int64_t width, Integer(in, args, 0, "width", 80));
  AISP_RETURN_IF_ERROR(in.Fits(static_cast<uint64_t>(std::max<int64_t>(width, 0))));
  return Value(Pad(s, static_cast<size_t>(std::max<int64_t>(width, 0)), 'c', " "));
}

Result<Value> WordCount(Interpreter& in, const Value& v, const Args&) {
  AISP_ASSIGN_OR_RETURN(const std::string s, in.Str(v));
  int64_t count = 0;
  bool inside = false;
  for (size_t i = 0; i < s.size();) {
    const bool word = IsWord(DecodeUtf8(s, &i));
    count += word && !inside ? 1 : 0;
    inside = word;
  }
  return Value(count);
}

Result<Value> Format(Interpreter& in, const Value& v, const Args& args) {
  AISP_ASSIGN_OR_RETURN(const std::string format, in.Str(v));
  if (!args.named.empty()) return in.Fail("format with named arguments is not supported");
  AISP_ASSIGN_OR_RETURN(std::string out, in.PercentFormat(format, Value::Tuple(args.positional)));
  return Value(std::move(out));
}

constexpr Filter kFilters[] = {
    {"trim", Trim_},
    {"tojson", ToJsonFilter},
    {"default", Default},
    {"d", Default},
    {"string", StringFilter},
    {"safe", Safe},
    {"replace", Replace},
    {"indent", Indent},
    {"int", Int},
    {"float", Float},
    {"abs", Abs},
    {"round", Round},
    {"attr", Attr},
    {"truncate", Truncate},
    {"center", Center},
    {"wordcount", WordCount},
    {"format", Format},
    {"upper", MapText<Upper>},
    {"lower", MapText<Lower>},
    {"capitalize", MapText<Capitalize>},
    {"title", MapText<TitleWords>},
    {"escape", Escape<false>},
    {"e", Escape<false>},
    {"forceescape", Escape<true>},
    {"urlencode", MapText<UrlEncode>},
};

}  // namespace

std::span<const Filter> TextFilters() { return kFilters; }

}  // namespace aisp::jinja
