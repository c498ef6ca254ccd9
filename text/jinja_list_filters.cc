// Filters on lists, dictionaries and other iterables.
#include <algorithm>

#include "text/jinja_filters.h"
#include "text/jinja_strings.h"

namespace aisp::jinja {
namespace {

Value GeneratorOf(Value::List items) {
  return Value(
      std::static_pointer_cast<Value::Object>(std::make_shared<Generator>(std::move(items))));
}

Result<Value> LengthFilter(Interpreter& in, const Value& v, const Args&) {
  AISP_ASSIGN_OR_RETURN(const size_t n, in.Length(v));
  return Value(static_cast<int64_t>(n));
}

Result<Value> Join_(Interpreter& in, const Value& v, const Args& args) {
  AISP_ASSIGN_OR_RETURN(const std::string separator, Text(in, args, 0, "d", ""));
  const Value* attribute = args.Find(1, "attribute");
  AISP_ASSIGN_OR_RETURN(const Value::List items, in.Iterate(v));
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    Value item = items[i];
    if (attribute != nullptr) {
      AISP_ASSIGN_OR_RETURN(item, in.GetPath(item, *attribute));
    }
    AISP_ASSIGN_OR_RETURN(const std::string text, in.Str(item));
    AISP_RETURN_IF_ERROR(in.ChargeBytes(separator.size()));
    AISP_RETURN_IF_ERROR(in.Fits(out.size() + separator.size() + text.size()));
    if (i > 0) out += separator;
    out += text;
  }
  return Value(std::move(out));
}

Result<Value> ListFilter(Interpreter& in, const Value& v, const Args&) {
  AISP_ASSIGN_OR_RETURN(Value::List items, in.Iterate(v));
  return Value::GrowableList(std::move(items));
}

Result<Value> Items(Interpreter& in, const Value& v, const Args&) {
  if (v.IsUndefined()) return GeneratorOf({});
  if (!v.IsMap()) return in.Fail("Can only get item pairs from a mapping.");
  AISP_RETURN_IF_ERROR(in.ChargeKeys(v.AsMap()));
  Value::List items;
  for (const auto& [key, value] : v.AsMap()) items.push_back(Value::Tuple({Value(key), value}));
  return GeneratorOf(std::move(items));
}

// A sort key; strings are compared without case unless `case_sensitive`.
Result<Value> SortKey(Interpreter& in, const Value& v, bool case_sensitive) {
  if (!v.IsString() || case_sensitive) return v;
  AISP_RETURN_IF_ERROR(in.ChargeBytes(v.AsString().size()));
  return Value(Lower(v.AsString()));
}

// Sorts by keys from `key`; an error if keys have no order.
template <typename Key>
Result<Value::List> Sorted(Interpreter& in, Value::List items, bool reverse, const Key& key) {
  std::vector<std::pair<Value, size_t>> keyed;
  for (size_t i = 0; i < items.size(); ++i) {
    AISP_ASSIGN_OR_RETURN(Value k, key(items[i]));
    keyed.emplace_back(std::move(k), i);
  }
  // Our own merge sort stops at the first error; std::sort has undefined behaviour without an
  // order.
  std::vector<std::pair<Value, size_t>> scratch(keyed.size());
  for (size_t width = 1; width < keyed.size(); width *= 2) {
    for (size_t begin = 0; begin < keyed.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, keyed.size()),
                   end = std::min(begin + 2 * width, keyed.size());
      size_t a = begin, b = middle;
      for (size_t out = begin; out < end; ++out) {
        bool take_a = b == end;
        if (!take_a && a < middle) {
          AISP_ASSIGN_OR_RETURN(const int order, in.Order(keyed[a].first, keyed[b].first));
          take_a = reverse ? order >= 0 : order <= 0;
        }
        scratch[out] = keyed[take_a ? a++ : b++];
      }
    }
    keyed.swap(scratch);
  }
  Value::List out;
  for (const auto& entry : keyed) out.push_back(items[entry.second]);
  return out;
}

Result<Value> DictSort(Interpreter& in, const Value& v, const Args& args) {
  if (v.IsUndefined()) return in.Fail(v.UndefinedMessage());
  if (!v.IsMap()) return in.Fail("dictsort needs a dict, not " + std::string(PythonTypeName(v)));
  const bool case_sensitive = Flag(in, args, 0, "case_sensitive");
  AISP_ASSIGN_OR_RETURN(const std::string by, Text(in, args, 1, "by", "key"));
  if (by != "key" && by != "value") return in.Fail("dictsort: by must be 'key' or 'value'");
  AISP_RETURN_IF_ERROR(in.ChargeKeys(v.AsMap()));
  Value::List items;
  for (const auto& [key, value] : v.AsMap()) items.push_back(Value::Tuple({Value(key), value}));
  AISP_ASSIGN_OR_RETURN(Value::List sorted,
                        Sorted(in, std::move(items), Flag(in, args, 2, "reverse"),
                               [&](const Value& item) -> Result<Value> {
                                 return SortKey(in, item.AsList()[by == "key" ? 0 : 1],
                                                case_sensitive);
                               }));
  return Value(std::move(sorted));
}

// The key of an item for sort, unique, groupby, min and max.
Result<Value> KeyOf(Interpreter& in, const Value& item, const Value* attribute,
                    bool case_sensitive) {
  Value key = item;
  if (attribute != nullptr && !attribute->IsNone()) {
    AISP_ASSIGN_OR_RETURN(key, in.GetPath(item, *attribute));
  }
  return SortKey(in, key, case_sensitive);
}

Result<Value> Sort(Interpreter& in, const Value& v, const Args& args) {
  AISP_ASSIGN_OR_RETURN(Value::List items, in.Iterate(v));
  const bool case_sensitive = Flag(in, args, 1, "case_sensitive");
  const Value* attribute = args.Find(2, "attribute");
  AISP_ASSIGN_OR_RETURN(
      Value::List sorted,
      Sorted(in, std::move(items), Flag(in, args, 0, "reverse"),
             [&](const Value& item) { return KeyOf(in, item, attribute, case_sensitive); }));
  return Value::GrowableList(std::move(sorted));
}

Result<Value> Unique(Interpreter& in, const Value& v, const Args& args) {
  AISP_ASSIGN_OR_RETURN(const Value::List items, in.Iterate(v));
  const bool case_sensitive = Flag(in, args, 0, "case_sensitive");
  Value::List out, keys;
  for (const Value& item : items) {
    AISP_ASSIGN_OR_RETURN(Value key, KeyOf(in, item, args.Find(1, "attribute"), case_sensitive));
    bool seen = false;
    for (size_t i = 0; i < keys.size() && !seen; ++i) {
      AISP_ASSIGN_OR_RETURN(seen, in.Equal(keys[i], key));
    }
    if (seen) continue;
    keys.push_back(std::move(key));
    out.push_back(item);
  }
  return GeneratorOf(std::move(out));
}

Result<Value> GroupBy(Interpreter& in, const Value& v, const Args& args) {
  AISP_ASSIGN_OR_RETURN(Value::List items, in.Iterate(v));
  const Value* attribute = args.Find(0, "attribute");
  if (attribute == nullptr) return in.Fail("groupby needs an attribute");
  const bool case_sensitive = Flag(in, args, 2, "case_sensitive");
  const auto key_of = [&](const Value& item) { return KeyOf(in, item, attribute, case_sensitive); };
  AISP_ASSIGN_OR_RETURN(const Value::List sorted, Sorted(in, std::move(items), false, key_of));
  Value::List groups;
  for (size_t i = 0; i < sorted.size();) {
    AISP_ASSIGN_OR_RETURN(const Value key, key_of(sorted[i]));
    AISP_ASSIGN_OR_RETURN(const Value shown, in.GetPath(sorted[i], *attribute));
    Value::List group;
    for (; i < sorted.size(); ++i) {
      AISP_ASSIGN_OR_RETURN(const Value next, key_of(sorted[i]));
      AISP_ASSIGN_OR_RETURN(const bool same, in.Equal(key, next));
      if (!same) break;
      group.push_back(sorted[i]);
    }
    groups.push_back(Value::Tuple({shown, Value(std::move(group))}));
  }
  return Value(std::move(groups));
}

template <bool kMax>
Result<Value> Extreme(Interpreter& in, const Value& v, const Args& args) {
  AISP_ASSIGN_OR_RETURN(const Value::List items, in.Iterate(v));
  if (items.empty()) return Value::Undefined("No aggregated item, sequence was empty.");
  const bool case_sensitive = Flag(in, args, 0, "case_sensitive");
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    AISP_ASSIGN_OR_RETURN(const Value a,
                          KeyOf(in, items[i], args.Find(1, "attribute"), case_sensitive));
    AISP_ASSIGN_OR_RETURN(const Value b,
                          KeyOf(in, items[best], args.Find(1, "attribute"), case_sensitive));
    AISP_ASSIGN_OR_RETURN(const int order, in.Order(a, b));
    if (kMax ? order > 0 : order < 0) best = i;
  }
  return items[best];
}

Result<Value> Sum(Interpreter& in, const Value& v, const Args& args) {
  AISP_ASSIGN_OR_RETURN(const Value::List items, in.Iterate(v));
  const Value* attribute = args.Find(0, "attribute");
  Value total = args.Find(1, "start") != nullptr ? *args.Find(1, "start") : Value(int64_t{0});
  for (const Value& item : items) {
    Value value = item;
    if (attribute != nullptr && !attribute->IsNone()) {
      AISP_ASSIGN_OR_RETURN(value, in.GetPath(item, *attribute));
    }
    AISP_ASSIGN_OR_RETURN(total, in.Arithmetic("+", total, value));
  }
  return total;
}

// Arguments after the first `n`.
Args Rest(const Args& args, size_t n) {
  Args rest;
  for (size_t i = n; i < args.positional.size(); ++i) rest.positional.push_back(args.positional[i]);
  rest.named = args.named;
  return rest;
}

Result<Value> Map(Interpreter& in, const Value& v, const Args& args) {
  if (!in.Truthy(v)) return GeneratorOf({});  // none too
  AISP_ASSIGN_OR_RETURN(const Value::List items, in.Iterate(v));
  Value::List out;
  const Value* attribute = args.Find(SIZE_MAX, "attribute");
  const Value* fallback = args.Find(SIZE_MAX, "default");
  if (attribute == nullptr && (args.positional.empty() || !args.positional[0].IsString())) {
    return in.Fail("map needs the name of a filter or attribute=");
  }
  for (const Value& item : items) {
    Value mapped;
    if (attribute != nullptr) {
      AISP_ASSIGN_OR_RETURN(mapped, in.GetPath(item, *attribute));
      if (mapped.IsUndefined() && fallback != nullptr) mapped = *fallback;
    } else {
      AISP_ASSIGN_OR_RETURN(mapped,
                            in.ApplyFilter(args.positional[0].AsString(), item, Rest(args, 1)));
    }
    out.push_back(std::move(mapped));
  }
  return GeneratorOf(std::move(out));
}

// select, reject, selectattr, rejectattr: filters by a test, or by truth without one.
template <bool kAttribute, bool kKeep>
Result<Value> Select(Interpreter& in, const Value& v, const Args& args) {
  if (!in.Truthy(v)) return GeneratorOf({});  // none too
  AISP_ASSIGN_OR_RETURN(const Value::List items, in.Iterate(v));
  constexpr size_t kTest = kAttribute ? 1 : 0;
  if (args.positional.size() < kTest) return in.Fail("selectattr and rejectattr need an attribute");
  const bool has_test = args.positional.size() > kTest;
  if (has_test && !args.positional[kTest].IsString())
    return in.Fail("the name of a test must be a string");
  const Args rest = Rest(args, kTest + 1);
  Value::List out;
  for (const Value& item : items) {
    Value subject = item;
    if (kAttribute) {
      AISP_ASSIGN_OR_RETURN(subject, in.GetPath(item, args.positional[0]));
    }
    bool holds = in.Truthy(subject);
    if (has_test) {
      AISP_ASSIGN_OR_RETURN(holds, in.ApplyTest(args.positional[kTest].AsString(), subject, rest));
    }
    if (holds == kKeep) out.push_back(item);
  }
  return GeneratorOf(std::move(out));
}

template <bool kLast>
Result<Value> End(Interpreter& in, const Value& v, const Args&) {
  if (kLast && v.IsObject())
    return in.Fail("'" + std::string(PythonTypeName(v)) + "' object is not reversible");
  AISP_ASSIGN_OR_RETURN(const Value::List items, in.Iterate(v));
  if (items.empty()) return Value::Undefined("No item, sequence was empty.");
  return kLast ? items.back() : items.front();
}

Result<Value> Reverse(Interpreter& in, const Value& v, const Args&) {
  AISP_ASSIGN_OR_RETURN(Value::List items, in.Iterate(v));
  std::reverse(items.begin(), items.end());
  if (!v.IsString()) return GeneratorOf(std::move(items));
  std::string out;
  for (const Value& item : items) out += item.AsString();
  return Value(std::move(out));
}

Result<Value> Batch(Interpreter& in, const Value& v, const Args& args) {
  AISP_ASSIGN_OR_RETURN(const Value::List items, in.Iterate(v));
  AISP_ASSIGN_OR_RETURN(const int64_t size, Integer(in, args, 0, "linecount", 0));
  if (size <= 0) return in.Fail("batch needs a positive size");
  const Value* fill = args.Find(1, "fill_with");
  Value::List out;
  for (size_t i = 0; i < items.size();) {
    Value::List row;
    while (i < items.size() && row.size() < static_cast<size_t>(size)) row.push_back(items[i++]);
    if (fill != nullptr && !fill->IsNone()) {
      AISP_RETURN_IF_ERROR(in.Charge(static_cast<uint64_t>(size)));
      row.resize(static_cast<size_t>(size), *fill);
    }
    out.emplace_back(std::move(row));
  }
  return GeneratorOf(std::move(out));
}

Result<Value> SliceFilter(Interpreter& in, const Value& v, const Args& args) {
  AISP_ASSIGN_OR_RETURN(const Value::List items, in.Iterate(v));
  AISP_ASSIGN_OR_RETURN(const int64_t slices, Integer(in, args, 0, "slices", 0));
  if (slices <= 0) return in.Fail("slice needs a positive number of slices");
  AISP_RETURN_IF_ERROR(in.Charge(static_cast<uint64_t>(slices)));
  const Value* fill = args.Find(1, "fill_with");
  const size_t n = static_cast<size_t>(slices), each = items.size() / n, more = items.size() % n;
  Value::List out;
  size_t at = 0;
  for (size_t i = 0; i < n; ++i) {
    Value::List row;
    for (size_t j = 0; j < each + (i < more ? 1 : 0); ++j) row.push_back(items[at++]);
    if (fill != nullptr && !fill->IsNone() && more != 0 && i >= more) row.push_back(*fill);
    out.emplace_back(std::move(row));
  }
  return GeneratorOf(std::move(out));
}

constexpr Filter kFilters[] = {
    {"length", LengthFilter},
    {"count", LengthFilter},
    {"join", Join_},
    {"list", ListFilter},
    {"items", Items},
    {"dictsort", DictSort},
    {"sort", Sort},
    {"unique", Unique},
    {"groupby", GroupBy},
    {"min", Extreme<false>},
    {"max", Extreme<true>},
    {"sum", Sum},
    {"map", Map},
    {"select", Select<false, true>},
    {"reject", Select<false, false>},
    {"selectattr", Select<true, true>},
    {"rejectattr", Select<true, false>},
    {"first", End<false>},
    {"last", End<true>},
    {"reverse", Reverse},
    {"batch", Batch},
    {"slice", SliceFilter},
};

}  // namespace

std::span<const Filter> ListFilters() { return kFilters; }

}  // namespace aisp::jinja
