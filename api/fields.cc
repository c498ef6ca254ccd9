#include "api/fields.h"

#include <algorithm>
#include <cmath>

#include "api/json_value.h"
#include "common/strings.h"

namespace aisp {
namespace {

// Errors cut names that the client chose, such as keys of a map, to this length.
constexpr size_t kNameBytes = 120;

std::string Name(double d) {
  const std::string text = PythonFloat(d);
  return text.ends_with(".0") ? text.substr(0, text.size() - 2) : text;
}

std::string AtMost(size_t count, std::string_view what) {
  return "at most " + std::to_string(count) + " " + std::string(what);
}

}  // namespace

const Value* Fields::Find(std::string_view name) const {
  if (error_) return nullptr;
  const Value* value = map_->Find(name);
  if (value == nullptr || value->IsNone()) return nullptr;
  read_.push_back(value);
  return value;
}

std::vector<std::string> Fields::Unread() const {
  std::vector<std::string> out;
  for (const auto& [name, value] : *map_) {
    const bool read = std::find(read_.begin(), read_.end(), &value) != read_.end();
    if (!read && !value.IsNone()) out.push_back(name);
  }
  return out;
}

void Fields::Refuse(std::string_view name, std::string message) {
  if (error_) return;
  error_ =
      ApiError(Code::kInvalidArgument, std::move(message), prefix_ + Excerpt(name, kNameBytes));
}

void Fields::Wrong(std::string_view name, const Value& value, std::string_view what) {
  Refuse(name, prefix_ + Excerpt(name, kNameBytes) + " must be " + std::string(what) + ", but is " +
                   Describe(value));
}

void Fields::Bool(std::string_view name, bool* out) {
  const Value* value = Find(name);
  if (value == nullptr) return;
  if (!value->IsBool()) return Wrong(name, *value, "true or false");
  *out = value->AsBool();
}

void Fields::String(std::string_view name, size_t max_bytes, std::string* out) {
  const Value* value = Find(name);
  if (value == nullptr) return;
  if (!value->IsString()) return Wrong(name, *value, "a string");
  if (value->AsString().size() > max_bytes) {
    return Wrong(name, *value, "a string of " + AtMost(max_bytes, "bytes"));
  }
  *out = value->AsString();
}

void Fields::Int(std::string_view name, int64_t min, int64_t max, int64_t* out) {
  const Value* value = Find(name);
  if (value == nullptr) return;
  // JSON has only one kind of number, so 4.0 is the integer 4.
  constexpr double kExact = 9007199254740992;
  if (value->IsFloat() && std::abs(value->AsFloat()) <= kExact &&
      std::trunc(value->AsFloat()) == value->AsFloat()) {
    const auto whole = static_cast<int64_t>(value->AsFloat());
    if (whole >= min && whole <= max) {
      *out = whole;
      return;
    }
  }
  if (!value->IsInt() || value->AsInt() < min || value->AsInt() > max) {
    return Wrong(name, *value,
                 "an integer from " + std::to_string(min) + " to " + std::to_string(max));
  }
  *out = value->AsInt();
}

void Fields::Number(std::string_view name, double min, double max, bool min_excluded, double* out) {
  const Value* value = Find(name);
  if (value == nullptr) return;
  const bool number = value->IsInt() || value->IsFloat();
  const double d = value->IsInt()     ? static_cast<double>(value->AsInt())
                   : value->IsFloat() ? value->AsFloat()
                                      : 0.0;
  const bool fits = number && d <= max && (min_excluded ? d > min : d >= min);
  if (!fits) {
    return Wrong(name, *value,
                 (min_excluded ? "a number above " : "a number from ") + Name(min) +
                     (min_excluded ? " and at most " : " to ") + Name(max));
  }
  *out = d;
}

void Fields::Float(std::string_view name, double min, double max, float* out, bool min_excluded) {
  double value = *out;
  Number(name, min, max, min_excluded, &value);
  *out = static_cast<float>(value);
}

bool ReadTokenId(const Value& value, int32_t vocab_size, TokenId* out) {
  const int64_t limit = vocab_size > 0 ? vocab_size : int64_t{INT32_MAX} + 1;
  if (!value.IsInt() || value.AsInt() < 0 || value.AsInt() >= limit) return false;
  *out = static_cast<TokenId>(value.AsInt());
  return true;
}

std::string TokenIdRange(int32_t vocab_size) {
  if (vocab_size <= 0) return "a token id, not negative";
  return "a token id from 0 to " + std::to_string(vocab_size - 1);
}

void Fields::TokenIds(std::string_view name, size_t max_count, int32_t vocab_size,
                      std::vector<TokenId>* out) {
  const Value::List* list = List(name, max_count);
  if (list == nullptr) return;
  out->clear();
  out->reserve(list->size());
  for (size_t i = 0; i < list->size(); ++i) {
    TokenId id = 0;
    if (!ReadTokenId((*list)[i], vocab_size, &id)) {
      return Wrong(std::string(name) + "[" + std::to_string(i) + "]", (*list)[i],
                   TokenIdRange(vocab_size));
    }
    out->push_back(id);
  }
}

void Fields::Strings(std::string_view name, size_t max_count, size_t max_bytes,
                     std::vector<std::string>* out) {
  const Value* value = Find(name);
  if (value == nullptr) return;
  const auto good = [&](const Value& v) {
    return v.IsString() && !v.AsString().empty() && v.AsString().size() <= max_bytes;
  };
  const std::string what = "a string of 1 to " + std::to_string(max_bytes) + " bytes";
  out->clear();
  if (value->IsString()) {
    if (!good(*value)) return Wrong(name, *value, what);
    out->push_back(value->AsString());
    return;
  }
  if (!value->IsList()) return Wrong(name, *value, "a string or a list of strings");
  const Value::List* list = List(name, max_count);
  if (list == nullptr) return;
  for (size_t i = 0; i < list->size(); ++i) {
    const Value& item = (*list)[i];
    if (!good(item)) return Wrong(std::string(name) + "[" + std::to_string(i) + "]", item, what);
    out->push_back(item.AsString());
  }
}

const Value::Map* Fields::Object(std::string_view name) {
  const Value* value = Find(name);
  if (value == nullptr) return nullptr;
  if (value->IsMap()) return &value->AsMap();
  Wrong(name, *value, "an object");
  return nullptr;
}

const Value::List* Fields::List(std::string_view name, size_t max_count) {
  const Value* value = Find(name);
  if (value == nullptr) return nullptr;
  if (!value->IsList()) {
    Wrong(name, *value, "a list");
    return nullptr;
  }
  if (value->AsList().size() > max_count) {
    Wrong(name, *value, "a list of " + AtMost(max_count, "items"));
    return nullptr;
  }
  return &value->AsList();
}

}  // namespace aisp
