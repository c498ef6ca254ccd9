#include "constrain/decimal.h"

#include <algorithm>

namespace aisp {
namespace {

constexpr int kMaxExponent = 100'000;

__int128 Abs(__int128 v) { return v < 0 ? -v : v; }

int DigitCount(__int128 v) {
  int n = 0;
  for (v = Abs(v); v > 0; v /= 10) ++n;
  return n;
}

// v * 10^n; nullopt when it needs more than kMaxDecimalDigits digits.
std::optional<__int128> Shift(__int128 v, int n) {
  if (v == 0) return v;
  if (n < 0 || DigitCount(v) + n > kMaxDecimalDigits) return std::nullopt;
  while (n-- > 0) v *= 10;
  return v;
}

// m^e mod n, for the multiple test of numbers with a large exponent.
__int128 MulMod(__int128 a, __int128 b, __int128 n) {
  __int128 out = 0;
  for (a %= n; b > 0; b >>= 1) {
    if (b & 1) out = (out + a) % n;
    a = (a + a) % n;
  }
  return out;
}

}  // namespace

Decimal Decimal::Make(__int128 mantissa, int exponent) {
  if (mantissa == 0) return {0, 0};
  while (mantissa % 10 == 0) {
    mantissa /= 10;
    ++exponent;
  }
  return {mantissa, exponent};
}

std::optional<Decimal> Decimal::Parse(std::string_view text) {
  size_t i = 0;
  const bool negative = !text.empty() && text[0] == '-';
  if (negative) ++i;
  __int128 mantissa = 0;
  int exponent = 0, zeros = 0, digits = 0;
  bool fraction = false;
  for (; i < text.size() && text[i] != 'e' && text[i] != 'E'; ++i) {
    if (text[i] == '.') {
      fraction = true;
      continue;
    }
    if (fraction) --exponent;
    if (text[i] == '0') {
      ++zeros;  // pending until another digit follows: trailing zeros are not significant
      continue;
    }
    if (mantissa != 0) digits += zeros;
    if (++digits > kMaxDecimalDigits) return std::nullopt;
    if (mantissa != 0) {
      for (; zeros > 0; --zeros) mantissa *= 10;
    }
    zeros = 0;
    mantissa = mantissa * 10 + (text[i] - '0');
  }
  exponent += zeros;
  if (i < text.size()) {
    ++i;
    const bool minus = i < text.size() && text[i] == '-';
    if (i < text.size() && (text[i] == '-' || text[i] == '+')) ++i;
    int e = 0;
    for (; i < text.size(); ++i) {
      e = e * 10 + (text[i] - '0');
      if (e > kMaxExponent) {
        if (mantissa == 0) return Decimal{};
        return std::nullopt;
      }
    }
    exponent += minus ? -e : e;
  }
  return Make(negative ? -mantissa : mantissa, exponent);
}

std::string Decimal::ToString() const {
  std::string digits;
  for (__int128 v = Abs(mantissa); v > 0; v /= 10)
    digits.push_back(static_cast<char>('0' + v % 10));
  if (digits.empty()) digits = "0";
  std::reverse(digits.begin(), digits.end());
  if (exponent > 20 || exponent < -60) {
    digits += "e" + std::to_string(exponent);
  } else if (exponent >= 0) {
    digits.append(static_cast<size_t>(exponent), '0');
  } else {
    const auto places = static_cast<size_t>(-exponent);
    if (digits.size() <= places) digits.insert(0, places + 1 - digits.size(), '0');
    digits.insert(digits.size() - places, ".");
  }
  return mantissa < 0 ? "-" + digits : digits;
}

int Compare(const Decimal& a, const Decimal& b) {
  if (a.Sign() != b.Sign()) return a.Sign() < b.Sign() ? -1 : 1;
  if (a.Sign() == 0) return 0;
  const int high_a = DigitCount(a.mantissa) + a.exponent;
  const int high_b = DigitCount(b.mantissa) + b.exponent;
  if (high_a != high_b) return (high_a < high_b) == (a.Sign() > 0) ? -1 : 1;
  // Equal magnitude: both fit once scaled to the smaller exponent.
  const int low = std::min(a.exponent, b.exponent);
  const auto x = Shift(a.mantissa, a.exponent - low), y = Shift(b.mantissa, b.exponent - low);
  if (x && y) return *x < *y ? -1 : *x > *y;
  return 0;  // unreachable: equal magnitude and at most kMaxDecimalDigits digits
}

std::optional<__int128> ScaleTo(const Decimal& a, int exponent) {
  if (a.mantissa == 0) return 0;
  return Shift(a.mantissa, a.exponent - exponent);
}

std::optional<bool> IsMultiple(const Decimal& a, const Decimal& m) {
  if (a.mantissa == 0) return true;
  if (a.exponent < m.exponent) {
    const auto scaled = ScaleTo(m, a.exponent);
    if (!scaled) return false;  // a has digits far below m's last one
    return a.mantissa % *scaled == 0;
  }
  const __int128 modulus = Abs(m.mantissa);
  __int128 power = 1 % modulus;
  __int128 base = 10 % modulus;
  for (int e = a.exponent - m.exponent; e > 0; e >>= 1) {
    if (e & 1) power = MulMod(power, base, modulus);
    base = MulMod(base, base, modulus);
  }
  return MulMod(Abs(a.mantissa), power, modulus) == 0;
}

}  // namespace aisp
