// Arrays of unique items in a JsonGrammar: the number of different items.
#include <algorithm>

#include "constrain/json_grammar.h"
#include "constrain/list_texts.h"
#include "constrain/read_value.h"

namespace aisp {
namespace {

constexpr size_t kManyValues = 1000;   // enumerated
constexpr size_t kMostItems = 10'000;  // of numbers; wider ranges do not run out

// The different values of a finite type.
class ValueList {
 public:
  ValueList(const JsonGrammar& grammar, size_t limit) : g_(grammar), limit_(limit) {}

  // False when there are more than `limit` or they cannot be listed.
  bool Add(TypeId id) {
    const JsonTypeShapes& type = g_.types[static_cast<size_t>(id)];
    if (type.null) values_.insert("n");
    if ((type.bools & 1) != 0) values_.insert("f");
    if ((type.bools & 2) != 0) values_.insert("t");
    for (const NumberSpec& spec : type.numbers) {
      const auto numbers = spec.Members(limit_);
      if (!numbers) return More();
      for (const Decimal& number : *numbers) values_.insert(NormalNumber(number.ToString()));
    }
    for (const StringShape& shape : type.strings) {
      Automaton& automaton = *shape.automaton;
      if (shape.max == kNoLimit &&
          (!automaton.Analyse() || automaton.IsInfinite(automaton.start())))
        return More();
      const auto texts = ListTexts(&automaton, automaton.start(), shape.min, shape.max, limit_);
      if (!texts) return More();
      for (const std::string& text : *texts) values_.insert(Quoted(text));
    }
    const auto array = [this](int32_t i) { return Add(g_.arrays[static_cast<size_t>(i)]); };
    const auto object = [this](int32_t i) { return Add(g_.objects[static_cast<size_t>(i)]); };
    return std::all_of(type.arrays.begin(), type.arrays.end(), array) &&
           std::all_of(type.objects.begin(), type.objects.end(), object) &&
           (values_.size() <= limit_ || More());
  }

  size_t size() const { return values_.size(); }
  // Whether Add stopped because there are more than `limit`.
  bool more() const { return more_; }

 private:
  bool More() {
    more_ = true;
    return false;
  }

  static std::string Quoted(const std::string& text) {
    return std::to_string(text.size()) + "\"" + text;
  }

  bool ListOf(const std::vector<ValueWay>& ways, std::set<std::string>* out) {
    ValueList inner(g_, limit_);
    for (const ValueWay& way : ways) {
      if (!inner.Add(way.type)) {
        more_ = inner.more_;
        return false;
      }
    }
    *out = std::move(inner.values_);
    return true;
  }

  // All concatenations of a text of `open` and a text of `next`.
  static std::vector<std::string> Join(const std::vector<std::string>& open,
                                       const std::string& name, const std::set<std::string>& next) {
    std::vector<std::string> out;
    for (const std::string& text : open) {
      for (const std::string& value : next) {
        out.push_back(text);
        out.back().append(name).append(value).append(",");
      }
    }
    return out;
  }

  bool Add(const ArrayShape& shape) {
    if (!shape.rules.empty() || shape.unique) return false;
    std::vector<std::string> open = {"["};
    for (size_t i = 0;; ++i) {
      if (i >= static_cast<size_t>(shape.min)) {
        for (const std::string& text : open) values_.insert(text + "]");
      }
      if (shape.max != kNoLimit && i >= static_cast<size_t>(shape.max)) return true;
      std::set<std::string> items;
      if (!ListOf(shape.At(i), &items)) return false;
      if (items.empty()) return true;
      open = Join(open, "", items);
      if (open.size() > limit_) return More();
    }
  }

  bool Add(const ObjectShape& shape) {
    if (shape.obligations != 0 || !shape.classes.empty()) return false;
    // By the number of members.
    std::vector<std::vector<std::string>> open = {{"{"}};
    for (const NameSlot& name : shape.names) {
      if (name.ways.empty()) continue;
      std::set<std::string> values;
      if (!ListOf(name.ways, &values)) return false;
      std::vector<std::vector<std::string>> next(open.size() + 1);
      size_t count = 0;
      for (size_t n = 0; n < open.size(); ++n) {
        next[n + 1] = Join(open[n], Quoted(name.text), values);
        count += next[n + 1].size();
        if (name.required) continue;
        next[n].insert(next[n].end(), open[n].begin(), open[n].end());
        count += open[n].size();
      }
      if (count > limit_ * 4) return More();
      open = std::move(next);
    }
    for (size_t n = static_cast<size_t>(shape.min); n < open.size(); ++n) {
      if (shape.max != kNoLimit && n > static_cast<size_t>(shape.max)) break;
      for (const std::string& text : open[n]) values_.insert(text + "}");
    }
    return true;
  }

  const JsonGrammar& g_;
  size_t limit_;
  bool more_ = false;
  std::set<std::string> values_;
};

enum Mark : uint8_t { kNew, kOpen, kNo, kYes };

}  // namespace

// A recursive type is infinite: each value can be nested in another.
bool JsonGrammar::IsEndless(TypeId id, std::vector<uint8_t>* marks) {
  uint8_t& mark = (*marks)[static_cast<size_t>(id)];
  if (mark != kNew) return mark != kNo;
  mark = kOpen;
  const JsonTypeShapes& type = types[static_cast<size_t>(id)];
  const auto number = [](const NumberSpec& spec) { return !spec.Members(kMostItems); };
  const auto string = [](const StringShape& shape) {
    Automaton& automaton = *shape.automaton;
    if (shape.max != kNoLimit) return automaton.IsAnyText(automaton.start()) && shape.max > 0;
    return automaton.IsAnyText(automaton.start()) || !automaton.Analyse() ||
           automaton.IsInfinite(automaton.start());
  };
  bool endless = std::any_of(type.strings.begin(), type.strings.end(), string) ||
                 std::any_of(type.numbers.begin(), type.numbers.end(), number);
  for (const int32_t i : type.objects)
    endless = endless || IsEndless(objects[static_cast<size_t>(i)], marks);
  for (const int32_t i : type.arrays)
    endless = endless || IsEndless(arrays[static_cast<size_t>(i)], marks);
  (*marks)[static_cast<size_t>(id)] = endless ? kYes : kNo;
  return endless;
}

bool JsonGrammar::IsEndless(const ArrayShape& shape, std::vector<uint8_t>* marks) {
  const auto endless = [&](const ValueWay& way) { return IsEndless(way.type, marks); };
  if (shape.max == kNoLimit && !shape.rest.empty() && !shape.unique) return true;
  const size_t places = shape.prefix.size() + 1;
  const size_t room = shape.max == kNoLimit ? places : static_cast<size_t>(shape.max);
  for (size_t i = 0; i < std::min(places, room); ++i) {
    if (std::any_of(shape.At(i).begin(), shape.At(i).end(), endless)) return true;
  }
  return false;
}

bool JsonGrammar::IsEndless(const ObjectShape& shape, std::vector<uint8_t>* marks) {
  const auto endless = [&](const ValueWay& way) { return IsEndless(way.type, marks); };
  const bool room = shape.max == kNoLimit || shape.max > shape.required;
  for (const NameSlot& name : shape.names) {
    if ((room || name.required) && std::any_of(name.ways.begin(), name.ways.end(), endless))
      return true;
  }
  return room && std::any_of(shape.classes.begin(), shape.classes.end(), [&](const NameClass& c) {
           return c.infinite || std::any_of(c.ways.begin(), c.ways.end(), endless);
         });
}

// True when some array's bound was lowered.
bool JsonGrammar::LimitUnique() {
  bool changed = false;
  std::vector<uint8_t> marks(types.size(), kNew);
  for (ArrayShape& shape : arrays) {
    if (shape.unique && shape.inhabited) changed = LimitUnique(&shape, &marks) || changed;
  }
  return changed;
}

// Unique items run out when every value was used.
bool JsonGrammar::LimitUnique(ArrayShape* shape, std::vector<uint8_t>* marks) {
  const auto endless = [&](const ValueWay& way) { return IsEndless(way.type, marks); };
  shape->few = !std::all_of(shape->rest.begin(), shape->rest.end(), endless);
  for (const auto& ways : shape->prefix)
    shape->few = shape->few || !std::all_of(ways.begin(), ways.end(), endless);
  if (shape->prefix.empty() && shape->rules.empty()) {
    if (!shape->few || shape->rest.empty()) return false;
    ValueList values(*this, kManyValues);
    if (!values.Add(shape->rest[0].type)) {
      shape->unsure = shape->min > static_cast<int32_t>(values.more() ? kManyValues : 1);
      return false;
    }
    const auto count = static_cast<int32_t>(values.size());
    if (shape->max != kNoLimit && shape->max <= count) return false;
    shape->max = count;
    return shape->min > count;
  }
  // Positions that need different values: each must have as many values as there are positions.
  int32_t places = shape->min;
  for (const ContainsRule& rule : shape->rules) places += rule.min;
  if (places <= 1) return false;
  const auto few = [&](const ValueWay& way) {
    if (endless(way)) return false;
    ValueList values(*this, static_cast<size_t>(places));
    return values.Add(way.type) ? values.size() < static_cast<size_t>(places) : !values.more();
  };
  shape->unsure = std::any_of(shape->rest.begin(), shape->rest.end(), few);
  for (const auto& ways : shape->prefix)
    shape->unsure = shape->unsure || std::any_of(ways.begin(), ways.end(), few);
  return false;
}

}  // namespace aisp
