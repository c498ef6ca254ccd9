#include "constrain/json_machine.h"

#include <algorithm>

namespace aisp {
namespace {

constexpr std::string_view kWords[] = {"true", "false", "null"};

bool IsSpace(uint8_t byte) { return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r'; }

template <typename T>
const T* Store(const std::vector<T>& values, Arena* arena) {
  T* out = arena->New<T>(std::max<size_t>(values.size(), 1));
  for (size_t i = 0; i < values.size(); ++i) out[i] = values[i];
  return out;
}

std::string_view Stored(const TextChain* chain, Arena* arena) {
  if (chain == nullptr) return {};
  char* stored = arena->New<char>(chain->length);
  const std::string_view out(stored, chain->length);
  for (; chain != nullptr; chain = chain->before) stored[chain->length - 1] = chain->last;
  return out;
}

size_t Words(const ObjectShape& shape) { return (shape.names.size() + 63) / 64; }

// Whether room for all required members remains after a member with this name.
bool RoomFor(const ObjectShape& shape, const ContainerAlt& alt, uint32_t count, bool required) {
  if (shape.max == kNoLimit || required) return true;
  return static_cast<int64_t>(count) + alt.missing + 1 <= shape.max;
}

}  // namespace

std::string TextOf(const TextChain* chain) {
  std::string out(chain == nullptr ? 0 : chain->length, '\0');
  for (; chain != nullptr; chain = chain->before) out[chain->length - 1] = chain->last;
  return out;
}

JsonState JsonMachine::Start(Arena* arena) {
  Level level = {};
  level.kind = Level::Kind::kRoot;
  level.at = Level::At::kValue;
  level.num_slots = 1;
  level.slots = arena->Copy(Slot{g_.root, 0, 0, -1});
  return {arena->Copy(level), nullptr, 0};
}

bool JsonMachine::IsWholeWith(const JsonState& state, JsonState* end) {
  if (state.scalar == nullptr) return state.top->at == Level::At::kEnd;
  // A number at the root ends with the text.
  if (state.scalar->kind != Scalar::Kind::kNumber || state.top->kind != Level::Kind::kRoot)
    return false;
  Arena arena;
  return EndNumber(state, &arena, end);
}

bool JsonMachine::StepAny(const JsonState& from, uint8_t byte, Arena* arena, JsonState* to) {
  return from.scalar != nullptr ? StepScalar(from, byte, arena, to)
                                : StepStructure(from, byte, arena, to);
}

bool JsonMachine::StepStructure(const JsonState& from, uint8_t byte, Arena* arena, JsonState* to) {
  const Level& level = *from.top;
  if (IsSpace(byte)) {
    const int spaces = from.spaces + (byte == '\n' ? kNewlineSpaces : 1);
    if (whitespace_ == Whitespace::kCompact || level.at == Level::At::kEnd || spaces > kMaxSpaces) {
      return false;
    }
    *to = from;
    to->spaces = static_cast<uint16_t>(spaces);
    return true;
  }
  if (level.at == Level::At::kEnd) return false;
  if (level.at == Level::At::kValue) return StartValue(level, byte, arena, to);
  return level.kind == Level::Kind::kObject ? StepObject(from, byte, arena, to)
                                            : StepArray(from, byte, arena, to);
}

bool JsonMachine::StepObject(const JsonState& from, uint8_t byte, Arena* arena, JsonState* to) {
  const Level& level = *from.top;
  switch (level.at) {
    case Level::At::kColon: {
      if (byte != ':') return false;
      Level next = level;
      next.at = Level::At::kValue;
      *to = {arena->Copy(next), nullptr, 0};
      return true;
    }
    case Level::At::kOpen:
    case Level::At::kName:
      if (byte == '"') return StartName(level, arena, to);
      return byte == '}' && level.at == Level::At::kOpen && CloseContainer(level, arena, to);
    default:
      break;
  }
  if (byte == '}') return CloseContainer(level, arena, to);
  if (byte != ',') return false;
  Level next = level;
  next.at = Level::At::kName;
  JsonState name;
  const Arena::Mark mark = arena->mark();
  const Level* stored = arena->Copy(next);
  if (!StartName(*stored, arena, &name)) {
    arena->Reset(mark);
    return false;
  }
  *to = {stored, nullptr, 0};
  return true;
}

bool JsonMachine::StepArray(const JsonState& from, uint8_t byte, Arena* arena, JsonState* to) {
  const Level& level = *from.top;
  if (byte == ']') return CloseContainer(level, arena, to);
  Level next = level;
  if (level.at == Level::At::kOpen) {
    if (std::string_view("{[\"-0123456789tfn").find(static_cast<char>(byte)) ==
        std::string_view::npos)
      return false;
    return NextItem(level, &next, arena) && StartValue(*arena->Copy(next), byte, arena, to);
  }
  if (byte != ',' || !NextItem(level, &next, arena)) return false;
  *to = {arena->Copy(next), nullptr, 0};
  return true;
}

// The slots of the next item, from alternatives that have room for it.
bool JsonMachine::NextItem(const Level& level, Level* out, Arena* arena) {
  std::vector<Slot> slots;
  for (size_t i = 0; i < level.num_alts; ++i) {
    const ContainerAlt& alt = level.alts[i];
    const ArrayShape& shape = Array(alt);
    if (shape.max != kNoLimit && level.count >= static_cast<uint32_t>(shape.max)) continue;
    for (const ValueWay& way : shape.At(level.count)) {
      Slot slot{way.type, static_cast<uint16_t>(i), way.done, -1};
      if (!shape.rules.empty()) {
        const ContainerAlt after = Updated(level, slot, arena);
        if (after.missing < 0 || !g_.ArrayCanFinish(shape, level.count + 1, after.counts)) continue;
      }
      if (slots.size() < kMaxSlots) slots.push_back(slot);
    }
  }
  if (slots.empty()) return false;
  out->at = Level::At::kValue;
  out->num_slots = static_cast<uint16_t>(slots.size());
  out->slots = Store(slots, arena);
  return true;
}

bool JsonMachine::CloseContainer(const Level& level, Arena* arena, JsonState* to) {
  SlotSet survivors;
  bool any = false;
  for (size_t i = 0; i < level.num_alts; ++i) {
    const ContainerAlt& alt = level.alts[i];
    if (level.kind == Level::Kind::kObject) {
      const ObjectShape& shape = Object(alt);
      if (alt.missing > 0 || alt.done != shape.obligations ||
          level.count < static_cast<uint32_t>(shape.min)) {
        continue;
      }
    } else {
      const ArrayShape& shape = Array(alt);
      bool enough = level.count >= static_cast<uint32_t>(shape.min);
      for (size_t r = 0; r < shape.rules.size(); ++r)
        enough = enough && alt.counts[r] >= shape.rules[r].min;
      if (!enough) continue;
    }
    survivors.Join(alt.slots, arena);
    any = true;
  }
  if (!any) return false;
  const Level& below = *level.below;
  const ReadValue* value = nullptr;
  if (below.keeps_parts) {
    std::vector<ReadMember> members;
    for (const Part* p = level.parts; p != nullptr; p = p->before)
      members.push_back({p->name, p->value});
    std::reverse(members.begin(), members.end());
    value = MakeContainer(
        level.kind == Level::Kind::kObject ? ReadValue::Kind::kObject : ReadValue::Kind::kArray,
        std::move(members), arena);
  }
  return Complete(below, survivors, value, arena, to);
}

// The alternative after the value of `slot`. missing < 0: the value counts for a rule that is full.
ContainerAlt JsonMachine::Updated(const Level& level, const Slot& slot, Arena* arena) const {
  ContainerAlt out = level.alts[slot.alt];
  if (level.kind == Level::Kind::kArray) {
    const ArrayShape& shape = Array(out);
    for (size_t r = 0; r < shape.rules.size(); ++r) {
      if ((slot.done >> r & 1) == 0) continue;
      const ContainsRule& rule = shape.rules[r];
      const int32_t last = rule.max == kNoLimit ? rule.min : rule.max;
      if (out.counts[r] < last) {
        ++out.counts[r];
      } else if (rule.max != kNoLimit) {
        out.missing = -1;
      }
    }
    return out;
  }
  out.done |= slot.done;
  if (slot.name >= 0) {
    const ObjectShape& shape = Object(out);
    uint64_t* seen = arena->New<uint64_t>(Words(shape));
    std::copy_n(out.seen, Words(shape), seen);
    seen[slot.name / 64] |= uint64_t{1} << (slot.name % 64);
    out.seen = seen;
    if (shape.names[static_cast<size_t>(slot.name)].required) --out.missing;
  }
  return out;
}

// A value of `level` that fits `slots` has ended. `value`: set where parts are kept.
bool JsonMachine::Complete(const Level& level, SlotSet slots, const ReadValue* value, Arena* arena,
                           JsonState* to) {
  Level next = level;
  if (level.kind == Level::Kind::kRoot) {
    next.at = Level::At::kEnd;
    *to = {arena->Copy(next), nullptr, 0};
    return true;
  }
  if (level.unique && Holds(level.taken, *value)) {
    for (size_t s = 0; s < level.num_slots; ++s) {
      if (Array(level.alts[level.slots[s].alt]).unique) slots.Remove(s, arena);
    }
    if (slots.Empty()) return false;
  }
  std::vector<ContainerAlt> alts;
  for (size_t i = 0; i < level.num_slots; ++i) {
    if (!slots.Has(i)) continue;
    const ContainerAlt alt = Updated(level, level.slots[i], arena);
    auto same = std::find_if(alts.begin(), alts.end(), [&](const ContainerAlt& other) {
      if (other.shape != alt.shape || other.done != alt.done || other.missing != alt.missing ||
          other.counts != alt.counts) {
        return false;
      }
      return level.kind == Level::Kind::kArray ||
             std::equal(alt.seen, alt.seen + Words(Object(alt)), other.seen);
    });
    if (same != alts.end()) {
      same->slots.Join(alt.slots, arena);
    } else {
      alts.push_back(alt);
    }
  }
  next.at = Level::At::kAfter;
  next.num_alts = static_cast<uint16_t>(alts.size());
  next.alts = Store(alts, arena);
  next.num_slots = 0;
  ++next.count;
  if (level.keeps_parts || level.kind == Level::Kind::kObject)
    next.parts = arena->Copy(Part{level.parts, Stored(level.name, arena), value});
  if (level.unique) next.taken = With(level.taken, *value, arena);
  if (level.rivals != nullptr) next.rivals = RivalsAfter(level, *value, arena);
  next.name = nullptr;
  *to = {arena->Copy(next), nullptr, 0};
  return true;
}

bool JsonMachine::StartValue(const Level& level, uint8_t byte, Arena* arena, JsonState* to) {
  switch (byte) {
    case '{':
    case '[':
      return Open(level, byte == '{', arena, to);
    case '"':
      return StartString(level, arena, to);
    case 't':
    case 'f':
    case 'n':
      return StartWord(level, byte, arena, to);
    default:
      return (byte == '-' || (byte >= '0' && byte <= '9')) && StartNumber(level, byte, arena, to);
  }
}

bool JsonMachine::Open(const Level& level, bool object, Arena* arena, JsonState* to) {
  std::vector<ContainerAlt> alts;
  for (size_t s = 0; s < level.num_slots; ++s) {
    const JsonTypeShapes& type = g_.types[static_cast<size_t>(level.slots[s].type)];
    for (const int32_t shape : object ? type.objects : type.arrays) {
      auto same = std::find_if(alts.begin(), alts.end(),
                               [&](const ContainerAlt& a) { return a.shape == shape; });
      if (same == alts.end()) {
        if (alts.size() == kMaxSlots) continue;
        ContainerAlt alt = {};
        alt.shape = shape;
        if (object) {
          const ObjectShape& o = g_.objects[static_cast<size_t>(shape)];
          alt.missing = o.required;
          uint64_t* seen = arena->New<uint64_t>(std::max<size_t>(Words(o), 1));
          std::fill_n(seen, Words(o), 0);
          alt.seen = seen;
        }
        alts.push_back(alt);
        same = alts.end() - 1;
      }
      same->slots.Add(s, arena);
    }
  }
  if (alts.empty()) return false;
  Level next = {};
  next.below = &level;
  next.depth = static_cast<uint16_t>(level.depth + 1);
  next.kind = object ? Level::Kind::kObject : Level::Kind::kArray;
  next.few = level.few;
  for (size_t i = 0; i < alts.size() && !object; ++i) {
    next.unique = next.unique || Array(alts[i]).unique;
    next.few = next.few || Array(alts[i]).few;
  }
  next.keeps_parts = level.keeps_parts || next.unique;
  if (level.keeps_parts) {
    next.rivals =
        RivalsInside(level, object ? ReadValue::Kind::kObject : ReadValue::Kind::kArray, arena);
  }
  next.at = Level::At::kOpen;
  next.num_alts = static_cast<uint16_t>(alts.size());
  next.alts = Store(alts, arena);
  *to = {arena->Copy(next), nullptr, 0};
  return true;
}

bool JsonMachine::StartName(const Level& level, Arena* arena, JsonState* to) {
  std::vector<ScalarAlt> alts;
  for (size_t i = 0; i < level.num_alts; ++i) {
    const ContainerAlt& alt = level.alts[i];
    const ObjectShape& shape = Object(alt);
    uint64_t* allowed = arena->New<uint64_t>(std::max<size_t>(Words(shape), 1));
    std::fill_n(allowed, Words(shape), 0);
    bool any = false;
    for (size_t n = 0; n < shape.names.size(); ++n) {
      const NameSlot& name = shape.names[n];
      if (name.ways.empty() || (alt.seen[n / 64] >> (n % 64) & 1) != 0) continue;
      if (!RoomFor(shape, alt, level.count, name.required)) continue;
      if (!AnyWayFits(level, alt, name.ways, {static_cast<int32_t>(n), nullptr})) continue;
      allowed[n / 64] |= uint64_t{1} << (n % 64);
      any = true;
    }
    ScalarAlt own = {};
    own.alt = static_cast<uint16_t>(i);
    own.allowed = allowed;
    own.hi = static_cast<int32_t>(shape.names.size());
    if (any) alts.push_back(own);
    if (!RoomFor(shape, alt, level.count, false)) continue;
    for (const NameClass& c : shape.classes) {
      if (!AnyWayFits(level, alt, c.ways, {-1, &c})) continue;
      ScalarAlt other = own;
      other.name_class = &c;
      other.automaton = c.automaton;
      other.state = c.automaton->start();
      if (HasRoom(level, other, nullptr)) alts.push_back(other);
    }
  }
  if (alts.empty()) return false;
  Scalar scalar = {};
  scalar.kind = Scalar::Kind::kName;
  scalar.keeps_text = true;
  scalar.num_alts = static_cast<uint16_t>(alts.size());
  scalar.alts = Store(alts, arena);
  *to = {&level, arena->Copy(scalar), 0};
  return true;
}

bool JsonMachine::StartString(const Level& level, Arena* arena, JsonState* to) {
  std::vector<ScalarAlt> alts;
  Scalar scalar = {};
  scalar.kind = Scalar::Kind::kString;
  scalar.keeps_text = level.keeps_parts;
  for (size_t s = 0; s < level.num_slots; ++s) {
    const Slot& slot = level.slots[s];
    for (const StringShape& shape : g_.types[static_cast<size_t>(slot.type)].strings) {
      auto same = std::find_if(alts.begin(), alts.end(), [&](const ScalarAlt& a) {
        return a.automaton == shape.automaton && a.string->min == shape.min &&
               a.string->max == shape.max;
      });
      if (same == alts.end()) {
        ScalarAlt alt = {};
        alt.string = &shape;
        alt.automaton = shape.automaton;
        alt.state = shape.automaton->start();
        alts.push_back(alt);
        same = alts.end() - 1;
      }
      same->slots.Add(s, arena);
    }
  }
  if (alts.empty()) return false;
  scalar.num_alts = static_cast<uint16_t>(alts.size());
  scalar.alts = Store(alts, arena);
  *to = {&level, arena->Copy(scalar), 0};
  return true;
}

std::vector<ScalarAlt> JsonMachine::NumbersOf(const Level& level, Arena* arena) const {
  std::vector<ScalarAlt> alts;
  for (size_t s = 0; s < level.num_slots; ++s) {
    for (const NumberSpec& spec : g_.types[static_cast<size_t>(level.slots[s].type)].numbers) {
      auto same = std::find_if(alts.begin(), alts.end(), [&](const ScalarAlt& a) {
        return a.number == &spec || *a.number == spec;
      });
      if (same == alts.end()) {
        ScalarAlt alt = {};
        alt.number = &spec;
        alts.push_back(alt);
        same = alts.end() - 1;
      }
      same->slots.Add(s, arena);
    }
  }
  return alts;
}

bool JsonMachine::StartNumber(const Level& level, uint8_t byte, Arena* arena, JsonState* to) {
  const std::vector<ScalarAlt> alts = NumbersOf(level, arena);
  if (alts.empty()) return false;
  Scalar scalar = {};
  scalar.kind = Scalar::Kind::kNumber;
  scalar.syntax = NumberSyntax::kStart;
  scalar.num_alts = static_cast<uint16_t>(alts.size());
  scalar.alts = Store(alts, arena);
  const JsonState start = {&level, &scalar, 0};
  return StepNumber(start, byte, arena, to);
}

bool JsonMachine::StartWord(const Level& level, uint8_t byte, Arena* arena, JsonState* to) {
  const uint8_t word = byte == 't' ? 0 : byte == 'f' ? 1 : 2;
  ScalarAlt alt = {};
  for (size_t s = 0; s < level.num_slots; ++s) {
    const Slot& slot = level.slots[s];
    const JsonTypeShapes& type = g_.types[static_cast<size_t>(slot.type)];
    const bool fits = word == 2 ? type.null : (type.bools & (word == 0 ? 2u : 1u)) != 0;
    if (fits) alt.slots.Add(s, arena);
  }
  if (alt.slots.Empty()) return false;
  Scalar scalar = {};
  scalar.kind = Scalar::Kind::kWord;
  scalar.word = word;
  scalar.word_at = 1;
  scalar.num_alts = 1;
  scalar.alts = arena->Copy(alt);
  *to = {&level, arena->Copy(scalar), 0};
  return true;
}

bool JsonMachine::StepWord(const JsonState& from, uint8_t byte, Arena* arena, JsonState* to) {
  const std::string_view word = kWords[from.scalar->word];
  if (static_cast<char>(byte) != word[from.scalar->word_at]) return false;
  if (from.scalar->word_at + 1u == word.size()) {
    const ReadValue* value =
        from.top->keeps_parts ? MakeScalar(ReadValue::Kind::kWord, word, arena) : nullptr;
    return Complete(*from.top, from.scalar->alts[0].slots, value, arena, to);
  }
  Scalar next = *from.scalar;
  ++next.word_at;
  *to = {from.top, arena->Copy(next), 0};
  return true;
}

}  // namespace aisp
