// The methods of strings, lists and dicts that templates call, and the global functions.
#include <algorithm>
#include <array>
#include <ctime>

#include "text/jinja_filters.h"
#include "text/jinja_strings.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace aisp::jinja {
namespace {

using Method = Result<Value> (*)(Interpreter&, const Value& self, const Args&);
struct Entry {
  std::string_view name;
  Method method;
};

Value ListOf(std::vector<std::string> parts) {
  Value::List items;
  items.reserve(parts.size());
  for (std::string& part : parts) items.emplace_back(std::move(part));
  return Value::GrowableList(std::move(items));
}

// A string argument; an error when it is missing or none.
Result<std::string> StringArg(Interpreter& in, const Args& args, size_t i, std::string_view name) {
  const Value* v = args.Find(i, name);
  if (v == nullptr) return in.Fail("argument '" + std::string(name) + "' is missing");
  if (v->IsUndefined()) return in.Fail(v->UndefinedMessage());
  if (!v->IsString())
    return in.Fail("argument '" + std::string(name) + "' must be str, not " +
                   std::string(PythonTypeName(*v)));
  AISP_RETURN_IF_ERROR(in.ChargeBytes(v->AsString().size()));
  return v->AsString();
}

Result<int64_t> IntArg(Interpreter& in, const Args& args, size_t i, std::string_view name,
                       int64_t absent) {
  const Value* v = args.Find(i, name);
  if (v == nullptr || v->IsNone()) return absent;
  if (v->IsBool()) return v->AsBool() ? 1 : 0;
  if (!v->IsInt())
    return in.Fail("argument '" + std::string(name) + "' must be int, not " +
                   std::string(PythonTypeName(*v)));
  return v->AsInt();
}

template <StripSide kSide>
Result<Value> StrStrip(Interpreter& in, const Value& self, const Args& args) {
  const Value* chars = args.Find(0, "chars");
  if (chars == nullptr || chars->IsNone())
    return Value(StripChars(self.AsString(), std::nullopt, kSide));
  if (!chars->IsString()) return in.Fail("strip arg must be None or str");
  AISP_RETURN_IF_ERROR(in.Charge(chars->AsString().size() / 8));
  return Value(StripChars(self.AsString(), chars->AsString(), kSide));
}

template <bool kRight>
Result<Value> StrSplit(Interpreter& in, const Value& self, const Args& args) {
  AISP_ASSIGN_OR_RETURN(const int64_t limit, IntArg(in, args, 1, "maxsplit", -1));
  const Value* separator = args.Find(0, "sep");
  if (separator == nullptr || separator->IsNone()) {
    AISP_RETURN_IF_ERROR(in.Charge(CountWords(self.AsString())));
    return in.Checked(ListOf(SplitSpaces(self.AsString(), static_cast<long>(limit), kRight)));
  }
  AISP_ASSIGN_OR_RETURN(const std::string sep, StringArg(in, args, 0, "sep"));
  if (sep.empty()) return in.Fail("empty separator");
  AISP_RETURN_IF_ERROR(in.ChargeSearch(self.AsString().size(), sep.size()));
  AISP_RETURN_IF_ERROR(in.Charge(CountText(self.AsString(), sep, static_cast<long>(limit))));
  return in.Checked(ListOf(SplitBy(self.AsString(), sep, static_cast<long>(limit), kRight)));
}

Result<Value> StrSplitLines(Interpreter& in, const Value& self, const Args& args) {
  const Value* keep = args.Find(0, "keepends");
  AISP_RETURN_IF_ERROR(in.Charge(CountLines(self.AsString())));
  return in.Checked(ListOf(SplitLines(self.AsString(), keep != nullptr && in.Truthy(*keep))));
}

template <bool kEnd>
Result<Value> StrStartsWith(Interpreter& in, const Value& self, const Args& args) {
  const Value* what = args.Find(0, "prefix");
  if (what == nullptr) return in.Fail("startswith and endswith need an argument");
  const Value::List candidates = what->IsTuple() ? what->AsList() : Value::List{*what};
  for (const Value& candidate : candidates) {
    if (candidate.IsUndefined()) return in.Fail(candidate.UndefinedMessage());
    if (!candidate.IsString())
      return in.Fail("startswith first arg must be str or a tuple of str, not " +
                     std::string(PythonTypeName(candidate)));
    AISP_RETURN_IF_ERROR(in.Charge(1 + candidate.AsString().size() / kBytesPerStep));
    const std::string& s = self.AsString();
    if (kEnd ? s.ends_with(candidate.AsString()) : s.starts_with(candidate.AsString()))
      return Value(true);
  }
  return Value(false);
}

Result<Value> StrReplace(Interpreter& in, const Value& self, const Args& args) {
  AISP_ASSIGN_OR_RETURN(const std::string from, StringArg(in, args, 0, "old"));
  AISP_ASSIGN_OR_RETURN(const std::string to, StringArg(in, args, 1, "new"));
  AISP_ASSIGN_OR_RETURN(const int64_t limit, IntArg(in, args, 2, "count", -1));
  return Replaced(in, self.AsString(), from, to, limit);
}

template <std::string (*kMap)(std::string_view)>
Result<Value> StrMap(Interpreter& in, const Value& self, const Args&) {
  return in.Checked(Value(kMap(self.AsString())));
}

template <bool kRight, bool kMustFind>
Result<Value> StrFind(Interpreter& in, const Value& self, const Args& args) {
  AISP_ASSIGN_OR_RETURN(const std::string what, StringArg(in, args, 0, "sub"));
  const std::string& s = self.AsString();
  AISP_RETURN_IF_ERROR(in.ChargeSearch(s.size(), what.size()));
  const size_t at = kRight ? FindTextFromRight(s, what) : FindText(s, what);
  if (at == std::string::npos && kMustFind) return in.Fail("substring not found");
  if (at == std::string::npos) return Value(int64_t{-1});
  return Value(static_cast<int64_t>(CountCodePoints(std::string_view(s).substr(0, at))));
}

Result<Value> StrCount(Interpreter& in, const Value& self, const Args& args) {
  AISP_ASSIGN_OR_RETURN(const std::string what, StringArg(in, args, 0, "sub"));
  AISP_RETURN_IF_ERROR(in.ChargeSearch(self.AsString().size(), what.size()));
  return Value(static_cast<int64_t>(CountText(self.AsString(), what, -1)));
}

Result<Value> StrJoin(Interpreter& in, const Value& self, const Args& args) {
  const Value* what = args.Find(0, "iterable");
  if (what == nullptr) return in.Fail("join needs an argument");
  AISP_ASSIGN_OR_RETURN(const Value::List items, in.Iterate(*what));
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].IsString())
      return in.Fail("sequence item " + std::to_string(i) + ": expected str instance, " +
                     std::string(PythonTypeName(items[i])) + " found");
    const size_t more = items[i].AsString().size() + self.AsString().size();
    AISP_RETURN_IF_ERROR(in.ChargeBytes(more));
    AISP_RETURN_IF_ERROR(in.Fits(out.size() + more));
    if (i > 0) out += self.AsString();
    out += items[i].AsString();
  }
  return Value(std::move(out));
}

// "{}", "{0}" and "{name}", without format specifications.
Result<Value> StrFormat(Interpreter& in, const Value& self, const Args& args) {
  const std::string& s = self.AsString();
  std::string out;
  size_t automatic = 0;
  for (size_t i = 0; i < s.size(); ++i) {
    if ((s[i] == '{' || s[i] == '}') && i + 1 < s.size() && s[i + 1] == s[i]) {
      out.push_back(s[i++]);
      continue;
    }
    if (s[i] == '}') return in.Fail("single '}' encountered in format string");
    if (s[i] != '{') {
      out.push_back(s[i]);
      continue;
    }
    const size_t end = s.find('}', i);
    if (end == std::string::npos) return in.Fail("expected '}' before end of string");
    const std::string name = s.substr(i + 1, end - i - 1);
    const bool number =
        name.find_first_not_of("0123456789") == std::string::npos && name.size() < 6;
    const size_t position = !number        ? SIZE_MAX
                            : name.empty() ? automatic++
                                           : static_cast<size_t>(std::stoi(name));
    const Value* v = args.Find(position, number ? "" : name);
    if (v == nullptr)
      return in.Fail("format field '{" + name + "}' has no argument or is not supported");
    AISP_ASSIGN_OR_RETURN(const std::string text, in.Str(*v));
    AISP_RETURN_IF_ERROR(in.Fits(out.size() + text.size()));
    out += text;
    i = end;
  }
  return in.Checked(Value(std::move(out)));
}

// Whether the text is not empty and all characters satisfy the test.
template <bool (*kTest)(char32_t)>
Result<Value> StrAll(Interpreter& in, const Value& self, const Args&) {
  const std::string& s = self.AsString();
  AISP_RETURN_IF_ERROR(in.ChargeBytes(s.size()));
  for (size_t i = 0; i < s.size();) {
    if (!kTest(DecodeUtf8(s, &i))) return Value(false);
  }
  return Value(!s.empty());
}
bool IsDecimal(char32_t c) { return CategoryOf(c) == Category::kNd; }
bool IsAlnum(char32_t c) { return IsLetter(c) || IsNumber(c); }

template <Category kWant, Category kOther>
Result<Value> StrCase(Interpreter& in, const Value& self, const Args&) {
  const std::string& s = self.AsString();
  AISP_RETURN_IF_ERROR(in.ChargeBytes(s.size()));
  bool seen = false;
  for (size_t i = 0; i < s.size();) {
    const Category category = CategoryOf(DecodeUtf8(s, &i));
    if (category == kOther || category == Category::kLt) return Value(false);
    seen = seen || category == kWant;
  }
  return Value(seen);
}

template <bool kSuffix>
Result<Value> StrRemove(Interpreter& in, const Value& self, const Args& args) {
  AISP_ASSIGN_OR_RETURN(const std::string what, StringArg(in, args, 0, "prefix"));
  std::string_view s = self.AsString();
  if (kSuffix ? s.ends_with(what) : s.starts_with(what)) {
    kSuffix ? s.remove_suffix(what.size()) : s.remove_prefix(what.size());
  }
  return Value(s);
}

template <char kAlign>
Result<Value> StrPad(Interpreter& in, const Value& self, const Args& args) {
  AISP_ASSIGN_OR_RETURN(const int64_t width, IntArg(in, args, 0, "width", 0));
  const Value* fill = args.Find(1, "fillchar");
  if (fill != nullptr && (!fill->IsString() || CountCodePoints(fill->AsString()) != 1)) {
    return in.Fail("the fill character must be exactly one character long");
  }
  AISP_RETURN_IF_ERROR(in.Fits(static_cast<uint64_t>(std::max<int64_t>(width, 0))));
  return in.Checked(Value(Pad(self.AsString(), static_cast<size_t>(std::max<int64_t>(width, 0)),
                              kAlign, fill != nullptr ? std::string_view(fill->AsString()) : " ")));
}

template <bool kRight>
Result<Value> StrPartition(Interpreter& in, const Value& self, const Args& args) {
  AISP_ASSIGN_OR_RETURN(const std::string sep, StringArg(in, args, 0, "sep"));
  if (sep.empty()) return in.Fail("empty separator");
  const std::string& s = self.AsString();
  AISP_RETURN_IF_ERROR(in.ChargeSearch(s.size(), sep.size()));
  const size_t at = kRight ? FindTextFromRight(s, sep) : FindText(s, sep);
  if (at == std::string::npos)
    return Value::Tuple(kRight ? Value::List{"", "", self} : Value::List{self, "", ""});
  return Value::Tuple({Value(s.substr(0, at)), Value(sep), Value(s.substr(at + sep.size()))});
}

constexpr Entry kStringMethods[] = {
    {"strip", StrStrip<StripSide::kBoth>},
    {"lstrip", StrStrip<StripSide::kLeft>},
    {"rstrip", StrStrip<StripSide::kRight>},
    {"split", StrSplit<false>},
    {"rsplit", StrSplit<true>},
    {"splitlines", StrSplitLines},
    {"startswith", StrStartsWith<false>},
    {"endswith", StrStartsWith<true>},
    {"replace", StrReplace},
    {"upper", StrMap<Upper>},
    {"lower", StrMap<Lower>},
    {"casefold", StrMap<Lower>},
    {"title", StrMap<Title>},
    {"capitalize", StrMap<Capitalize>},
    {"find", StrFind<false, false>},
    {"rfind", StrFind<true, false>},
    {"index", StrFind<false, true>},
    {"rindex", StrFind<true, true>},
    {"count", StrCount},
    {"join", StrJoin},
    {"format", StrFormat},
    {"isdigit", StrAll<IsDecimal>},
    {"isdecimal", StrAll<IsDecimal>},
    {"isnumeric", StrAll<IsNumber>},
    {"isalpha", StrAll<IsLetter>},
    {"isalnum", StrAll<IsAlnum>},
    {"isspace", StrAll<IsWhitespace>},
    {"isupper", StrCase<Category::kLu, Category::kLl>},
    {"islower", StrCase<Category::kLl, Category::kLu>},
    {"removeprefix", StrRemove<false>},
    {"removesuffix", StrRemove<true>},
    {"ljust", StrPad<'l'>},
    {"rjust", StrPad<'r'>},
    {"center", StrPad<'c'>},
    {"partition", StrPartition<false>},
    {"rpartition", StrPartition<true>},
};

// Only scalars: a list that contains itself would never be freed.
Result<Value> ListAppend(Interpreter& in, const Value& self, const Args& args) {
  const Value* what = args.Find(0, "object");
  if (what == nullptr) return in.Fail("append needs an argument");
  if (!self.IsGrowable()) return in.Fail("a template cannot append to a list that it did not make");
  if (what->depth() != 0) return in.Fail("only scalars can be appended; use list + [item]");
  AISP_RETURN_IF_ERROR(in.Charge(1));
  Value(self).GrowableItems().push_back(*what);
  return Value();
}

Result<Value> ListIndex(Interpreter& in, const Value& self, const Args& args) {
  const Value* what = args.Find(0, "value");
  if (what == nullptr) return in.Fail("index needs an argument");
  for (size_t i = 0; i < self.AsList().size(); ++i) {
    AISP_ASSIGN_OR_RETURN(const bool same, in.Equal(self.AsList()[i], *what));
    if (same) return Value(static_cast<int64_t>(i));
  }
  return in.Fail("value is not in list");
}

Result<Value> ListCount(Interpreter& in, const Value& self, const Args& args) {
  const Value* what = args.Find(0, "value");
  if (what == nullptr) return in.Fail("count needs an argument");
  int64_t count = 0;
  for (const Value& item : self.AsList()) {
    AISP_ASSIGN_OR_RETURN(const bool same, in.Equal(item, *what));
    count += same ? 1 : 0;
  }
  return Value(count);
}

Result<Value> ListCopy(Interpreter& in, const Value& self, const Args&) {
  return in.Checked(Value::GrowableList(self.AsList()));
}

constexpr Entry kListMethods[] = {
    {"append", ListAppend}, {"index", ListIndex}, {"count", ListCount}, {"copy", ListCopy}};

enum class Part { kKeys, kValues, kItems };
template <Part kPart>
Result<Value> DictParts(Interpreter& in, const Value& self, const Args&) {
  AISP_RETURN_IF_ERROR(in.ChargeKeys(self.AsMap()));
  Value::List items;
  for (const auto& [key, value] : self.AsMap()) {
    if (kPart == Part::kKeys) items.emplace_back(key);
    if (kPart == Part::kValues) items.push_back(value);
    if (kPart == Part::kItems) items.push_back(Value::Tuple({Value(key), value}));
  }
  return in.Checked(Value(std::move(items)));
}

Result<Value> DictGet(Interpreter& in, const Value& self, const Args& args) {
  const Value* key = args.Find(0, "key");
  if (key == nullptr) return in.Fail("get needs a key");
  if (key->IsString()) AISP_RETURN_IF_ERROR(in.ChargeBytes(key->AsString().size()));
  const Value* found = key->IsString() ? self.AsMap().Find(key->AsString()) : nullptr;
  if (found != nullptr) return *found;
  const Value* fallback = args.Find(1, "default");
  return fallback != nullptr ? *fallback : Value();
}

Result<Value> DictCopy(Interpreter&, const Value& self, const Args&) { return self; }

constexpr Entry kDictMethods[] = {{"keys", DictParts<Part::kKeys>},
                                  {"values", DictParts<Part::kValues>},
                                  {"items", DictParts<Part::kItems>},
                                  {"get", DictGet},
                                  {"copy", DictCopy}};

// Methods that would change a value of the caller.
constexpr std::string_view kRefused[] = {"pop",    "popitem", "update", "clear", "setdefault",
                                         "insert", "extend",  "remove", "sort",  "reverse"};

Result<Value> Range(Interpreter& in, const Args& args) {
  AISP_ASSIGN_OR_RETURN(const int64_t first, IntArg(in, args, 0, "", 0));
  int64_t start = 0, stop = first, step = 1;
  if (args.positional.size() > 1) {
    start = first;
    AISP_ASSIGN_OR_RETURN(stop, IntArg(in, args, 1, "", 0));
    AISP_ASSIGN_OR_RETURN(step, IntArg(in, args, 2, "", 1));
  }
  if (args.positional.empty() || args.positional.size() > 3)
    return in.Fail("range takes 1 to 3 arguments");
  if (step == 0) return in.Fail("range() arg 3 must not be zero");
  const __int128 distance =
      step > 0 ? static_cast<__int128>(stop) - start : static_cast<__int128>(start) - stop;
  const __int128 stride = step > 0 ? static_cast<__int128>(step) : -static_cast<__int128>(step);
  const __int128 count = distance <= 0 ? 0 : (distance - 1) / stride + 1;
  if (count > kMaxRange) return in.Fail("range too big; the limit is " + std::to_string(kMaxRange));
  AISP_RETURN_IF_ERROR(in.Charge(static_cast<uint64_t>(count)));
  Value::List items;
  for (int64_t i = 0; i < static_cast<int64_t>(count); ++i) {
    items.emplace_back(static_cast<int64_t>(start + static_cast<__int128>(i) * step));
  }
  return Value(std::move(items));
}

Result<Value> MakeNamespace(Interpreter& in, const Args& args) {
  auto ns = in.NewNamespace();
  for (const Value& v : args.positional) {
    if (!v.IsMap()) return in.Fail("namespace takes a dict and named members");
    AISP_RETURN_IF_ERROR(in.ChargeKeys(v.AsMap()));
    for (const auto& [key, value] : v.AsMap()) ns->members.Set(key, value);
  }
  for (const auto& [key, value] : args.named) ns->members.Set(key, value);
  return Value(std::static_pointer_cast<Value::Object>(ns));
}

Result<Value> Dict(Interpreter& in, const Args& args) {
  Value::Map map;
  for (const Value& v : args.positional) {
    if (!v.IsMap()) return in.Fail("dict takes a dict and named members");
    AISP_RETURN_IF_ERROR(in.ChargeKeys(v.AsMap()));
    map = v.AsMap();
  }
  for (const auto& [key, value] : args.named) map.Set(key, value);
  return in.Checked(Value(std::move(map)));
}

Result<Value> RaiseException(Interpreter& in, const Args& args) {
  if (args.positional.empty()) return in.Fail("raise_exception needs a message");
  AISP_ASSIGN_OR_RETURN(const std::string message, in.Str(args.positional[0]));
  return in.Fail(message);
}

Result<Value> StrftimeNow(Interpreter& in, const Args& args) {
  AISP_ASSIGN_OR_RETURN(const std::string format, StringArg(in, args, 0, "format"));
  if (format.empty()) return Value("");
  if (format.size() > 256) return in.Fail("strftime_now: the format is longer than 256 bytes");
  const std::time_t now = in.options().now_s;
  std::tm tm{};
  if (gmtime_r(&now, &tm) == nullptr) return in.Fail("strftime_now: the time is out of range");
  std::array<char, 8192> buffer;
  const size_t size = std::strftime(buffer.data(), buffer.size(), format.c_str(), &tm);
  return Value(std::string(buffer.data(), size));
}

// joiner(sep): returns nothing the first time, then `sep`.
Result<Value> Joiner(Interpreter& in, const Args& args) {
  Value separator(", ");
  if (const Value* given = args.Find(0, "sep")) separator = *given;
  AISP_ASSIGN_OR_RETURN(const std::string text, in.Str(separator));
  auto used = std::make_shared<bool>(false);
  auto body = [used, text = Value(text)](Interpreter&, const Args&) -> Result<Value> {
    return std::exchange(*used, true) ? text : Value("");
  };
  return Value(std::static_pointer_cast<Value::Object>(std::make_shared<Function>("joiner", body)));
}

}  // namespace

std::shared_ptr<Function> FindMethod(const Value& self, const std::string& name) {
  const auto look = [&](const auto& table) -> std::shared_ptr<Function> {
    for (const Entry& entry : table) {
      if (entry.name != name) continue;
      return std::make_shared<Function>(
          name,
          [self, method = entry.method](Interpreter& in, const Args& args) -> Result<Value> {
            if (self.IsString()) AISP_RETURN_IF_ERROR(in.ChargeBytes(self.AsString().size()));
            return method(in, self, args);
          },
          self.depth() + 1);
    }
    return nullptr;
  };
  if (self.IsString()) return look(kStringMethods);
  if (!self.IsList() && !self.IsMap()) return nullptr;
  if (auto found = self.IsList() ? look(kListMethods) : look(kDictMethods)) return found;
  const bool refused =
      std::find(std::begin(kRefused), std::end(kRefused), name) != std::end(kRefused);
  if (!refused || (self.IsMap() && self.AsMap().Find(name) != nullptr)) return nullptr;
  return std::make_shared<Function>(name, [name](Interpreter& in, const Args&) -> Result<Value> {
    return in.Fail("'" + name + "' is not allowed: a template cannot change its values in place");
  });
}

Value::Map MakeGlobals() {
  Value::Map globals;
  const auto add = [&](const char* name, Function::Body body) {
    globals.Set(name, Value(std::static_pointer_cast<Value::Object>(
                          std::make_shared<Function>(name, std::move(body)))));
  };
  add("range", Range);
  add("namespace", MakeNamespace);
  add("dict", Dict);
  add("joiner", Joiner);
  add("raise_exception", RaiseException);
  add("strftime_now", StrftimeNow);
  return globals;
}

}  // namespace aisp::jinja
