// JsonMachine: reads JSON text byte by byte according to a JsonGrammar: after every byte it
// accepts, the text can be completed to a valid instance.
//
// JSON's structure is deterministic, so there is one stack. Each level holds all alternatives of
// the schema that are still possible, and each alternative the slots of the level below that it
// would fill. When a value ends, the remaining slots determine the remaining alternatives below: a
// deterministic pushdown automaton whose stack symbols are sets (a tree automaton, determinised at
// run time).
//
// States are immutable and live in an Arena: to rewind, take the old state and reset the arena. A
// machine is stateless except for the grammar's automata; one thread at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>

#include "constrain/arena.h"
#include "constrain/json_grammar.h"
#include "constrain/read_value.h"

namespace aisp {

inline constexpr size_t kMaxSlots = 2048;

// A set of slots, usually few. Slots beyond the first word are immutable and live in an Arena, so
// that sets can be copied trivially.
class SlotSet {
 public:
  void Add(size_t i, Arena* arena) {
    if (i < kBits) {
      first_ |= Bit(i);
    } else {
      Own(arena)->words[i / kBits - 1] |= Bit(i);
    }
  }
  void Remove(size_t i, Arena* arena) {
    if (i < kBits) {
      first_ &= ~Bit(i);
    } else if (Has(i)) {
      Own(arena)->words[i / kBits - 1] &= ~Bit(i);
    }
  }
  bool Has(size_t i) const {
    if (i < kBits) return (first_ & Bit(i)) != 0;
    return more_ != nullptr && (more_->words[i / kBits - 1] & Bit(i)) != 0;
  }
  void Join(const SlotSet& other, Arena* arena) {
    first_ |= other.first_;
    if (other.more_ == nullptr || other.more_ == more_) return;
    if (more_ == nullptr) {
      more_ = other.more_;
      return;
    }
    More* own = Own(arena);
    for (size_t w = 0; w < own->words.size(); ++w) own->words[w] |= other.more_->words[w];
  }
  bool Empty() const {
    return first_ == 0 && (more_ == nullptr || std::all_of(more_->words.begin(), more_->words.end(),
                                                           [](uint64_t w) { return w == 0; }));
  }

 private:
  static constexpr size_t kBits = 64;
  struct More {
    std::array<uint64_t, kMaxSlots / kBits - 1> words;
  };
  static uint64_t Bit(size_t i) { return uint64_t{1} << (i % kBits); }
  More* Own(Arena* arena) {
    More* own = arena->Copy(more_ == nullptr ? More{} : *more_);
    more_ = own;
    return own;
  }

  uint64_t first_ = 0;
  const More* more_ = nullptr;
};

// Text read so far, last byte first.
struct TextChain {
  const TextChain* before;
  uint32_t length;
  char last;
};

// A member or item that was read, kept for unique names and unique items.
struct Part {
  const Part* before;
  std::string_view name;   // of members
  const ReadValue* value;  // null if values are not kept
};

// Earlier items that the value being read may still become equal to, which is forbidden.
struct Rivals {
  const Rivals* outer;  // of an enclosing array of unique items
  uint16_t base;        // depth of the array
  uint32_t count;
  const ReadValue* const* values;
};

// A possible alternative of an open array or object.
struct ContainerAlt {
  int32_t shape;
  uint8_t done;          // obligations fulfilled
  int32_t missing;       // required names still missing
  const uint64_t* seen;  // bits over the shape's names
  RuleCounts counts;     // arrays
  SlotSet slots;         // of the level below
};

// A possible type of a value, and its effect on an alternative of its container.
struct Slot {
  TypeId type;
  uint16_t alt;
  uint8_t done;
  int32_t name;  // index in the shape; -1: none of its names
};

struct Level {
  enum class Kind : uint8_t { kRoot, kObject, kArray };
  enum class At : uint8_t { kOpen, kName, kColon, kValue, kAfter, kEnd };

  const Level* below;
  Kind kind;
  At at;
  bool unique;       // an array for which some alternative requires unique items
  bool few;          // whose items may run out, here or in an enclosing one
  bool keeps_parts;  // this one or an enclosing one needs parts
  uint16_t depth;    // levels below
  uint16_t num_alts, num_slots;
  const ContainerAlt* alts;
  const Slot* slots;  // for the awaited or current value
  uint32_t count;     // members or items read
  const Part* parts;
  const ReadValues* taken;  // the values of `parts`, if the array is unique
  const TextChain* name;    // of the awaited or current value
  const Rivals* rivals;     // of the array or object itself
};

struct ScalarAlt {
  const StringShape* string;    // kString
  const NumberSpec* number;     // kNumber
  const NameClass* name_class;  // kName: a class; null: the shape's own names [lo, hi)
  Automaton* automaton;
  const uint64_t* allowed;  // kName: bits over the shape's names
  int32_t state;            // of the automaton
  int32_t lo, hi;
  int32_t length;  // kString: code points so far
  uint16_t alt;    // kName: the level's alternative
  SlotSet slots;   // other kinds: of the level
};

struct Scalar {
  enum class Kind : uint8_t { kName, kString, kNumber, kWord };
  enum class Escape : uint8_t { kNone, kBackslash, kHex, kLowBackslash, kLowU, kLowHex };

  Kind kind;
  Escape escape;
  uint8_t digits;       // hexadecimal digits read
  NumberSyntax syntax;  // kNumber
  uint8_t word, word_at;
  bool keeps_text;
  uint16_t num_alts;
  uint32_t value, high;   // of an escape
  const TextChain* text;  // kName, kNumber, and strings that must be unique
  const ScalarAlt* alts;
};

struct JsonState {
  const Level* top = nullptr;
  const Scalar* scalar = nullptr;
  uint16_t spaces = 0;
};

enum class Whitespace : uint8_t { kFlexible, kCompact };
// Limit of whitespace between two tokens, so that a model cannot go on with blanks. A newline
// counts as many, which leaves room for an empty line, or for one newline and an indentation.
inline constexpr int kMaxSpaces = 256, kNewlineSpaces = 128;

class JsonMachine {
 public:
  explicit JsonMachine(JsonGrammar* grammar, Whitespace whitespace)
      : g_(*grammar), whitespace_(whitespace) {}

  JsonState Start(Arena* arena);
  // False when `byte` may not follow.
  bool Step(const JsonState& from, uint8_t byte, Arena* arena, JsonState* to) {
    if (!StepAny(from, byte, arena, to)) return false;
    // A blank does not change the state.
    const bool same = to->top == from.top && to->scalar == nullptr && from.scalar == nullptr;
    return same || !to->top->keeps_parts || CanBecomeNew(*to, arena);
  }
  // Whether the text is a complete valid instance.
  bool IsWhole(const JsonState& state) {
    JsonState end;
    return IsWholeWith(state, &end);
  }

  // For many steps from this level: gathers its used values once, until called again. The level
  // must live until then; null: none.
  void Remember(const Level* level) {
    remembered_ = level;
    taken_.clear();
  }

  JsonGrammar& grammar() { return g_; }
  Whitespace whitespace() const { return whitespace_; }

  // For masks: the state after the closing quote if only alternative `i` of the scalar remains, for
  // any text.
  bool CloseWithout(const JsonState& from, size_t i, Arena* arena, JsonState* to);

 private:
  friend class JsonEndings;
  friend class JsonMasks;

  bool IsWholeWith(const JsonState& state, JsonState* end);
  // As Step, without the check that some continuation is a new item.
  bool StepAny(const JsonState& from, uint8_t byte, Arena* arena, JsonState* to);
  bool StepStructure(const JsonState& from, uint8_t byte, Arena* arena, JsonState* to);
  bool StepObject(const JsonState& from, uint8_t byte, Arena* arena, JsonState* to);
  bool StepArray(const JsonState& from, uint8_t byte, Arena* arena, JsonState* to);
  bool StartValue(const Level& level, uint8_t byte, Arena* arena, JsonState* to);
  bool Open(const Level& level, bool object, Arena* arena, JsonState* to);
  bool StartString(const Level& level, Arena* arena, JsonState* to);
  bool StartNumber(const Level& level, uint8_t byte, Arena* arena, JsonState* to);
  std::vector<ScalarAlt> NumbersOf(const Level& level, Arena* arena) const;
  bool StartWord(const Level& level, uint8_t byte, Arena* arena, JsonState* to);
  bool StartName(const Level& level, Arena* arena, JsonState* to);
  bool NextItem(const Level& level, Level* out, Arena* arena);
  bool CloseContainer(const Level& level, Arena* arena, JsonState* to);
  bool Complete(const Level& level, SlotSet slots, const ReadValue* value, Arena* arena,
                JsonState* to);
  ContainerAlt Updated(const Level& level, const Slot& slot, Arena* arena) const;

  bool StepScalar(const JsonState& from, uint8_t byte, Arena* arena, JsonState* to);
  bool StepText(const JsonState& from, uint8_t byte, Arena* arena, JsonState* to);
  bool StepEscape(const JsonState& from, uint8_t byte, Arena* arena, JsonState* to);
  bool KeepAlive(const JsonState& from, Scalar next, uint32_t lo, uint32_t hi, Arena* arena,
                 JsonState* to);
  bool TakeCodePoint(const JsonState& from, uint32_t c, Arena* arena, JsonState* to);
  bool StepNumber(const JsonState& from, uint8_t byte, Arena* arena, JsonState* to);
  bool StepWord(const JsonState& from, uint8_t byte, Arena* arena, JsonState* to);
  bool EndText(const JsonState& from, Arena* arena, JsonState* to);
  bool EndName(const JsonState& from, Arena* arena, JsonState* to);
  bool EndNumber(const JsonState& from, Arena* arena, JsonState* to);
  bool AltTakes(const Level& level, ScalarAlt* alt, const TextChain* text, uint8_t byte, bool lead);
  bool AltMayTake(const Level& level, const Scalar& scalar, const ScalarAlt& alt, uint32_t lo,
                  uint32_t hi);
  // Code points from `lo` to `hi`: an incomplete escape.
  struct PointRange {
    uint32_t lo, hi;
  };
  bool HasRoom(const Level& level, const ScalarAlt& alt, const TextChain* text,
               const PointRange* open = nullptr);
  bool StepLowHalf(const JsonState& from, const Scalar& next, PointRange half, Arena* arena,
                   JsonState* to);
  bool KeepPairOrSingle(const JsonState& from, const Scalar& next, PointRange pair,
                        PointRange single, Arena* arena, JsonState* to);
  // A chosen member: one of the shape's names, or one of a class.
  struct Chosen {
    int32_t name;  // -1: of the class
    const NameClass* of_class;
  };
  // Whether members not yet written can fulfil the open obligations after `chosen`, within the room
  // left.
  bool CanFulfil(const Level& level, const ContainerAlt& alt, uint8_t open, const Chosen& chosen);
  bool AnyWayFits(const Level& level, const ContainerAlt& alt, const std::vector<ValueWay>& ways,
                  const Chosen& chosen);
  void AddNameSlots(const Level& level, const ScalarAlt& alt, const std::vector<ValueWay>& ways,
                    int32_t name, std::vector<Slot>* slots);
  bool ToColon(const Level& level, const TextChain* name, const std::vector<Slot>& slots,
               Arena* arena, JsonState* to);

  // Unique items (json_unique.cc). `base`: the depth of the array that requires them.
  bool CanBecomeNew(const JsonState& state, Arena* arena);
  bool HasFreshItem(const JsonState& state, uint16_t base, Arena* arena);
  bool HasFreshEnd(const Level& level, uint16_t base, Arena* arena);
  bool HasFreshValue(const Level& level, uint16_t base, Arena* arena);
  bool HasFreshName(const JsonState& state, uint16_t base, Arena* arena);
  static bool HasManyStrings(const Level& level, const Scalar& scalar, std::string_view text,
                             Arena* arena);
  bool HasFreshString(const JsonState& state, uint16_t base, Arena* arena);
  // In json_unique_numbers.cc.
  bool HasFreshNumber(const JsonState& state, uint16_t base, Arena* arena);
  // Whether the item is new if the current value ends as `value`.
  bool IsFreshWith(const Level& level, const SlotSet& slots, const ReadValue& value, uint16_t base,
                   Arena* arena);
  bool ReadsOnTo(const JsonState& state, std::string_view text, Arena* arena, JsonState* to);
  // Values that the current value at `level` must not repeat.
  struct Taken {
    uint16_t base = 0;
    std::vector<const ReadValue*> values;
    std::vector<std::string_view> texts;  // of strings, sorted, each once
    std::vector<int64_t> wholes;          // numbers of few digits, sorted
  };
  static Taken Gather(const Level& level, uint16_t base);
  // From the remembered level, or gathered into `*own`.
  const Taken& TakenAt(const Level& level, uint16_t base, Taken* own);
  bool HasFreshNumberAmong(const JsonState& state, const std::string& text, const Taken& all,
                           uint16_t base, Arena* arena);
  static std::vector<std::string_view> NamesAhead(const Level& level, uint16_t base);
  static const Rivals* RivalsInside(const Level& level, ReadValue::Kind kind, Arena* arena);
  static const Rivals* RivalsAfter(const Level& level, const ReadValue& value, Arena* arena);
  // Texts that the current value or name must not repeat, or that may lead to a repeated value.
  std::vector<std::string_view> TakenTexts(const JsonState& state);

  const ObjectShape& Object(const ContainerAlt& alt) const {
    return g_.objects[static_cast<size_t>(alt.shape)];
  }
  const ArrayShape& Array(const ContainerAlt& alt) const {
    return g_.arrays[static_cast<size_t>(alt.shape)];
  }

  JsonGrammar& g_;
  Whitespace whitespace_;
  int tries_ = 0;  // left for CanBecomeNew
  const Level* remembered_ = nullptr;
  std::deque<Taken> taken_;  // of the remembered level, by base
};

std::string TextOf(const TextChain* chain);

}  // namespace aisp
