#include "constrain/read_value.h"

#include <algorithm>
#include <functional>

namespace aisp {
namespace {

uint64_t Mix(uint64_t seed, uint64_t value) {
  return (seed ^ value) * 0x9E3779B97F4A7C15u + (seed >> 29);
}

uint64_t HashOf(std::string_view text) { return std::hash<std::string_view>()(text); }

}  // namespace

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
  return arena->Copy(ReadValue{
      kind, 0, Mix(static_cast<uint64_t>(kind), HashOf(text)), {stored, text.size()}, nullptr});
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
