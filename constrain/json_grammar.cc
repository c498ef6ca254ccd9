#include "constrain/json_grammar.h"

#include <algorithm>
#include <set>

namespace aisp {

void Coverage::Add(const std::vector<ValueWay>& ways, uint64_t members, bool extra) {
  for (uint64_t i = 0; i < std::min<uint64_t>(members, kMaxRules); ++i) {
    auto next = least_;
    for (size_t done = 0; done < least_.size(); ++done) {
      if (least_[done] == kNever) continue;
      for (const ValueWay& way : ways) {
        int32_t& least = next[done | way.done];
        least = std::min(least, least_[done] + extra);
      }
    }
    if (next == least_) return;
    least_ = next;
  }
}

int32_t Coverage::LeastFor(uint8_t open) const {
  int32_t least = kNever;
  for (size_t done = 0; done < least_.size(); ++done) {
    if ((open & ~done) == 0) least = std::min(least, least_[done]);
  }
  return least;
}

bool ObjectShape::HasName(std::string_view text) const {
  const auto at = std::partition_point(names.begin(), names.end(),
                                       [&](const NameSlot& name) { return name.text < text; });
  return at != names.end() && at->text == text;
}

Automaton* JsonGrammar::AutomatonOf(TermId language) {
  auto& slot = automata[language];
  if (!slot) slot = std::make_unique<Automaton>(&languages, language);
  return slot.get();
}

bool JsonGrammar::Inhabited(const std::vector<ValueWay>& ways) const {
  return std::any_of(ways.begin(), ways.end(), [this](const ValueWay& way) {
    return types[static_cast<size_t>(way.type)].inhabited;
  });
}

std::vector<ValueWay> JsonGrammar::InhabitedWays(const std::vector<ValueWay>& ways) const {
  std::vector<ValueWay> out;
  std::copy_if(ways.begin(), ways.end(), std::back_inserter(out), [this](const ValueWay& way) {
    return types[static_cast<size_t>(way.type)].inhabited;
  });
  return out;
}

bool JsonGrammar::Inhabited(const ObjectShape& shape) const {
  uint64_t available = 0;
  bool without_end = false;
  Coverage fulfilled;
  for (const NameSlot& name : shape.names) {
    const bool possible = Inhabited(name.ways);
    if (name.required && !possible) return false;
    available += possible;
    if (shape.obligations != 0) fulfilled.Add(InhabitedWays(name.ways), 1, !name.required);
  }
  for (const NameClass& c : shape.classes) {
    if (!Inhabited(c.ways)) continue;
    uint64_t members = kMaxRules;
    if (c.infinite) {
      without_end = true;
    } else {
      members = c.automaton->Count(c.automaton->start());
      for (const NameSlot& name : shape.names) members -= c.automaton->Matches(name.text);
      available += members;
    }
    if (shape.obligations != 0) fulfilled.Add(InhabitedWays(c.ways), members, true);
  }
  const int32_t more = fulfilled.LeastFor(shape.obligations);
  if (more == Coverage::kNever) return false;
  if (shape.max != kNoLimit && std::max(shape.min, shape.required + more) > shape.max) return false;
  return without_end || available >= static_cast<uint64_t>(shape.min);
}

bool JsonGrammar::Inhabited(const ArrayShape& shape) const { return ArrayCanFinish(shape, 0, {}); }

namespace {

// Explores which (index, counts) can finish, up to the index from which all positions are alike.
class ArraySearch {
 public:
  ArraySearch(const ArrayShape& shape, const std::vector<JsonTypeShapes>& types)
      : shape_(shape), types_(types) {}

  bool CanFinish(size_t index, const RuleCounts& counts) {
    if (AtEnd(index, counts)) return true;
    if (shape_.max != kNoLimit && index >= static_cast<size_t>(shape_.max)) return false;
    const size_t clamp = std::max(shape_.prefix.size(), static_cast<size_t>(shape_.min));
    const size_t key_index = shape_.max == kNoLimit ? std::min(index, clamp) : index;
    if (!seen_.emplace(key_index, counts).second) return false;  // already visited or in progress
    if (seen_.size() > kMaxSearch) return false;
    for (const ValueWay& way : shape_.At(index)) {
      if (!types_[static_cast<size_t>(way.type)].inhabited) continue;
      RuleCounts next = counts;
      if (Add(way.done, &next) && CanFinish(key_index + 1, next)) return true;
    }
    return false;
  }

  bool Add(uint8_t done, RuleCounts* counts) const {
    for (size_t r = 0; r < shape_.rules.size(); ++r) {
      if ((done >> r & 1) == 0) continue;
      const ContainsRule& rule = shape_.rules[r];
      const int32_t last = rule.max == kNoLimit ? rule.min : rule.max;
      uint16_t& count = (*counts)[r];
      if (count < last) {
        ++count;
      } else if (rule.max != kNoLimit) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr size_t kMaxSearch = 20'000;

  bool AtEnd(size_t index, const RuleCounts& counts) const {
    if (index < static_cast<size_t>(shape_.min)) return false;
    if (shape_.max != kNoLimit && index > static_cast<size_t>(shape_.max)) return false;
    for (size_t r = 0; r < shape_.rules.size(); ++r) {
      if (counts[r] < shape_.rules[r].min) return false;
    }
    return true;
  }

  const ArrayShape& shape_;
  const std::vector<JsonTypeShapes>& types_;
  std::set<std::pair<size_t, RuleCounts>> seen_;
};

}  // namespace

bool JsonGrammar::ArrayCanFinish(const ArrayShape& shape, size_t index,
                                 const RuleCounts& counts) const {
  if (!shape.rules.empty()) return ArraySearch(shape, types).CanFinish(index, counts);
  if (shape.max != kNoLimit && (shape.max < shape.min || index > static_cast<size_t>(shape.max))) {
    return false;
  }
  const auto min = static_cast<size_t>(std::max(shape.min, 0));
  for (size_t i = index; i < std::min(min, shape.prefix.size()); ++i) {
    if (!Inhabited(shape.prefix[i])) return false;
  }
  return min <= std::max(shape.prefix.size(), index) || Inhabited(shape.rest);
}

void JsonGrammar::Drop(ObjectShape* shape) {
  auto gone = [this](const ValueWay& way) {
    return !types[static_cast<size_t>(way.type)].inhabited;
  };
  for (NameSlot& name : shape->names) std::erase_if(name.ways, gone);
  for (NameClass& c : shape->classes) std::erase_if(c.ways, gone);
  std::erase_if(shape->classes, [](const NameClass& c) { return c.ways.empty(); });
  for (const NameClass& c : shape->classes) {
    for (const ValueWay& way : c.ways) shape->endless |= c.infinite ? way.done : 0;
  }
}

void JsonGrammar::Drop(ArrayShape* shape) {
  auto gone = [this](const ValueWay& way) {
    return !types[static_cast<size_t>(way.type)].inhabited;
  };
  for (auto& ways : shape->prefix) std::erase_if(ways, gone);
  std::erase_if(shape->rest, gone);
  // No item can stand at or after the first position without a way.
  size_t room = shape->prefix.size();
  for (size_t i = 0; i < shape->prefix.size() && room == shape->prefix.size(); ++i) {
    if (shape->prefix[i].empty()) room = i;
  }
  const bool closed = room < shape->prefix.size() || shape->rest.empty();
  const auto limit = static_cast<int32_t>(room);
  if (closed && (shape->max == kNoLimit || shape->max > limit)) shape->max = limit;
}

void JsonGrammar::KeepInhabited() {
  // If unique items run out, an array may have no value, and neither may its container.
  do FindInhabited();
  while (LimitUnique());
}

void JsonGrammar::FindInhabited() {
  for (ObjectShape& shape : objects) shape.inhabited = false;
  for (ArrayShape& shape : arrays) shape.inhabited = false;
  for (JsonTypeShapes& type : types) type.inhabited = false;
  bool more = true;
  while (more) {
    more = false;
    for (ObjectShape& shape : objects) {
      if (shape.inhabited || !Inhabited(shape)) continue;
      shape.inhabited = more = true;
    }
    for (ArrayShape& shape : arrays) {
      if (shape.inhabited || !Inhabited(shape)) continue;
      shape.inhabited = more = true;
    }
    for (JsonTypeShapes& type : types) {
      if (type.inhabited) continue;
      auto live_object = [this](int32_t i) { return objects[static_cast<size_t>(i)].inhabited; };
      auto live_array = [this](int32_t i) { return arrays[static_cast<size_t>(i)].inhabited; };
      type.inhabited = type.null || type.bools != 0 || !type.numbers.empty() ||
                       !type.strings.empty() ||
                       std::any_of(type.objects.begin(), type.objects.end(), live_object) ||
                       std::any_of(type.arrays.begin(), type.arrays.end(), live_array);
      more = more || type.inhabited;
    }
  }
  for (ObjectShape& shape : objects) Drop(&shape);
  for (ArrayShape& shape : arrays) Drop(&shape);
  for (JsonTypeShapes& type : types) {
    std::erase_if(type.objects,
                  [this](int32_t i) { return !objects[static_cast<size_t>(i)].inhabited; });
    std::erase_if(type.arrays,
                  [this](int32_t i) { return !arrays[static_cast<size_t>(i)].inhabited; });
  }
}

}  // namespace aisp
