// NumberSpec: a set of numbers as JSON Schema cuts it out, and which beginnings of a JSON number
// can still become one of them. Exact: decided by interval arithmetic on decimals, no floating
// point.
//
// How a member may be written: plain ("-12.50"), or with an exponent of three digits at most behind
// one digit other than 0 and perhaps a fraction, or behind what a plain member begins with. Whole
// numbers have none below zero, and no fraction but zeros before it. A set without any bound takes
// every JSON spelling. Plain data and pure functions: any thread.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "constrain/decimal.h"

namespace aisp {

struct NumberSpec {
  bool integer = false;        // whole numbers; 1.0 is one
  bool plain_integer = false;  // and written without a point (draft 4)
  bool not_integer = false;
  bool pointed = false;  // written with a point or an exponent: what plain_integer leaves out
  std::optional<Decimal> low, high;
  bool low_excluded = false, high_excluded = false;
  std::vector<Decimal> multiples;              // positive
  std::vector<Decimal> not_multiples;          // positive
  std::optional<std::vector<Decimal>> values;  // one of these; sorted, for what follows
  std::vector<Decimal> excluded;               // none of these; sorted, for what follows

  // The conjunction, in place.
  void LimitLow(const Decimal& bound, bool excluded_bound);
  void LimitHigh(const Decimal& bound, bool excluded_bound);
  void LimitValues(std::vector<Decimal> allowed);
  void Exclude(const std::vector<Decimal>& numbers);
  // Drops values that the rest refuses.
  void KeepMembers();

  bool IsUnbounded() const;  // every number, or every integer
  bool IsList() const;       // these values, however they are written
  bool Contains(const Decimal& value) const;
  // False only if the set is empty.
  bool NotEmpty() const;
  // False when no member has a spelling below.
  bool CanBeWritten() const;
  // All of them; absent when there are more than `limit` or no end of them.
  std::optional<std::vector<Decimal>> Members(size_t limit) const;

  // `text`: a proper beginning of a JSON number ("" included). Whether some member is spelled with
  // this beginning.
  bool CanBegin(std::string_view text) const;
  // The same where it takes no exact decimals to tell: whole numbers of few digits under bounds,
  // and pieces of the line. Absent elsewhere.
  std::optional<bool> QuickCanBegin(std::string_view text) const;
  // Whole numbers of one range, all of them below 10^16, which are written plainly: bounds (absent:
  // none) and what they are multiples of.
  struct WholeRange {
    std::optional<int64_t> low, high;
    int64_t step = 1;
  };
  std::optional<WholeRange> AsWholeRange() const;
  // Whether `text`, a whole JSON number, is spelled as allowed and a member.
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
  // A member in `interval` that is written in kMaxDecimalDigits digits, the last one of this power
  // of ten.
  bool MeetsWritten(Interval interval, int last) const;
  std::optional<Decimal> Granularity() const;
};

// Where a beginning of a JSON number stands in the grammar of RFC 8259.
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
// An exponent has three digits at most: no double has more, and a text ends some time.
NumberSyntax NextSyntax(NumberSyntax state, char c);
inline bool IsWhole(NumberSyntax s) {
  return s == NumberSyntax::kZero || s == NumberSyntax::kInteger || s == NumberSyntax::kFraction ||
         s == NumberSyntax::kExponent || s == NumberSyntax::kExponent2 ||
         s == NumberSyntax::kExponent3;
}

}  // namespace aisp
