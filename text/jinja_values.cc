// Operations on values as in Python: truth, comparison, arithmetic, subscripts.
#include <algorithm>
#include <cmath>

#include "text/jinja_interpreter.h"
#include "text/jinja_strings.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace aisp::jinja {
namespace {

// Python's slice.indices: the first index, the step and the count.
struct SliceRange {
  int64_t start, step, count;
};
SliceRange RangeOf(const Value& start, const Value& stop, int64_t step, int64_t length) {
  const auto clamp = [&](const Value& v, int64_t absent) {
    if (v.IsNone()) return absent;
    int64_t i = AsInteger(v);
    if (i < 0) i = i < -length ? -1 : i + length;
    if (step > 0) return std::clamp<int64_t>(i, 0, length);
    return std::clamp<int64_t>(i, -1, length - 1);
  };
  const int64_t from = clamp(start, step > 0 ? 0 : length - 1);
  const int64_t to = clamp(stop, step > 0 ? length : -1);
  const int64_t distance = step > 0 ? to - from : from - to;
  const int64_t stride = step > 0 ? step : -step;
  return {from, step, distance <= 0 ? 0 : (distance - 1) / stride + 1};
}

}  // namespace

bool Interpreter::Truthy(const Value& v) const {
  switch (v.kind()) {
    case Value::Kind::kUndefined:
    case Value::Kind::kNone:
      return false;
    case Value::Kind::kBool:
      return v.AsBool();
    case Value::Kind::kInt:
      return v.AsInt() != 0;
    case Value::Kind::kFloat:
      return v.AsFloat() != 0;
    case Value::Kind::kString:
      return !v.AsString().empty();
    case Value::Kind::kList:
      return !v.AsList().empty();
    case Value::Kind::kMap:
      return v.AsMap().size() != 0;
    case Value::Kind::kObject:
      return true;
  }
  return false;
}

Result<Value::List> Interpreter::Iterate(const Value& v) {
  Value::List out;
  switch (v.kind()) {
    case Value::Kind::kUndefined:
      return out;
    case Value::Kind::kList:
      out = v.AsList();
      break;
    case Value::Kind::kMap:
      AISP_RETURN_IF_ERROR(ChargeKeys(v.AsMap()));
      for (const auto& [key, value] : v.AsMap()) out.emplace_back(key);
      break;
    case Value::Kind::kString: {
      const std::string& s = v.AsString();
      AISP_RETURN_IF_ERROR(Charge(2 * s.size()));  // each character becomes a value
      for (size_t i = 0; i < s.size();) {
        const size_t begin = i;
        DecodeUtf8(s, &i);
        out.emplace_back(std::string_view(s).substr(begin, i - begin));
      }
      break;
    }
    case Value::Kind::kObject:
      if (auto* generator = dynamic_cast<Generator*>(v.AsObject().get())) {
        out.swap(generator->items);
        break;
      }
      [[fallthrough]];
    default:
      return Fail("'" + std::string(PythonTypeName(v)) + "' object is not iterable");
  }
  AISP_RETURN_IF_ERROR(Charge(out.size()));
  return out;
}

Result<size_t> Interpreter::Length(const Value& v) {
  switch (v.kind()) {
    case Value::Kind::kUndefined:
      return size_t{0};
    case Value::Kind::kString:
      AISP_RETURN_IF_ERROR(ChargeBytes(v.AsString().size()));
      return CountCodePoints(v.AsString());
    case Value::Kind::kList:
      return v.AsList().size();
    case Value::Kind::kMap:
      return v.AsMap().size();
    default:
      return Fail("object of type '" + std::string(PythonTypeName(v)) + "' has no len()");
  }
}

Result<bool> Interpreter::Equal(const Value& a, const Value& b) {
  AISP_RETURN_IF_ERROR(Charge(1));
  if (a.IsNumber() && b.IsNumber()) {
    return IsIntegral(a) && IsIntegral(b) ? AsInteger(a) == AsInteger(b)
                                          : AsDouble(a) == AsDouble(b);
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Value::Kind::kString:
      AISP_RETURN_IF_ERROR(ChargeBytes(a.AsString().size()));
      return a.AsString() == b.AsString();
    case Value::Kind::kList: {
      const auto &x = a.AsList(), &y = b.AsList();
      if (x.size() != y.size() || a.IsTuple() != b.IsTuple()) return false;
      for (size_t i = 0; i < x.size(); ++i) {
        AISP_ASSIGN_OR_RETURN(const bool same, Equal(x[i], y[i]));
        if (!same) return false;
      }
      return true;
    }
    case Value::Kind::kMap: {
      if (a.AsMap().size() != b.AsMap().size()) return false;
      for (const auto& [key, value] : a.AsMap()) {
        AISP_RETURN_IF_ERROR(ChargeBytes(key.size()));
        const Value* other = b.AsMap().Find(key);
        if (other == nullptr) return false;
        AISP_ASSIGN_OR_RETURN(const bool same, Equal(value, *other));
        if (!same) return false;
      }
      return true;
    }
    case Value::Kind::kObject:
      return a.AsObject() == b.AsObject();
    default:
      return true;  // none and undefined equal themselves
  }
}

Result<int> Interpreter::Order(const Value& a, const Value& b) {
  AISP_RETURN_IF_ERROR(Charge(1));
  if (a.IsUndefined()) return Fail(a.UndefinedMessage());
  if (b.IsUndefined()) return Fail(b.UndefinedMessage());
  if (a.IsNumber() && b.IsNumber()) {
    if (IsIntegral(a) && IsIntegral(b))
      return AsInteger(a) < AsInteger(b) ? -1 : AsInteger(a) > AsInteger(b);
    return AsDouble(a) < AsDouble(b) ? -1 : AsDouble(a) > AsDouble(b);
  }
  if (a.IsString() && b.IsString()) {
    AISP_RETURN_IF_ERROR(ChargeBytes(a.AsString().size()));
    const int order = a.AsString().compare(b.AsString());
    return order < 0 ? -1 : order > 0;
  }
  if (a.IsList() && b.IsList() && a.IsTuple() == b.IsTuple()) {
    const auto &x = a.AsList(), &y = b.AsList();
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      AISP_ASSIGN_OR_RETURN(const bool same, Equal(x[i], y[i]));
      if (!same) return Order(x[i], y[i]);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size();
  }
  return Fail("'" + std::string(PythonTypeName(a)) + "' and '" + std::string(PythonTypeName(b)) +
              "' cannot be ordered");
}

Result<bool> Interpreter::Contains(const Value& container, const Value& item) {
  if (container.IsString()) {
    if (!item.IsString()) {
      return Fail("'in <string>' requires string as left operand, not " +
                  std::string(PythonTypeName(item)));
    }
    AISP_RETURN_IF_ERROR(ChargeSearch(container.AsString().size(), item.AsString().size()));
    return FindText(container.AsString(), item.AsString()) != std::string::npos;
  }
  if (container.IsMap()) {
    if (!item.IsString()) return false;
    AISP_RETURN_IF_ERROR(ChargeBytes(item.AsString().size()));
    return container.AsMap().Find(item.AsString()) != nullptr;
  }
  if (!container.IsList() && !container.IsUndefined() && !container.IsObject()) {
    return Fail("argument of type '" + std::string(PythonTypeName(container)) +
                "' is not iterable");
  }
  AISP_ASSIGN_OR_RETURN(const Value::List items, Iterate(container));
  for (const Value& candidate : items) {
    AISP_ASSIGN_OR_RETURN(const bool same, Equal(candidate, item));
    if (same) return true;
  }
  return false;
}

Result<Value> Interpreter::Negate(const Value& v, std::string_view op) {
  if (v.IsUndefined()) return Fail(v.UndefinedMessage());
  if (v.IsFloat()) return Value(op == "-" ? -v.AsFloat() : v.AsFloat());
  if (!IsIntegral(v))
    return Fail("bad operand type for unary " + std::string(op) + ": '" +
                std::string(PythonTypeName(v)) + "'");
  if (op == "+") return Value(AsInteger(v));
  int64_t negative = 0;
  if (__builtin_sub_overflow(int64_t{0}, AsInteger(v), &negative))
    return Fail("integer out of range");
  return Value(negative);
}

namespace {

Result<Value> IntegerArithmetic(Interpreter& in, std::string_view op, int64_t x, int64_t y) {
  int64_t r = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(x, y, &r);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(x, y, &r);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(x, y, &r);
  } else if (op == "**") {
    if (y < 0) return Value(std::pow(static_cast<double>(x), static_cast<double>(y)));
    r = 1;
    // Anything but -1, 0 and 1 overflows within 64 multiplications.
    for (int64_t i = 0; i < (x >= -1 && x <= 1 ? std::min<int64_t>(y, 2 + y % 2) : y) && !overflow;
         ++i) {
      overflow = __builtin_mul_overflow(r, x, &r);
    }
  } else {
    if (y == 0) return in.Fail(op == "%" ? "integer modulo by zero" : "division by zero");
    if (op == "/") return Value(static_cast<double>(x) / static_cast<double>(y));
    if (y == -1) return op == "%" ? Value(int64_t{0}) : in.Negate(Value(x), "-");
    const bool adjust = x % y != 0 && (x < 0) != (y < 0);
    r = op == "%" ? x % y + (adjust ? y : 0) : x / y - (adjust ? 1 : 0);
  }
  if (overflow) return in.Fail("integer out of range");
  return Value(r);
}

Result<Value> FloatArithmetic(Interpreter& in, std::string_view op, double x, double y) {
  if (op == "+") return Value(x + y);
  if (op == "-") return Value(x - y);
  if (op == "*") return Value(x * y);
  if (op == "**") return Value(std::pow(x, y));
  if (y == 0) return in.Fail("float division by zero");
  if (op == "/") return Value(x / y);
  if (op == "//") return Value(std::floor(x / y));
  double r = std::fmod(x, y);
  if (r != 0 && (r < 0) != (y < 0)) r += y;
  return Value(r);
}

}  // namespace

Result<Value> Interpreter::Arithmetic(std::string_view op, const Value& a, const Value& b) {
  if (a.IsUndefined()) return Fail(a.UndefinedMessage());
  if (b.IsUndefined()) return Fail(b.UndefinedMessage());
  if (a.IsNumber() && b.IsNumber()) {
    if (IsIntegral(a) && IsIntegral(b))
      return IntegerArithmetic(*this, op, AsInteger(a), AsInteger(b));
    return FloatArithmetic(*this, op, AsDouble(a), AsDouble(b));
  }
  if (op == "%" && a.IsString()) {
    AISP_ASSIGN_OR_RETURN(std::string text, PercentFormat(a.AsString(), b));
    return Checked(Value(std::move(text)));
  }
  if (op == "+" && a.IsString() && b.IsString()) {
    AISP_RETURN_IF_ERROR(ChargeBytes(a.AsString().size() + b.AsString().size()));
    AISP_RETURN_IF_ERROR(Fits(a.AsString().size() + b.AsString().size()));
    if (a.IsMarkup() || b.IsMarkup()) {
      const auto escaped = [](const Value& v) {
        return v.IsMarkup() ? v.AsString() : EscapeHtml(v.AsString());
      };
      return Checked(Value::Markup(escaped(a) + escaped(b)));
    }
    return Value(a.AsString() + b.AsString());
  }
  if (op == "+" && a.IsList() && b.IsList() && a.IsTuple() == b.IsTuple()) {
    Value::List items = a.AsList();
    items.insert(items.end(), b.AsList().begin(), b.AsList().end());
    return Checked(a.IsTuple() ? Value::Tuple(std::move(items))
                               : Value::GrowableList(std::move(items)));
  }
  const Value& sequence = IsIntegral(a) ? b : a;
  const Value& count = IsIntegral(a) ? a : b;
  if (op == "*" && (sequence.IsString() || sequence.IsList()) && IsIntegral(count)) {
    const auto times = static_cast<uint64_t>(std::max<int64_t>(AsInteger(count), 0));
    const uint64_t size = sequence.IsString() ? sequence.AsString().size() / kBytesPerStep + 1
                                              : sequence.AsList().size();
    AISP_RETURN_IF_ERROR(Charge(
        size != 0 && times > options_.max_steps / size ? options_.max_steps + 1 : size * times));
    if (sequence.IsString()) AISP_RETURN_IF_ERROR(Fits(sequence.AsString().size() * times));
    std::string text;
    Value::List items;
    for (uint64_t i = 0; i < times && size != 0; ++i) {
      if (sequence.IsString()) {
        text += sequence.AsString();
      } else {
        items.insert(items.end(), sequence.AsList().begin(), sequence.AsList().end());
      }
    }
    return sequence.IsString() ? Value(std::move(text)) : Value::GrowableList(std::move(items));
  }
  if (op == "+" && a.IsString()) {
    return Fail("can only concatenate str (not \"" + std::string(PythonTypeName(b)) + "\") to str");
  }
  return Fail("unsupported operand type(s) for " + std::string(op) + ": '" +
              std::string(PythonTypeName(a)) + "' and '" + std::string(PythonTypeName(b)) + "'");
}

Result<Value> Interpreter::GetItem(const Value& object, const Value& key) {
  if (object.IsUndefined()) return Fail(object.UndefinedMessage());
  if (key.IsString()) AISP_RETURN_IF_ERROR(ChargeBytes(key.AsString().size()));
  if (object.IsMap() && key.IsString()) {
    if (const Value* member = object.AsMap().Find(key.AsString())) return *member;
  }
  if (key.IsString()) return GetAttr(object, key.AsString());
  if ((object.IsList() || object.IsString()) && IsIntegral(key)) {
    AISP_ASSIGN_OR_RETURN(const size_t size, Length(object));
    const auto length = static_cast<int64_t>(size);
    int64_t i = AsInteger(key);
    if (i < 0) i += length;
    if (i >= 0 && i < length && object.IsList()) return object.AsList()[static_cast<size_t>(i)];
    if (i >= 0 && i < length) return GetSlice(object, Value(i), Value(i + 1), Value());
  }
  AISP_ASSIGN_OR_RETURN(const std::string shown, Str(key));
  return Value::Undefined("'" + std::string(PythonTypeName(object)) + " object' has no element " +
                          shown.substr(0, 80));
}

Result<Value> Interpreter::GetSlice(const Value& object, const Value& start, const Value& stop,
                                    const Value& step) {
  if (object.IsUndefined()) return Fail(object.UndefinedMessage());
  for (const Value* bound : {&start, &stop, &step}) {
    if (!bound->IsNone() && !IsIntegral(*bound))
      return Fail("slice indices must be integers or None");
  }
  const int64_t stride = step.IsNone() ? 1 : AsInteger(step);
  if (stride == 0) return Fail("slice step cannot be zero");
  if (stride == INT64_MIN) return Fail("slice step out of range");
  if (!object.IsList() && !object.IsString()) {
    return Value::Undefined("'" + std::string(PythonTypeName(object)) +
                            " object' cannot be sliced");
  }
  AISP_ASSIGN_OR_RETURN(const size_t size, Length(object));
  const SliceRange range = RangeOf(start, stop, stride, static_cast<int64_t>(size));
  if (object.IsList()) {
    Value::List items;
    for (int64_t i = 0; i < range.count; ++i)
      items.push_back(object.AsList()[static_cast<size_t>(range.start + i * stride)]);
    return Checked(object.IsTuple() ? Value::Tuple(std::move(items))
                                    : Value::GrowableList(std::move(items)));
  }
  const std::string& s = object.AsString();
  AISP_RETURN_IF_ERROR(ChargeBytes(s.size() * 4));
  if (size == s.size() && stride == 1) {
    return Value(s.substr(static_cast<size_t>(range.count != 0 ? range.start : 0),
                          static_cast<size_t>(range.count)));
  }
  const std::u32string wide = ToUtf32(s);
  std::u32string out;
  for (int64_t i = 0; i < range.count; ++i)
    out.push_back(wide[static_cast<size_t>(range.start + i * stride)]);
  return Value(ToUtf8(out));
}

Result<Value> Interpreter::GetPath(const Value& object, const Value& path) {
  if (!path.IsString()) return GetItem(object, path);
  Value now = object;
  const std::string& text = path.AsString();
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('.', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    AISP_RETURN_IF_ERROR(Charge(1));
    const bool number = !part.empty() && part.size() < 10 &&
                        part.find_first_not_of("0123456789") == std::string::npos;
    AISP_ASSIGN_OR_RETURN(
        now, GetItem(now, number ? Value(static_cast<int64_t>(std::stoi(part))) : Value(part)));
    begin = end + 1;
  }
  return now;
}

}  // namespace aisp::jinja
