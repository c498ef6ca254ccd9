// Decimal: exact decimal numbers of up to 37 digits, as in JSON: sign, digits, power of ten. Enough
// to compare with bounds and to test multiples without rounding; what does not fit is reported,
// never rounded. Value type: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace aisp {

inline constexpr int kMaxDecimalDigits = 37;

struct Decimal {
  __int128 mantissa = 0;  // no trailing zero unless 0
  int exponent = 0;       // value = mantissa * 10^exponent

  // Parses a JSON number; nullopt when it has more than kMaxDecimalDigits significant digits or an
  // exponent beyond +-100,000.
  static std::optional<Decimal> Parse(std::string_view text);
  static Decimal Make(__int128 mantissa, int exponent);
  static Decimal FromInt(int64_t value) { return Make(value, 0); }

  bool IsInteger() const { return exponent >= 0; }
  Decimal Negated() const { return {-mantissa, exponent}; }
  int Sign() const { return mantissa < 0 ? -1 : mantissa > 0; }
  std::string ToString() const;
  friend bool operator==(const Decimal&, const Decimal&) = default;
};

// -1, 0, 1. Exact for all values.
int Compare(const Decimal& a, const Decimal& b);
inline bool operator<(const Decimal& a, const Decimal& b) { return Compare(a, b) < 0; }

// `a` as an integer multiple of 10^exponent; nullopt when that does not fit.
std::optional<__int128> ScaleTo(const Decimal& a, int exponent);
// Whether a is a multiple of m (m > 0); nullopt when their magnitudes differ too much to decide.
std::optional<bool> IsMultiple(const Decimal& a, const Decimal& m);

}  // namespace aisp
