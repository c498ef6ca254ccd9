// Strings, names and numbers of a JsonMachine.
#include <algorithm>

#include "constrain/json_machine.h"
#include "text/utf8.h"

namespace aisp {
namespace {

constexpr uint32_t kFirstHigh = 0xD800, kLastHigh = 0xDBFF, kFirstLow = 0xDC00, kLastLow = 0xDFFF;

template <typename T>
const T* Store(const std::vector<T>& values, Arena* arena) {
  T* out = arena->New<T>(std::max<size_t>(values.size(), 1));
  for (size_t i = 0; i < values.size(); ++i) out[i] = values[i];
  return out;
}

bool AnyBit(const uint64_t* bits, int32_t lo, int32_t hi) {
  for (int32_t i = lo; i < hi; ++i) {
    if ((bits[i / 64] >> (i % 64) & 1) != 0) return true;
  }
  return false;
}

int HexDigit(uint8_t byte) {
  const uint8_t lower = byte | 32;
  return byte >= '0' && byte <= '9'     ? byte - '0'
         : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10
                                        : -1;
}

const TextChain* Append(const TextChain* text, uint8_t byte, Arena* arena) {
  return arena->Copy(
      TextChain{text, text == nullptr ? 1 : text->length + 1, static_cast<char>(byte)});
}

}  // namespace

bool JsonMachine::StepScalar(const JsonState& from, uint8_t byte, Arena* arena, JsonState* to) {
  switch (from.scalar->kind) {
    case Scalar::Kind::kName:
    case Scalar::Kind::kString:
      return StepText(from, byte, arena, to);
    case Scalar::Kind::kNumber:
      return StepNumber(from, byte, arena, to);
    case Scalar::Kind::kWord:
      return StepWord(from, byte, arena, to);
  }
  return false;
}

bool JsonMachine::StepText(const JsonState& from, uint8_t byte, Arena* arena, JsonState* to) {
  const Scalar& scalar = *from.scalar;
  if (scalar.escape != Scalar::Escape::kNone) return StepEscape(from, byte, arena, to);
  if (byte == '"') return EndText(from, arena, to);
  if (byte == '\\') {
    Scalar next = scalar;
    next.escape = Scalar::Escape::kBackslash;
    return KeepAlive(from, next, 0, kMaxCodePoint, arena, to);
  }
  if (byte < 0x20) return false;
  const bool lead = (byte & 0xC0) != 0x80;
  const TextChain* text = scalar.keeps_text ? Append(scalar.text, byte, arena) : nullptr;
  ScalarAlt* alts = arena->New<ScalarAlt>(scalar.num_alts);
  uint16_t count = 0;
  for (size_t i = 0; i < scalar.num_alts; ++i) {
    alts[count] = scalar.alts[i];
    if (AltTakes(*from.top, &alts[count], text, byte, lead)) ++count;
  }
  if (count == 0) return false;
  Scalar next = scalar;
  next.text = text;
  next.num_alts = count;
  next.alts = alts;
  *to = {from.top, arena->Copy(next), 0};
  return true;
}

// `text` includes this byte.
bool JsonMachine::AltTakes(const Level& level, ScalarAlt* alt, const TextChain* text, uint8_t byte,
                           bool lead) {
  if (alt->automaton != nullptr) {
    alt->state = alt->automaton->Step(alt->state, byte);
    if (alt->state == Automaton::kDead) return false;
    if (alt->string != nullptr) {
      alt->length += lead;
      const StringShape& shape = *alt->string;
      if ((shape.min > 0 || shape.max != kNoLimit) &&
          !alt->automaton->CanFinish(
              alt->state, shape.min - alt->length,
              shape.max == kNoLimit ? kNoLimit : std::max(-1, shape.max - alt->length))) {
        return false;
      }
      if (shape.max != kNoLimit && alt->length > shape.max) return false;
    }
    return alt->string != nullptr || HasRoom(level, *alt, text);
  }
  // Restricts to names that continue with this byte.
  const ObjectShape& shape = Object(level.alts[alt->alt]);
  const size_t depth = text->length - 1;
  const auto begin = shape.names.begin();
  auto at = [depth](const NameSlot& n) {
    return n.text.size() > depth ? static_cast<int>(static_cast<uint8_t>(n.text[depth])) : -1;
  };
  const auto lo = std::partition_point(begin + alt->lo, begin + alt->hi,
                                       [&](const NameSlot& n) { return at(n) < byte; });
  const auto hi =
      std::partition_point(lo, begin + alt->hi, [&](const NameSlot& n) { return at(n) <= byte; });
  alt->lo = static_cast<int32_t>(lo - begin);
  alt->hi = static_cast<int32_t>(hi - begin);
  return AnyBit(alt->allowed, alt->lo, alt->hi);
}

// For a class with finitely many names left: whether one of them is neither known to the shape nor
// used.
bool JsonMachine::HasRoom(const Level& level, const ScalarAlt& alt, const TextChain* text,
                          const PointRange* open) {
  Automaton& automaton = *alt.automaton;
  if (automaton.IsAnyText(alt.state) || !automaton.Analyse()) return true;
  uint64_t left = 0;
  if (open != nullptr) {
    const auto count = automaton.CountWithin(alt.state, open->lo, open->hi);
    if (!count) return true;
    left = *count;
  } else {
    if (automaton.IsInfinite(alt.state)) return true;
    left = automaton.Count(alt.state);
  }
  const std::string prefix = TextOf(text);
  auto used = [&](std::string_view other) {
    if (!other.starts_with(prefix) || left == 0) return;
    size_t at = prefix.size();
    if (open != nullptr) {
      if (at == other.size()) return;
      const uint32_t c = DecodeUtf8(other, &at);
      if (c < open->lo || c > open->hi) return;
    }
    left -= automaton.Matches(other);
  };
  for (const Part* p = level.parts; p != nullptr; p = p->before) used(p->name);
  // Names of the shape that were read are in `parts` already.
  const ContainerAlt& container = level.alts[alt.alt];
  const ObjectShape& shape = Object(container);
  for (size_t n = 0; n < shape.names.size(); ++n) {
    if ((container.seen[n / 64] >> (n % 64) & 1) == 0) used(shape.names[n].text);
  }
  return left > 0;
}

// Whether some code point of [lo, hi] may come next.
bool JsonMachine::AltMayTake(const Level& level, const Scalar& scalar, const ScalarAlt& alt,
                             uint32_t lo, uint32_t hi) {
  if (lo > hi) return false;
  if (alt.automaton != nullptr) {
    if (!alt.automaton->AtBoundary(alt.state)) return false;
    if (alt.string == nullptr) {
      const PointRange open{lo, hi};
      return alt.automaton->AnyLive(alt.state, lo, hi) && HasRoom(level, alt, scalar.text, &open);
    }
    const StringShape& shape = *alt.string;
    if (shape.max != kNoLimit && alt.length >= shape.max) return false;
    return alt.automaton->AnyLive(alt.state, lo, hi, shape.min - alt.length - 1,
                                  shape.max == kNoLimit ? kNoLimit : shape.max - alt.length - 1);
  }
  const ObjectShape& shape = Object(level.alts[alt.alt]);
  const size_t depth = scalar.text == nullptr ? 0 : scalar.text->length;
  for (int32_t n = alt.lo; n < alt.hi; ++n) {
    const std::string& name = shape.names[static_cast<size_t>(n)].text;
    if ((alt.allowed[n / 64] >> (n % 64) & 1) == 0 || name.size() <= depth) continue;
    if ((static_cast<uint8_t>(name[depth]) & 0xC0) == 0x80) continue;
    size_t at = depth;
    const uint32_t c = DecodeUtf8(name, &at);
    if (c >= lo && c <= hi) return true;
  }
  return false;
}

// Moves to `next` with the alternatives that some code point in [lo, hi] may follow.
bool JsonMachine::KeepAlive(const JsonState& from, Scalar next, uint32_t lo, uint32_t hi,
                            Arena* arena, JsonState* to) {
  ScalarAlt* alts = arena->New<ScalarAlt>(from.scalar->num_alts);
  uint16_t count = 0;
  for (size_t i = 0; i < from.scalar->num_alts; ++i) {
    if (AltMayTake(*from.top, *from.scalar, from.scalar->alts[i], lo, hi))
      alts[count++] = from.scalar->alts[i];
  }
  if (count == 0) return false;
  next.num_alts = count;
  next.alts = alts;
  *to = {from.top, arena->Copy(next), 0};
  return true;
}

bool JsonMachine::StepEscape(const JsonState& from, uint8_t byte, Arena* arena, JsonState* to) {
  static constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
  Scalar next = *from.scalar;
  switch (next.escape) {
    case Scalar::Escape::kBackslash: {
      const size_t known = kFrom.find(static_cast<char>(byte));
      if (known != std::string_view::npos)
        return TakeCodePoint(from, static_cast<uint8_t>(kTo[known]), arena, to);
      next.escape = Scalar::Escape::kHex;
      next.digits = 0;
      next.value = 0;
      return byte == 'u' && KeepAlive(from, next, 0, kMaxCodePoint, arena, to);
    }
    case Scalar::Escape::kLowBackslash:
    case Scalar::Escape::kLowU:
      if (byte != static_cast<uint8_t>(next.escape == Scalar::Escape::kLowBackslash ? '\\' : 'u'))
        return false;
      next.escape = next.escape == Scalar::Escape::kLowBackslash ? Scalar::Escape::kLowU
                                                                 : Scalar::Escape::kLowHex;
      next.digits = 0;
      next.value = 0;
      *to = {from.top, arena->Copy(next), 0};
      return true;
    default:
      break;
  }
  const int digit = HexDigit(byte);
  if (digit < 0) return false;
  next.value = next.value * 16 + static_cast<uint32_t>(digit);
  ++next.digits;
  const uint32_t open = 4u * (4u - next.digits);
  const uint32_t lo = next.value << open, hi = lo | ((1u << open) - 1);
  if (next.escape == Scalar::Escape::kLowHex) return StepLowHalf(from, next, {lo, hi}, arena, to);
  const uint32_t a = std::max(lo, kFirstHigh), b = std::min(hi, kLastHigh);
  const uint32_t pair_lo = 0x10000 + ((a - kFirstHigh) << 10),
                 pair_hi = 0x10000 + ((b - kFirstHigh) << 10) + 0x3FF;
  if (next.digits == 4) {
    if (a > b) {
      const bool surrogate = lo >= kFirstLow && lo <= kLastLow;
      return !surrogate && TakeCodePoint(from, lo, arena, to);
    }
    next.escape = Scalar::Escape::kLowBackslash;
    next.high = lo;
    return KeepAlive(from, next, pair_lo, pair_hi, arena, to);
  }
  if (a <= b) return KeepPairOrSingle(from, next, {pair_lo, pair_hi}, {lo, hi}, arena, to);
  return KeepAlive(from, next, lo, hi, arena, to);
}

// The second half of a surrogate pair; its digits so far restrict it to `half`.
bool JsonMachine::StepLowHalf(const JsonState& from, const Scalar& next, PointRange half,
                              Arena* arena, JsonState* to) {
  const uint32_t a = std::max(half.lo, kFirstLow), b = std::min(half.hi, kLastLow);
  if (a > b) return false;
  const uint32_t base = 0x10000 + ((next.high - kFirstHigh) << 10);
  if (next.digits == 4) return TakeCodePoint(from, base + (a - kFirstLow), arena, to);
  return KeepAlive(from, next, base + (a - kFirstLow), base + (b - kFirstLow), arena, to);
}

// Some of these digits may start a surrogate pair: then many code points are possible. Wider than
// exact only until the next digit.
bool JsonMachine::KeepPairOrSingle(const JsonState& from, const Scalar& next, PointRange pair,
                                   PointRange single, Arena* arena, JsonState* to) {
  const Arena::Mark mark = arena->mark();
  JsonState as_pair, as_single;
  const bool paired = KeepAlive(from, next, pair.lo, pair.hi, arena, &as_pair);
  const bool alone = KeepAlive(from, next, single.lo, single.hi, arena, &as_single);
  if (paired && alone) return KeepAlive(from, next, 0, kMaxCodePoint, arena, to);
  if (paired || alone) *to = paired ? as_pair : as_single;
  if (!paired && !alone) arena->Reset(mark);
  return paired || alone;
}

// Consumes an escaped code point.
bool JsonMachine::TakeCodePoint(const JsonState& from, uint32_t c, Arena* arena, JsonState* to) {
  const Scalar& scalar = *from.scalar;
  std::string bytes;
  AppendUtf8(c, &bytes);
  Scalar next = scalar;
  next.escape = Scalar::Escape::kNone;
  ScalarAlt* alts = arena->New<ScalarAlt>(scalar.num_alts);
  std::copy_n(scalar.alts, scalar.num_alts, alts);
  const TextChain* text = scalar.text;
  for (size_t b = 0; b < bytes.size(); ++b) {
    if (scalar.keeps_text) text = Append(text, static_cast<uint8_t>(bytes[b]), arena);
    uint16_t count = 0;
    for (size_t i = 0; i < next.num_alts; ++i) {
      ScalarAlt alt = alts[i];
      if (AltTakes(*from.top, &alt, text, static_cast<uint8_t>(bytes[b]), b == 0))
        alts[count++] = alt;
    }
    next.num_alts = count;
  }
  if (next.num_alts == 0) return false;
  next.text = text;
  next.alts = alts;
  *to = {from.top, arena->Copy(next), 0};
  return true;
}

bool JsonMachine::EndText(const JsonState& from, Arena* arena, JsonState* to) {
  if (from.scalar->kind == Scalar::Kind::kName) return EndName(from, arena, to);
  const Level& level = *from.top;
  SlotSet slots;
  for (size_t i = 0; i < from.scalar->num_alts; ++i) {
    const ScalarAlt& alt = from.scalar->alts[i];
    if (alt.automaton->Accepts(alt.state) && alt.length >= alt.string->min)
      slots.Join(alt.slots, arena);
  }
  if (slots.Empty()) return false;
  const ReadValue* value =
      level.keeps_parts ? MakeScalar(ReadValue::Kind::kString, TextOf(from.scalar->text), arena)
                        : nullptr;
  return Complete(level, slots, value, arena, to);
}

bool JsonMachine::CanFulfil(const Level& level, const ContainerAlt& alt, uint8_t open,
                            const Chosen& chosen) {
  const ObjectShape& shape = Object(alt);
  if (open == 0 || (shape.max == kNoLimit && (open & ~shape.endless) == 0)) return true;
  Coverage left;
  for (size_t n = 0; n < shape.names.size(); ++n) {
    const bool seen = (alt.seen[n / 64] >> (n % 64) & 1) != 0;
    if (seen || static_cast<int32_t>(n) == chosen.name) continue;
    left.Add(shape.names[n].ways, 1, !shape.names[n].required);
  }
  for (const NameClass& c : shape.classes) {
    uint64_t members = kMaxRules;
    if (!c.infinite) {
      members = c.automaton->Count(c.automaton->start()) - (&c == chosen.of_class ? 1 : 0);
      for (const NameSlot& n : shape.names) members -= c.automaton->Matches(n.text);
      for (const Part* p = level.parts; p != nullptr; p = p->before)
        members -= !shape.HasName(p->name) && c.automaton->Matches(p->name);
    }
    left.Add(c.ways, members, true);
  }
  const int32_t more = left.LeastFor(open);
  if (more == Coverage::kNever) return false;
  const bool required = chosen.name >= 0 && shape.names[static_cast<size_t>(chosen.name)].required;
  return shape.max == kNoLimit ||
         static_cast<int64_t>(level.count) + 1 + alt.missing - required + more <= shape.max;
}

bool JsonMachine::AnyWayFits(const Level& level, const ContainerAlt& alt,
                             const std::vector<ValueWay>& ways, const Chosen& chosen) {
  const uint8_t obligations = Object(alt).obligations;
  return obligations == 0 || std::any_of(ways.begin(), ways.end(), [&](const ValueWay& way) {
           const auto open = static_cast<uint8_t>(obligations & ~(alt.done | way.done));
           return (way.done & alt.done) == 0 && CanFulfil(level, alt, open, chosen);
         });
}

void JsonMachine::AddNameSlots(const Level& level, const ScalarAlt& alt,
                               const std::vector<ValueWay>& ways, int32_t name,
                               std::vector<Slot>* slots) {
  const ContainerAlt& container = level.alts[alt.alt];
  const uint8_t done = container.done, obligations = Object(container).obligations;
  for (const ValueWay& way : ways) {
    if ((way.done & done) != 0 || slots->size() >= kMaxSlots) continue;
    const auto open = static_cast<uint8_t>(obligations & ~(done | way.done));
    if (!CanFulfil(level, container, open, {name, alt.name_class})) continue;
    slots->push_back({way.type, alt.alt, way.done, name});
  }
}

bool JsonMachine::ToColon(const Level& level, const TextChain* name, const std::vector<Slot>& slots,
                          Arena* arena, JsonState* to) {
  if (slots.empty()) return false;
  Level next = level;
  next.at = Level::At::kColon;
  next.num_slots = static_cast<uint16_t>(slots.size());
  next.slots = Store(slots, arena);
  next.name = name;
  *to = {arena->Copy(next), nullptr, 0};
  return true;
}

bool JsonMachine::EndName(const JsonState& from, Arena* arena, JsonState* to) {
  const Level& level = *from.top;
  const std::string text = TextOf(from.scalar->text);
  for (const Part* p = level.parts; p != nullptr; p = p->before) {
    if (p->name == text) return false;
  }
  std::vector<Slot> slots;
  for (size_t i = 0; i < from.scalar->num_alts; ++i) {
    const ScalarAlt& alt = from.scalar->alts[i];
    const ObjectShape& shape = Object(level.alts[alt.alt]);
    if (alt.name_class != nullptr) {
      if (!shape.HasName(text) && alt.automaton->Accepts(alt.state))
        AddNameSlots(level, alt, alt.name_class->ways, -1, &slots);
    } else if (shape.names[static_cast<size_t>(alt.lo)].text.size() == text.size() &&
               (alt.allowed[alt.lo / 64] >> (alt.lo % 64) & 1) != 0) {
      AddNameSlots(level, alt, shape.names[static_cast<size_t>(alt.lo)].ways, alt.lo, &slots);
    }
  }
  return ToColon(level, from.scalar->text, slots, arena, to);
}

bool JsonMachine::CloseWithout(const JsonState& from, size_t i, Arena* arena, JsonState* to) {
  const ScalarAlt& alt = from.scalar->alts[i];
  if (from.scalar->kind == Scalar::Kind::kString) {
    static constexpr ReadValue kUnknown = {};
    return Complete(*from.top, alt.slots, &kUnknown, arena, to);
  }
  std::vector<Slot> slots;
  AddNameSlots(*from.top, alt, alt.name_class->ways, -1, &slots);
  return ToColon(*from.top, nullptr, slots, arena, to);
}

bool JsonMachine::StepNumber(const JsonState& from, uint8_t byte, Arena* arena, JsonState* to) {
  const NumberSyntax syntax = NextSyntax(from.scalar->syntax, static_cast<char>(byte));
  if (syntax == NumberSyntax::kInvalid) {
    if (!aisp::IsWhole(from.scalar->syntax)) return false;
    JsonState end;
    return EndNumber(from, arena, &end) && StepStructure(end, byte, arena, to);
  }
  Scalar next = *from.scalar;
  next.syntax = syntax;
  next.text = Append(from.scalar->text, byte, arena);
  std::string text;
  ScalarAlt* alts = arena->New<ScalarAlt>(from.scalar->num_alts);
  next.num_alts = 0;
  for (size_t i = 0; i < from.scalar->num_alts; ++i) {
    const NumberSpec& spec = *from.scalar->alts[i].number;
    const bool free = spec.IsUnbounded() && !spec.integer;
    if (!free && text.empty()) text = TextOf(next.text);
    if (free || spec.CanBegin(text)) alts[next.num_alts++] = from.scalar->alts[i];
  }
  if (next.num_alts == 0) return false;
  next.alts = alts;
  *to = {from.top, arena->Copy(next), 0};
  return true;
}

bool JsonMachine::EndNumber(const JsonState& from, Arena* arena, JsonState* to) {
  const Scalar& scalar = *from.scalar;
  if (!aisp::IsWhole(scalar.syntax)) return false;
  SlotSet slots;
  std::string text;
  for (size_t i = 0; i < scalar.num_alts; ++i) {
    const NumberSpec& spec = *scalar.alts[i].number;
    const bool free = spec.IsUnbounded() && !spec.integer;
    if (!free && text.empty()) text = TextOf(scalar.text);
    if (free || spec.Accepts(text)) slots.Join(scalar.alts[i].slots, arena);
  }
  if (slots.Empty()) return false;
  const ReadValue* value = nullptr;
  if (from.top->keeps_parts)
    value = MakeScalar(ReadValue::Kind::kNumber, NormalNumber(TextOf(scalar.text)), arena);
  return Complete(*from.top, slots, value, arena, to);
}

}  // namespace aisp
