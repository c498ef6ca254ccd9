// ReadValue: a value that was read whole, kept for comparisons inside arrays of unique items. Plain
// data in an Arena; pure functions: any thread.
#pragma once

#include <cstdint>
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

// Equal as JSON Schema compares: 1.0 is 1, members stand in no order. An unknown value equals none.
bool Equal(const ReadValue& a, const ReadValue& b);

// A JSON number such that equal numbers have equal texts: sign, digits without zeros at their ends,
// power of ten.
std::string NormalNumber(std::string_view number);

const ReadValue* MakeScalar(ReadValue::Kind kind, std::string_view text, Arena* arena);
// Sorts the members of an object. Their names stay where they are.
const ReadValue* MakeContainer(ReadValue::Kind kind, std::vector<ReadMember> members, Arena* arena);
// Null when there is none.
const ReadValue* MemberOf(const ReadValue& object, std::string_view name);

}  // namespace aisp
