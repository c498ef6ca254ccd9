// The common number checks in machine words, since a mask needs them for a thousand tokens.
#include <algorithm>
#include <array>

#include "constrain/number_spec.h"

namespace aisp {
namespace {

constexpr int kMaxDigits = 15;  // of a text and of a bound; ten times as much still fits
constexpr int64_t kBeyond = 10'000'000'000'000'000;  // 10^16, the smallest that may have an
                                                     // exponent

constexpr auto kPowers = [] {
  std::array<int64_t, 17> out = {1};
  for (size_t i = 1; i < out.size(); ++i) out[i] = out[i - 1] * 10;
  return out;
}();

// value * 10^places as an integer; nullopt when it is not one or is too long.
std::optional<int64_t> Scaled(const Decimal& value, int places) {
  const int exponent = value.exponent + places;
  if (value.mantissa >= kBeyond || value.mantissa <= -kBeyond || exponent < 0 || exponent > 15)
    return value.mantissa == 0 ? std::optional<int64_t>(0) : std::nullopt;
  const __int128 scaled = value.mantissa * kPowers[static_cast<size_t>(exponent)];
  if (scaled >= kBeyond || scaled <= -kBeyond) return std::nullopt;
  return static_cast<int64_t>(scaled);
}

int64_t FloorDiv(int64_t a, int64_t b) { return a / b - (a % b != 0 && a < 0); }

// Digits, and the number of them after the point (-1: no point).
struct Digits {
  int64_t value = 0;
  int places = -1;
};

std::optional<Digits> Read(std::string_view text) {
  if (text.size() > kMaxDigits) return std::nullopt;
  Digits out;
  for (const char c : text) {
    if (c == '.') {
      out.places = 0;
    } else if (c < '0' || c > '9') {
      return std::nullopt;
    } else {
      out.value = out.value * 10 + (c - '0');
      out.places += out.places >= 0;
    }
  }
  return out;
}

}  // namespace

std::optional<NumberSpec::WholeRange> NumberSpec::AsWholeRange() const {
  if (!integer || not_integer || pointed || !not_multiples.empty() || values || !excluded.empty() ||
      multiples.size() > 1)
    return std::nullopt;
  WholeRange out;
  if (!multiples.empty()) {
    const auto step = Scaled(multiples[0], 0);
    if (!step) return std::nullopt;
    out.step = *step;
  }
  // The whole numbers nearest to the bounds.
  for (const bool is_low : {true, false}) {
    const auto& bound = is_low ? low : high;
    if (!bound) continue;
    if (!bound->IsInteger()) return std::nullopt;
    const auto whole = Scaled(*bound, 0);
    if (!whole) return std::nullopt;
    is_low ? out.low = *whole + low_excluded : out.high = *whole - high_excluded;
  }
  return out;
}

std::optional<bool> NumberSpec::QuickCanBegin(std::string_view text) const {
  const auto range = AsWholeRange();
  if (!range) return QuickPiece(text);
  const bool negative = text.starts_with('-');
  const auto digits = Read(text.substr(negative));
  if (!digits || digits->places >= 0 || text.size() == static_cast<size_t>(negative))
    return std::nullopt;
  // Negative numbers are mirrored to positive ones.
  const auto mirrored = [&](const std::optional<int64_t>& bound) {
    return bound && negative ? std::optional(-*bound) : bound;
  };
  const auto least = mirrored(negative ? range->high : range->low);
  const auto most = mirrored(negative ? range->low : range->high);
  const bool zero = digits->value == 0;
  const size_t ends = zero ? 1 : static_cast<size_t>(kMaxDigits) - (text.size() - negative) + 1;
  for (size_t k = 0; k < ends; ++k) {
    const int64_t first = digits->value * kPowers[k], last = first + kPowers[k] - 1;
    const int64_t from = least ? std::max(first, *least) : first;
    const int64_t to = most ? std::min(last, *most) : last;
    if (from <= to && FloorDiv(to, range->step) * range->step >= from) return true;
    if (most && *most < first) return false;
  }
  if (zero && most && least) return false;
  return std::nullopt;
}

// Only bounds and real numbers: if an interval is left, so is a number with few digits.
std::optional<bool> NumberSpec::QuickPiece(std::string_view text) const {
  if (integer || not_integer || plain_integer || pointed || !multiples.empty() ||
      !not_multiples.empty() || values || !excluded.empty())
    return std::nullopt;
  const bool negative = text.starts_with('-');
  const auto digits = Read(text.substr(negative));
  if (!digits || text.size() == static_cast<size_t>(negative)) return std::nullopt;
  const auto& near = negative ? high : low;
  const auto& far = negative ? low : high;
  const int places = std::max(digits->places, 0);
  // At the last digit's place, or more places if the bounds have more.
  int finer = 0;
  for (const auto* bound : {&near, &far}) {
    if (*bound) finer = std::max(finer, -(*bound)->exponent - places);
  }
  if (finer > 6 || places + finer > kMaxDigits) return std::nullopt;
  int64_t low_end = INT64_MIN, high_end = INT64_MAX;
  for (const bool is_near : {true, false}) {
    const auto& bound = is_near ? near : far;
    if (!bound) continue;
    const auto end = Scaled(negative ? bound->Negated() : *bound, places + finer);
    if (!end) return std::nullopt;
    (is_near ? low_end : high_end) = *end;
  }
  if (low_end >= high_end) return std::nullopt;
  const bool whole = digits->places < 0 && digits->value != 0;
  const size_t longest = whole ? static_cast<size_t>(kMaxDigits) - text.size() : 0;
  for (size_t k = 0; k <= longest; ++k) {
    const __int128 unit = kPowers[static_cast<size_t>(finer)];
    const __int128 from = static_cast<__int128>(digits->value) * kPowers[k] * unit;
    const __int128 to = from + unit * kPowers[k];
    if (low_end < to && from < high_end) return true;
    if (high_end < from) break;
  }
  return std::nullopt;
}

}  // namespace aisp
