#include "text/value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace aisp {
namespace {

// A map with at least so many entries has an index.
constexpr size_t kIndexFrom = 12;

}  // namespace

std::shared_ptr<Value::ListRep> Value::MakeList(List items) {
  auto rep = std::make_shared<ListRep>();
  rep->items = std::move(items);
  for (const Value& item : rep->items) rep->depth = std::max(rep->depth, item.depth() + 1);
  return rep;
}

Value::Value(List items) : v_(MakeList(std::move(items))) {}
Value::Value(Map map) : v_(std::make_shared<const Map>(std::move(map))) {}

Value Value::Undefined(std::string message) {
  Value v;
  v.v_ = UndefinedRep{std::make_shared<const std::string>(std::move(message))};
  return v;
}

Value Value::Markup(std::string s) {
  Value v;
  v.v_ = std::make_shared<const StringRep>(StringRep{std::move(s), true});
  return v;
}

Value Value::Tuple(List items) {
  auto rep = MakeList(std::move(items));
  rep->tuple = true;
  Value v;
  v.v_ = std::move(rep);
  return v;
}

Value Value::GrowableList(List items) {
  auto rep = MakeList(std::move(items));
  rep->growable = true;
  Value v;
  v.v_ = std::move(rep);
  return v;
}

uint32_t Value::depth() const {
  if (IsList()) return std::get<std::shared_ptr<ListRep>>(v_)->depth;
  if (IsMap()) return AsMap().depth();
  if (IsObject()) return AsObject()->depth();
  return 0;
}

Value::Map::Map(std::initializer_list<std::pair<std::string, Value>> entries) {
  for (const auto& [key, value] : entries) Set(key, value);
}

size_t Value::Map::IndexOf(std::string_view key) const {
  if (!index_.empty()) {
    const auto it = index_.find(key);
    return it == index_.end() ? entries_.size() : it->second;
  }
  size_t i = 0;
  while (i < entries_.size() && entries_[i].first != key) ++i;
  return i;
}

void Value::Map::Set(std::string key, Value value) {
  depth_ = std::max(depth_, value.depth() + 1);
  const size_t i = IndexOf(key);
  if (i < entries_.size()) {
    entries_[i].second = std::move(value);
    return;
  }
  entries_.emplace_back(std::move(key), std::move(value));
  if (!index_.empty()) {
    index_.emplace(entries_.back().first, i);
  } else if (entries_.size() >= kIndexFrom) {
    for (size_t j = 0; j < entries_.size(); ++j) index_.emplace(entries_[j].first, j);
  }
}

const Value* Value::Map::Find(std::string_view key) const {
  const size_t i = IndexOf(key);
  return i < entries_.size() ? &entries_[i].second : nullptr;
}

void Value::Map::Clear() {
  entries_.clear();
  index_.clear();
  depth_ = 1;
}

std::string_view PythonTypeName(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kUndefined:
      return "Undefined";
    case Value::Kind::kNone:
      return "NoneType";
    case Value::Kind::kBool:
      return "bool";
    case Value::Kind::kInt:
      return "int";
    case Value::Kind::kFloat:
      return "float";
    case Value::Kind::kString:
      return "str";
    case Value::Kind::kList:
      return value.IsTuple() ? "tuple" : "list";
    case Value::Kind::kMap:
      return "dict";
    case Value::Kind::kObject:
      return value.AsObject()->TypeName();
  }
  return "object";
}

std::string PythonFloat(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
  std::array<char, 64> buffer;
  const double magnitude = std::fabs(d);
  const bool scientific = magnitude != 0 && (magnitude < 1e-4 || magnitude >= 1e16);
  const auto format = scientific ? std::chars_format::scientific : std::chars_format::fixed;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), d, format);
  std::string s(buffer.data(), error == std::errc() ? end : buffer.data());
  if (!scientific && s.find('.') == std::string::npos) s += ".0";
  return s;
}

}  // namespace aisp
