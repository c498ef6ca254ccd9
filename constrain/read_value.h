// ReadValue: a complete value, kept for comparisons in arrays of unique items. Plain data in an
// Arena; pure functions: any thread.
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
  uint64_t hash;              // equal for equal values
  std::string_view text;      // scalars: a keyword, a string's content, or a NormalNumber
  const ReadMember* members;  // objects: sorted by name; arrays: in order
};

// Values by hash: a persistent tree that shares its previous version, so that rewinding takes the
// old root. In an Arena.
struct ReadValues {
  const ReadValue* value;
  std::array<const ReadValues*, 8> below;  // by the next bits of the hash
};

// `values` plus `value`.
const ReadValues* With(const ReadValues* values, const ReadValue& value, Arena* arena);
bool Holds(const ReadValues* values, const ReadValue& value);
bool HoldsWhole(const ReadValues* values, int64_t number);

// Equality of JSON Schema: 1.0 is 1, member order is ignored. An unknown value equals none.
bool Equal(const ReadValue& a, const ReadValue& b);

// A canonical text for a JSON number: sign, digits without zeros at either end, power of ten. Equal
// numbers have equal texts.
std::string NormalNumber(std::string_view number);

// The value as an integer if it is one with few digits.
std::optional<int64_t> WholeOf(const ReadValue& value);

const ReadValue* MakeScalar(ReadValue::Kind kind, std::string_view text, Arena* arena);
// Sorts the members of an object. Their names are not copied.
const ReadValue* MakeContainer(ReadValue::Kind kind, std::vector<ReadMember> members, Arena* arena);
// Null when absent.
const ReadValue* MemberOf(const ReadValue& object, std::string_view name);

}  // namespace aisp
