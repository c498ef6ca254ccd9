// Unique items of a JsonMachine: the item being read must still be able to differ from all earlier
// ones. While it can, all continuations are open. If only earlier items (`rivals`) remain, the
// machine accepts no byte that leads to one.
//
// The search starts from the current position: a scalar that no rival has makes the item new,
// whatever follows; an equal one leaves fewer rivals. So it follows earlier texts and is short.
#include <algorithm>
#include <optional>

#include "constrain/json_machine.h"
#include "constrain/list_texts.h"
#include "text/utf8.h"

namespace aisp {
namespace {

constexpr int kMaxTries = 2000;      // positions visited for one byte
constexpr size_t kManyTexts = 1000;  // with a length limit and an escape: not counted further

const Rivals* SetOf(const Rivals* sets, uint16_t base) {
  while (sets != nullptr && sets->base != base) sets = sets->outer;
  return sets;
}

// The rival's part at the current position.
const ReadValue* PartAt(const ReadValue& rival, const Level& level, std::string_view name) {
  if (level.kind == Level::Kind::kObject) return MemberOf(rival, name);
  return level.count < rival.count ? rival.members[level.count].value : nullptr;
}

const Rivals* AddSet(const Rivals* outer, uint16_t base, const std::vector<const ReadValue*>& all,
                     Arena* arena) {
  if (all.empty()) return outer;
  const ReadValue** values = arena->New<const ReadValue*>(all.size());
  std::copy(all.begin(), all.end(), values);
  return arena->Copy(Rivals{outer, base, static_cast<uint32_t>(all.size()), values});
}

struct Range {
  uint32_t lo = 0, hi = kMaxCodePoint;
};

// The code points that an escape may still become; nullopt outside of one.
std::optional<Range> OpenEscape(const Scalar& scalar) {
  using enum Scalar::Escape;
  const auto of_pair = [&](uint32_t lo, uint32_t hi) {
    const uint32_t base = 0x10000 + ((scalar.high - 0xD800) << 10);
    return Range{base + (std::max(lo, 0xDC00u) - 0xDC00), base + (std::min(hi, 0xDFFFu) - 0xDC00)};
  };
  const uint32_t open = 4u * (4u - scalar.digits);
  const uint32_t lo = scalar.value << open, hi = lo | ((1u << open) - 1);
  switch (scalar.escape) {
    case kNone:
      return std::nullopt;
    case kBackslash:
      return Range{};
    case kLowBackslash:
    case kLowU:
      return of_pair(0xDC00, 0xDFFF);
    case kLowHex:
      return of_pair(lo, hi);
    case kHex:
      break;
  }
  // Digits that may start a surrogate pair stand for all code points of pairs.
  const bool pair = lo <= 0xDBFF && hi >= 0xD800;
  return Range{lo, pair ? kMaxCodePoint : hi};
}

bool GoesOn(std::string_view text, std::string_view prefix, const std::optional<Range>& open) {
  if (!text.starts_with(prefix)) return false;
  if (!open) return true;
  size_t at = prefix.size();
  if (at == text.size()) return false;
  const uint32_t c = DecodeUtf8(text, &at);
  return c >= open->lo && c <= open->hi;
}

size_t PointsOf(std::string_view text) {
  size_t points = 0;
  for (const char c : text) points += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  return points;
}

bool Fits(const StringShape& shape, std::string_view text) {
  const auto points = static_cast<int32_t>(PointsOf(text));
  return points >= shape.min && (shape.max == kNoLimit || points <= shape.max) &&
         shape.automaton->Matches(text);
}

// Whether the string has infinitely many continuations.
bool IsEndless(const ScalarAlt& alt) {
  Automaton& automaton = *alt.automaton;
  if (alt.string->max != kNoLimit)
    return automaton.IsAnyText(alt.state) && alt.string->max - alt.length > 1;
  return automaton.IsAnyText(alt.state) || !automaton.Analyse() || automaton.IsInfinite(alt.state);
}

// Whether it has more than `limit` continuations.
bool HasMoreTexts(const ScalarAlt& alt, size_t limit, const std::optional<Range>& open) {
  Automaton& automaton = *alt.automaton;
  const StringShape& shape = *alt.string;
  if (open && automaton.IsAnyText(alt.state)) {
    return shape.max == kNoLimit || shape.max - alt.length > 1 || open->hi - open->lo + 1 > limit;
  }
  if (!open) {
    if (IsEndless(alt)) return true;
    // Analysed, since it is finite.
    if (shape.max == kNoLimit && shape.min <= alt.length) return automaton.Count(alt.state) > limit;
    const int32_t max = shape.max == kNoLimit ? kNoLimit : shape.max - alt.length;
    return !ListTexts(&automaton, alt.state, shape.min - alt.length, max, limit);
  }
  if (IsEndless(alt)) {
    if (shape.max != kNoLimit || !automaton.Analyse()) return true;
    const auto count = automaton.CountWithin(alt.state, open->lo, open->hi);
    return !count || *count > limit;
  }
  const int32_t max = shape.max == kNoLimit ? kNoLimit : shape.max - alt.length;
  if (max == kNoLimit && shape.min <= alt.length + 1) {
    const auto count = automaton.CountWithin(alt.state, open->lo, open->hi);
    return !count || *count > limit;
  }
  const auto texts = ListTexts(&automaton, alt.state, shape.min - alt.length, max, kManyTexts);
  if (!texts) return true;
  const auto within = std::count_if(texts->begin(), texts->end(), [&](const std::string& text) {
    return GoesOn(text, "", open);
  });
  return static_cast<size_t>(within) > limit;
}

}  // namespace

JsonMachine::Taken JsonMachine::Gather(const Level& level, uint16_t base) {
  Taken out;
  out.base = base;
  if (level.unique) {
    for (const Part* p = level.parts; p != nullptr; p = p->before) out.values.push_back(p->value);
  }
  const Rivals* set = SetOf(level.rivals, base);
  const std::string name = set == nullptr ? std::string() : TextOf(level.name);
  for (uint32_t i = 0; set != nullptr && i < set->count; ++i) {
    if (const ReadValue* part = PartAt(*set->values[i], level, name)) out.values.push_back(part);
  }
  for (const ReadValue* value : out.values) {
    if (value->kind == ReadValue::Kind::kString) out.texts.push_back(value->text);
    if (const auto whole = WholeOf(*value)) out.wholes.push_back(*whole);
  }
  std::sort(out.texts.begin(), out.texts.end());
  out.texts.erase(std::unique(out.texts.begin(), out.texts.end()), out.texts.end());
  std::sort(out.wholes.begin(), out.wholes.end());
  return out;
}

const JsonMachine::Taken& JsonMachine::TakenAt(const Level& level, uint16_t base, Taken* own) {
  if (&level != remembered_) return *own = Gather(level, base);
  for (const Taken& taken : taken_) {
    if (taken.base == base) return taken;
  }
  return taken_.emplace_back(Gather(level, base));
}

std::vector<std::string_view> JsonMachine::NamesAhead(const Level& level, uint16_t base) {
  std::vector<std::string_view> out;
  const Rivals* set = SetOf(level.rivals, base);
  for (uint32_t i = 0; set != nullptr && i < set->count; ++i) {
    const ReadValue& rival = *set->values[i];
    for (uint32_t m = 0; m < rival.count; ++m) out.push_back(rival.members[m].name);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  std::erase_if(out, [&](std::string_view name) {
    for (const Part* p = level.parts; p != nullptr; p = p->before) {
      if (p->name == name) return true;
    }
    return false;
  });
  return out;
}

const Rivals* JsonMachine::RivalsInside(const Level& level, ReadValue::Kind kind, Arena* arena) {
  const Rivals* out = nullptr;
  std::vector<const ReadValue*> kept;
  const std::string name = level.rivals != nullptr ? TextOf(level.name) : std::string();
  for (const Rivals* set = level.rivals; set != nullptr; set = set->outer) {
    kept.clear();
    for (uint32_t i = 0; i < set->count; ++i) {
      const ReadValue* part = PartAt(*set->values[i], level, name);
      if (part != nullptr && part->kind == kind) kept.push_back(part);
    }
    out = AddSet(out, set->base, kept, arena);
  }
  if (!level.unique) return out;
  kept.clear();
  for (const Part* p = level.parts; p != nullptr; p = p->before) {
    if (p->value->kind == kind) kept.push_back(p->value);
  }
  return AddSet(out, level.depth, kept, arena);
}

const Rivals* JsonMachine::RivalsAfter(const Level& level, const ReadValue& value, Arena* arena) {
  const Rivals* out = nullptr;
  const std::string name = TextOf(level.name);
  for (const Rivals* set = level.rivals; set != nullptr; set = set->outer) {
    std::vector<const ReadValue*> kept;
    for (uint32_t i = 0; i < set->count; ++i) {
      const ReadValue* part = PartAt(*set->values[i], level, name);
      if (part != nullptr && Equal(*part, value)) kept.push_back(set->values[i]);
    }
    out = AddSet(out, set->base, kept, arena);
  }
  return out;
}

std::vector<std::string_view> JsonMachine::TakenTexts(const JsonState& state) {
  const Level& level = *state.top;
  std::vector<std::string_view> out;
  if (state.scalar->kind == Scalar::Kind::kName) {
    for (const Part* p = level.parts; p != nullptr; p = p->before) out.push_back(p->name);
    for (const Rivals* set = level.rivals; set != nullptr; set = set->outer) {
      for (const std::string_view name : NamesAhead(level, set->base)) out.push_back(name);
    }
    return out;
  }
  const auto add = [&](uint16_t base) {
    Taken own;
    const Taken& taken = TakenAt(level, base, &own);
    out.insert(out.end(), taken.texts.begin(), taken.texts.end());
  };
  for (const Rivals* set = level.rivals; set != nullptr; set = set->outer) add(set->base);
  if (level.unique) add(level.depth);
  return out;
}

bool JsonMachine::CanBecomeNew(const JsonState& state, Arena* arena) {
  const Level& level = *state.top;
  const bool item = level.unique && level.parts != nullptr &&
                    (state.scalar != nullptr || level.at == Level::At::kValue);
  if (!item && level.rivals == nullptr) return true;
  const Scalar* scalar = state.scalar;
  if (scalar != nullptr && scalar->kind == Scalar::Kind::kString &&
      scalar->escape == Scalar::Escape::kNone &&
      std::any_of(scalar->alts, scalar->alts + scalar->num_alts, IsEndless))
    return true;
  tries_ = kMaxTries;
  const Arena::Mark mark = arena->mark();
  bool fresh = !item || HasFreshItem(state, level.depth, arena);
  for (const Rivals* set = level.rivals; fresh && set != nullptr; set = set->outer)
    fresh = HasFreshItem(state, set->base, arena);
  arena->Reset(mark);
  return fresh;
}

bool JsonMachine::HasFreshItem(const JsonState& state, uint16_t base, Arena* arena) {
  const Level& level = *state.top;
  if (--tries_ < 0 || level.depth < base) return true;
  if (level.depth > base && SetOf(level.rivals, base) == nullptr) return true;
  if (state.scalar != nullptr) {
    switch (state.scalar->kind) {
      case Scalar::Kind::kName:
        return HasFreshName(state, base, arena);
      case Scalar::Kind::kString:
        return HasFreshString(state, base, arena);
      case Scalar::Kind::kNumber:
        return HasFreshNumber(state, base, arena);
      case Scalar::Kind::kWord: {
        static constexpr std::string_view kWords[] = {"true", "false", "null"};
        const ReadValue* word =
            MakeScalar(ReadValue::Kind::kWord, kWords[state.scalar->word], arena);
        return IsFreshWith(level, state.scalar->alts[0].slots, *word, base, arena);
      }
    }
  }
  switch (level.at) {
    case Level::At::kColon:
    case Level::At::kValue:
      return HasFreshValue(level, base, arena);
    case Level::At::kName: {
      JsonState name;
      return StartName(level, arena, &name) && HasFreshName(name, base, arena);
    }
    default:
      return level.depth == base || HasFreshEnd(level, base, arena);
  }
}

// Whether the item is new if the current value ends as `value`.
bool JsonMachine::IsFreshWith(const Level& level, const SlotSet& slots, const ReadValue& value,
                              uint16_t base, Arena* arena) {
  JsonState next;
  return Complete(level, slots, &value, arena, &next) && HasFreshItem(next, base, arena);
}

// For an array or object that may continue or end.
bool JsonMachine::HasFreshEnd(const Level& level, uint16_t base, Arena* arena) {
  JsonState next;
  if (CloseContainer(level, arena, &next) && HasFreshItem(next, base, arena)) return true;
  if (level.kind == Level::Kind::kObject)
    return StartName(level, arena, &next) && HasFreshName(next, base, arena);
  Level item = level;
  return NextItem(level, &item, arena) && HasFreshValue(item, base, arena);
}

bool JsonMachine::HasFreshValue(const Level& level, uint16_t base, Arena* arena) {
  Taken own;
  if (TakenAt(level, base, &own).values.empty()) return true;
  Level copy = level;
  copy.at = Level::At::kValue;
  const Level& at = *arena->Copy(copy);
  JsonState next;
  if (StartString(at, arena, &next) && HasFreshString(next, base, arena)) return true;
  for (const bool object : {true, false}) {
    if (Open(at, object, arena, &next) && HasFreshItem(next, base, arena)) return true;
  }
  const std::vector<ScalarAlt> numbers = NumbersOf(at, arena);
  if (!numbers.empty()) {
    Scalar scalar = {};
    scalar.kind = Scalar::Kind::kNumber;
    scalar.syntax = NumberSyntax::kStart;
    scalar.num_alts = static_cast<uint16_t>(numbers.size());
    scalar.alts = numbers.data();
    if (HasFreshNumber({&at, &scalar, 0}, base, arena)) return true;
  }
  for (const uint8_t byte : {'t', 'f', 'n'}) {
    if (StartWord(at, byte, arena, &next) && HasFreshItem(next, base, arena)) return true;
  }
  return false;
}

bool JsonMachine::HasFreshName(const JsonState& state, uint16_t base, Arena* arena) {
  const Level& level = *state.top;
  const Scalar& scalar = *state.scalar;
  const std::vector<std::string_view> ahead = NamesAhead(level, base);
  const std::string prefix = TextOf(scalar.text);
  const auto open = OpenEscape(scalar);
  for (size_t i = 0; i < scalar.num_alts; ++i) {
    const ScalarAlt& alt = scalar.alts[i];
    const ObjectShape& shape = Object(level.alts[alt.alt]);
    if (alt.name_class == nullptr) {
      for (int32_t n = alt.lo; n < alt.hi; ++n) {
        const std::string& name = shape.names[static_cast<size_t>(n)].text;
        if ((alt.allowed[n / 64] >> (n % 64) & 1) != 0 && GoesOn(name, prefix, open) &&
            !std::binary_search(ahead.begin(), ahead.end(), name))
          return true;
      }
      continue;
    }
    Automaton& automaton = *alt.automaton;
    if (automaton.IsAnyText(alt.state) || !automaton.Analyse()) return true;
    const auto count = open ? automaton.CountWithin(alt.state, open->lo, open->hi)
                       : automaton.IsInfinite(alt.state)
                           ? std::nullopt
                           : std::optional(automaton.Count(alt.state));
    if (!count) return true;
    uint64_t known = 0;
    const auto knows = [&](std::string_view name) {
      known += GoesOn(name, prefix, open) && automaton.Matches(name);
    };
    for (const Part* p = level.parts; p != nullptr; p = p->before) knows(p->name);
    for (const NameSlot& name : shape.names) {
      bool read = false;
      for (const Part* p = level.parts; p != nullptr; p = p->before)
        read = read || p->name == name.text;
      if (!read) knows(name.text);
    }
    for (const std::string_view name : ahead) {
      if (!shape.HasName(name)) knows(name);
    }
    if (*count > known) return true;
  }
  for (const std::string_view name : ahead) {
    JsonState next;
    if (GoesOn(name, prefix, open) && ReadsOnTo(state, name, arena, &next) &&
        HasFreshItem(next, base, arena))
      return true;
  }
  return false;
}

bool JsonMachine::ReadsOnTo(const JsonState& state, std::string_view text, Arena* arena,
                            JsonState* to) {
  Scalar scalar = *state.scalar;
  scalar.escape = Scalar::Escape::kNone;
  JsonState at = {state.top, arena->Copy(scalar), 0};
  for (size_t i = scalar.text == nullptr ? 0 : scalar.text->length; i < text.size();) {
    const auto byte = static_cast<uint8_t>(text[i]);
    JsonState next;
    const bool taken = (byte & 0xC0) == 0x80
                           ? StepText(at, static_cast<uint8_t>(text[i++]), arena, &next)
                           : TakeCodePoint(at, DecodeUtf8(text, &i), arena, &next);
    if (!taken) return false;
    at = next;
  }
  return EndText(at, arena, to);
}

// Decides without comparing all earlier strings: this one is different, or has more continuations
// than there are earlier ones.
bool JsonMachine::HasManyStrings(const Level& level, const Scalar& scalar, std::string_view text,
                                 Arena* arena) {
  const ReadValue* own = nullptr;
  for (size_t i = 0; i < scalar.num_alts; ++i) {
    const ScalarAlt& alt = scalar.alts[i];
    const bool limited = alt.string->max != kNoLimit || alt.string->min > alt.length;
    if (!limited && alt.automaton->Analyse() && alt.automaton->Count(alt.state) > level.count)
      return true;
    if (!alt.automaton->Accepts(alt.state) || alt.string->min > alt.length) continue;
    if (own == nullptr) own = MakeScalar(ReadValue::Kind::kString, text, arena);
    if (!Holds(level.taken, *own)) return true;
  }
  return false;
}

bool JsonMachine::HasFreshString(const JsonState& state, uint16_t base, Arena* arena) {
  const Scalar& scalar = *state.scalar;
  const std::string prefix = TextOf(scalar.text);
  const auto open = OpenEscape(scalar);
  if (!open && state.top->depth == base && HasManyStrings(*state.top, scalar, prefix, arena))
    return true;
  Taken gathered;
  const auto& all = TakenAt(*state.top, base, &gathered).texts;
  std::vector<std::string_view> taken;
  for (auto at = std::lower_bound(all.begin(), all.end(), prefix);
       at != all.end() && at->starts_with(prefix); ++at) {
    if (GoesOn(*at, prefix, open)) taken.push_back(*at);
  }
  if (taken.empty()) return true;
  for (size_t i = 0; i < scalar.num_alts; ++i) {
    const ScalarAlt& alt = scalar.alts[i];
    const auto own = std::count_if(taken.begin(), taken.end(),
                                   [&](std::string_view text) { return Fits(*alt.string, text); });
    if (HasMoreTexts(alt, static_cast<size_t>(own), open)) return true;
  }
  // Fewer texts may be left than were used: count those used that are among them.
  for (const std::string_view text : taken) {
    JsonState next;
    if (ReadsOnTo(state, text, arena, &next) && HasFreshItem(next, base, arena)) return true;
  }
  return false;
}

}  // namespace aisp
