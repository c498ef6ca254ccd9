#include "constrain/read_value.h"

#include <algorithm>
#include <functional>

namespace aisp {
namespace {

uint64_t Mix(uint64_t seed, uint64_t value) {
  return (seed ^ value) * 0x9E3779B97F4A7C15u + (seed >> 29);
}

uint64_t HashOf(std::string_view text) { return std::hash<std::string_view>()(text); }

// A NormalNumber as an integer of at most 17 digits, used as a lookup key.
std::optional<int64_t> WholeOf(std::string_view normal) {
  constexpr size_t kMaxDigits = 17;
  const size_t e = normal.find('e');
  if (e == std::string_view::npos) return 0;
  const bool negative = normal[0] == '-';
  int64_t value = 0;
  size_t digits = 0, zeros = 0;
  for (const char c : normal.substr(negative, e - negative)) {
    if (++digits > kMaxDigits) return std::nullopt;
    value = value * 10 + (c - '0');
  }
  for (const char c : normal.substr(e + 1)) {
    if (c == '-' || zeros > kMaxDigits) return std::nullopt;
    zeros = zeros * 10 + static_cast<size_t>(c - '0');
  }
  if (digits + zeros > kMaxDigits) return std::nullopt;
  for (; zeros > 0; --zeros) value *= 10;
  return negative ? -value : value;
}

uint64_t HashOfWhole(int64_t number) {
  return Mix(static_cast<uint64_t>(ReadValue::Kind::kNumber), static_cast<uint64_t>(number));
}

uint64_t HashOf(ReadValue::Kind kind, std::string_view text) {
  if (kind == ReadValue::Kind::kNumber) {
    if (const auto whole = WholeOf(text)) return HashOfWhole(*whole);
  }
  return Mix(static_cast<uint64_t>(kind), HashOf(text));
}

// The upper bits of a hash are well mixed, so they select the branch.
constexpr int kBranchBits = 3;
size_t BranchOf(uint64_t bits) { return bits >> (64 - kBranchBits); }

// The node with a value of this hash for which `is_it` holds.
template <typename IsIt>
bool HoldsOne(const ReadValues* at, uint64_t hash, const IsIt& is_it) {
  for (uint64_t bits = hash; at != nullptr; bits <<= kBranchBits) {
    if (at->value->hash == hash && is_it(*at->value)) return true;
    at = at->below[BranchOf(bits)];
  }
  return false;
}

const ReadValues* Add(const ReadValues* at, const ReadValue& value, uint64_t bits, Arena* arena) {
  ReadValues node = {};
  node.value = &value;
  if (at != nullptr) {
    node = *at;
    const size_t branch = BranchOf(bits);
    node.below[branch] = Add(node.below[branch], value, bits << kBranchBits, arena);
  }
  return arena->Copy(node);
}

}  // namespace

const ReadValues* With(const ReadValues* values, const ReadValue& value, Arena* arena) {
  if (value.kind == ReadValue::Kind::kUnknown) return values;  // equals no other value
  return Holds(values, value) ? values : Add(values, value, value.hash, arena);
}

bool Holds(const ReadValues* values, const ReadValue& value) {
  return HoldsOne(values, value.hash, [&](const ReadValue& own) { return Equal(own, value); });
}

bool HoldsWhole(const ReadValues* values, int64_t number) {
  return HoldsOne(values, HashOfWhole(number), [&](const ReadValue& own) {
    return own.kind == ReadValue::Kind::kNumber && WholeOf(own.text) == number;
  });
}

std::optional<int64_t> WholeOf(const ReadValue& value) {
  return value.kind == ReadValue::Kind::kNumber ? WholeOf(value.text) : std::nullopt;
}

bool Equal(const ReadValue& a, const ReadValue& b) {
  if (a.kind != b.kind || a.hash != b.hash || a.count != b.count ||
      a.kind == ReadValue::Kind::kUnknown || a.text != b.text) {
    return false;
  }
  return std::equal(a.members, a.members + a.count, b.members,
                    [](const ReadMember& x, const ReadMember& y) {
                      return x.name == y.name && Equal(*x.value, *y.value);
                    });
}

std::string NormalNumber(std::string_view number) {
  const bool negative = number.starts_with('-');
  if (negative) number.remove_prefix(1);
  const size_t e = std::min(number.find_first_of("eE"), number.size());
  int64_t exponent = 0;
  if (e < number.size()) {
    std::string_view digits = number.substr(e + 1);
    const bool below = digits.starts_with('-');
    if (below || digits.starts_with('+')) digits.remove_prefix(1);
    for (const char c : digits) exponent = std::min<int64_t>(exponent * 10 + (c - '0'), 1 << 30);
    if (below) exponent = -exponent;
  }
  std::string digits;
  bool behind_point = false;
  for (const char c : number.substr(0, e)) {
    if (c == '.') {
      behind_point = true;
    } else {
      digits.push_back(c);
      exponent -= behind_point;
    }
  }
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  while (!digits.empty() && digits.back() == '0') {
    digits.pop_back();
    ++exponent;
  }
  if (digits.empty()) return "0";
  return (negative ? "-" : "") + digits + "e" + std::to_string(exponent);
}

const ReadValue* MakeScalar(ReadValue::Kind kind, std::string_view text, Arena* arena) {
  char* stored = arena->New<char>(std::max<size_t>(text.size(), 1));
  std::copy(text.begin(), text.end(), stored);
  return arena->Copy(ReadValue{kind, 0, HashOf(kind, text), {stored, text.size()}, nullptr});
}

const ReadValue* MakeContainer(ReadValue::Kind kind, std::vector<ReadMember> members,
                               Arena* arena) {
  if (kind == ReadValue::Kind::kObject) {
    std::sort(members.begin(), members.end(),
              [](const ReadMember& a, const ReadMember& b) { return a.name < b.name; });
  }
  ReadMember* stored = arena->New<ReadMember>(std::max<size_t>(members.size(), 1));
  std::copy(members.begin(), members.end(), stored);
  uint64_t hash = static_cast<uint64_t>(kind);
  for (const ReadMember& member : members)
    hash = Mix(Mix(hash, HashOf(member.name)), member.value->hash);
  return arena->Copy(
      ReadValue{kind, static_cast<uint32_t>(members.size()), hash, std::string_view(), stored});
}

const ReadValue* MemberOf(const ReadValue& object, std::string_view name) {
  const ReadMember* end = object.members + object.count;
  const ReadMember* at =
      std::partition_point(object.members, end, [&](const ReadMember& m) { return m.name < name; });
  return at != end && at->name == name ? at->value : nullptr;
}

}  // namespace aisp
