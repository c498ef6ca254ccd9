// ReadValue: a value that was read whole, kept for comparisons inside arrays of unique items. Plain
// data in an Arena; pure functions: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "constrain/arena.h"

namespace aisp {

struct ReadValue;

struct ReadMember {
  std::string_view name;  // of objects
  const ReadValue* value;
};

struct ReadValue {
  enum class Kind : uint8_t { kUnknown, kWord, kNumber, kString, kArray, kObject };
  Kind kind;
  uint32_t count;             // members or items
  uint64_t hash;              // equal values have equal ones
  std::string_view text;      // of scalars: a word, a string's content, a number as NormalNumber
  const ReadMember* members;  // objects: sorted by name; arrays: in order
};

// Values that were read, by hash: a tree that shares what it had before a value came, so that to go
// back is to take the old root. In an Arena.
struct ReadValues {
  const ReadValue* value;
  std::array<const ReadValues*, 8> below;  // by the next bits of the hash
};

// The values and this one.
const ReadValues* With(const ReadValues* values, const ReadValue& value, Arena* arena);
bool Holds(const ReadValues* values, const ReadValue& value);
bool HoldsWhole(const ReadValues* values, int64_t number);

// Equal as JSON Schema compares: 1.0 is 1, members stand in no order. An unknown value equals none.
bool Equal(const ReadValue& a, const ReadValue& b);

// A JSON number such that equal numbers have equal texts: sign, digits without zeros at their ends,
// power of ten.
std::string NormalNumber(std::string_view number);

// The whole number that a value is, where it has few digits.
std::optional<int64_t> WholeOf(const ReadValue& value);

const ReadValue* MakeScalar(ReadValue::Kind kind, std::string_view text, Arena* arena);
// Sorts the members of an object. Their names stay where they are.
const ReadValue* MakeContainer(ReadValue::Kind kind, std::vector<ReadMember> members, Arena* arena);
// Null when there is none.
const ReadValue* MemberOf(const ReadValue& object, std::string_view name);

}  // namespace aisp
