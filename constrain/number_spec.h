// NumberSpec: a set of numbers as JSON Schema can describe it, and which prefixes of a JSON number
// can still become a member. Exact: interval arithmetic on decimals, no floating point.
//
// Allowed spellings: plain ("-12.50"), or with an exponent of at most three digits after one
// nonzero digit and an optional fraction, or after the beginning of a plain member. Whole numbers
// have no negative exponent, and before an exponent only a fraction of zeros. A set without bounds
// allows every JSON spelling. Plain data and pure functions: any thread.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "constrain/decimal.h"

namespace aisp {

struct NumberSpec {
  bool integer = false;        // whole numbers; 1.0 is one
  bool plain_integer = false;  // whole numbers written without a point (draft 4)
  bool not_integer = false;
  bool pointed = false;  // written with a point or an exponent: the complement of plain_integer
  std::optional<Decimal> low, high;
  bool low_excluded = false, high_excluded = false;
  std::vector<Decimal> multiples;              // positive
  std::vector<Decimal> not_multiples;          // positive
  std::optional<std::vector<Decimal>> values;  // only these; sorted for the functions below
  std::vector<Decimal> excluded;               // none of these; sorted for the functions below

  // Adds conditions in place.
  void LimitLow(const Decimal& bound, bool excluded_bound);
  void LimitHigh(const Decimal& bound, bool excluded_bound);
  void LimitValues(std::vector<Decimal> allowed);
  void Exclude(const std::vector<Decimal>& numbers);
  // Removes values that the other conditions exclude.
  void KeepMembers();

  bool IsUnbounded() const;  // all numbers, or all integers
  bool IsList() const;       // only these values, in any spelling
  bool Contains(const Decimal& value) const;
  // False only if the set is empty.
  bool NotEmpty() const;
  // False when no member has an allowed spelling.
  bool CanBeWritten() const;
  // All members; nullopt when there are more than `limit` or infinitely many.
  std::optional<std::vector<Decimal>> Members(size_t limit) const;

  // Whether some member's spelling begins with `text`, a proper prefix of a JSON number (may be
  // "").
  bool CanBegin(std::string_view text) const;
  // The same without exact decimals, for whole numbers with few digits in bounds, and for
  // intervals; nullopt otherwise.
  std::optional<bool> QuickCanBegin(std::string_view text) const;
  // Whole numbers in one range, all below 10^16, which are written plainly: optional bounds and a
  // divisor.
  struct WholeRange {
    std::optional<int64_t> low, high;
    int64_t step = 1;
  };
  std::optional<WholeRange> AsWholeRange() const;
  // Whether `text`, a complete JSON number, is an allowed spelling of a member.
  bool Accepts(std::string_view text) const;

  friend bool operator==(const NumberSpec&, const NumberSpec&) = default;

 private:
  struct Interval;
  bool Meets(const Interval& interval) const;
  std::optional<bool> QuickPiece(std::string_view text) const;
  bool PlainCanBegin(std::string_view text) const;
  bool ExponentCanBegin(std::string_view text, size_t e) const;
  bool MantissaCanBegin(std::string_view text) const;
  bool MayBeMantissa(std::string_view text) const;
  bool MayHaveExponent(std::string_view mantissa, const Decimal& base, int x) const;
  // Whether a member in `interval` has at most kMaxDecimalDigits digits down to 10^`last`.
  bool MeetsWritten(Interval interval, int last) const;
  std::optional<Decimal> Granularity() const;
};

// Position of a number's prefix in the grammar of RFC 8259.
enum class NumberSyntax : uint8_t {
  kStart,
  kMinus,
  kZero,
  kInteger,
  kPoint,
  kFraction,
  kE,
  kSign,
  kExponent,  // one digit, two, three
  kExponent2,
  kExponent3,
  kInvalid
};
// An exponent has at most three digits: doubles need no more, and texts must end.
NumberSyntax NextSyntax(NumberSyntax state, char c);
inline bool IsWhole(NumberSyntax s) {
  return s == NumberSyntax::kZero || s == NumberSyntax::kInteger || s == NumberSyntax::kFraction ||
         s == NumberSyntax::kExponent || s == NumberSyntax::kExponent2 ||
         s == NumberSyntax::kExponent3;
}

}  // namespace aisp
