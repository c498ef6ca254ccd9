#include "constrain/number_spec.h"

#include <algorithm>
#include <iterator>

namespace aisp {
namespace {

constexpr int kLastExponent = 308;
// Parsers read numbers with an exponent or a point as doubles; this is the largest.
constexpr Decimal kGreatestDouble{17976931348623157, 292};
constexpr size_t kMaxDoubleDigits = 308;
constexpr int kMaxTries = 200;
constexpr size_t kShortList = 256;
constexpr size_t kExponentDigits = 3;

__int128 FloorDiv(__int128 a, __int128 b) {
  const __int128 q = a / b;
  return a % b != 0 && a < 0 ? q - 1 : q;
}

__int128 Gcd(__int128 a, __int128 b) {
  while (b != 0) {
    const __int128 t = a % b;
    a = b;
    b = t;
  }
  return a;
}

bool FitsDouble(const Decimal& value) {
  return Compare(value.Sign() < 0 ? value.Negated() : value, kGreatestDouble) <= 0;
}

// Number of digits from the first nonzero one, without the point.
int DigitsOf(std::string_view digits) {
  const size_t first = digits.find_first_not_of("0.");
  if (first == std::string_view::npos) return 0;
  const std::string_view rest = digits.substr(first);
  return static_cast<int>(rest.size()) - (rest.find('.') != std::string_view::npos);
}

void SortNumbers(std::vector<Decimal>* numbers) {
  std::sort(numbers->begin(), numbers->end());
  numbers->erase(std::unique(numbers->begin(), numbers->end()), numbers->end());
}

bool OnlyZeros(std::string_view digits) {
  return digits.find_first_not_of('0') == std::string_view::npos;
}

// No fraction, or one of zeros.
bool IsWholeText(std::string_view mantissa) {
  const size_t point = mantissa.find('.');
  return point == std::string_view::npos || OnlyZeros(mantissa.substr(point + 1));
}

// One nonzero digit before the point.
bool IsNormal(std::string_view mantissa) {
  const std::string_view digits = mantissa.substr(mantissa.starts_with('-') ? 1 : 0);
  return !digits.empty() && digits[0] != '0' && (digits.size() == 1 || digits[1] == '.');
}

// Parsers may read it as zero.
bool IsTiny(const Decimal& value) {
  const Decimal least = Decimal::Make(1, -kLastExponent);
  return value.mantissa != 0 && Compare(value.Sign() < 0 ? value.Negated() : value, least) < 0;
}

// Whether a value has a spelling whose mantissa begins with from * 10^-places.
bool HasMantissa(const Decimal& value, __int128 from, int places, bool integer, bool whole) {
  const Decimal size = value.Sign() < 0 ? value.Negated() : value;
  if (size.mantissa == 0 || !FitsDouble(size) || IsTiny(size)) return false;
  int x = size.exponent;
  for (__int128 rest = size.mantissa; rest >= 10; rest /= 10) ++x;
  const Decimal near = Decimal::Make(from, x - places);
  if (integer) return whole && x >= 0 && Compare(near, size) == 0;
  return Compare(near, size) <= 0 && size < Decimal::Make(from + 1, x - places);
}

}  // namespace

// [low, high), [low, high] or unbounded; within one sign, as far as `low` and `high` are set.
struct NumberSpec::Interval {
  std::optional<Decimal> low, high;
  bool low_excluded = false, high_excluded = false;
  std::optional<Decimal> multiple;
};

void NumberSpec::LimitLow(const Decimal& bound, bool excluded_bound) {
  const int c = low ? Compare(bound, *low) : 1;
  if (c > 0) {
    low = bound;
    low_excluded = excluded_bound;
  } else if (c == 0) {
    low_excluded = low_excluded || excluded_bound;
  }
}

void NumberSpec::LimitHigh(const Decimal& bound, bool excluded_bound) {
  const int c = high ? Compare(bound, *high) : -1;
  if (c < 0) {
    high = bound;
    high_excluded = excluded_bound;
  } else if (c == 0) {
    high_excluded = high_excluded || excluded_bound;
  }
}

void NumberSpec::LimitValues(std::vector<Decimal> allowed) {
  SortNumbers(&allowed);
  if (!values) {
    values = std::move(allowed);
  } else {
    std::erase_if(*values, [&](const Decimal& v) {
      return !std::binary_search(allowed.begin(), allowed.end(), v);
    });
  }
  if (values->empty()) return;
  // Bounds help to find where the members with a given prefix end.
  LimitLow(values->front(), false);
  LimitHigh(values->back(), false);
}

void NumberSpec::Exclude(const std::vector<Decimal>& numbers) {
  excluded.insert(excluded.end(), numbers.begin(), numbers.end());
  SortNumbers(&excluded);
}

void NumberSpec::KeepMembers() {
  if (!values) return;
  std::vector<Decimal> kept;
  std::copy_if(values->begin(), values->end(), std::back_inserter(kept),
               [this](const Decimal& v) { return Contains(v); });
  values = std::move(kept);
}

bool NumberSpec::IsUnbounded() const {
  return !not_integer && !pointed && !low && !high && multiples.empty() && not_multiples.empty() &&
         !values && excluded.empty();
}

bool NumberSpec::IsList() const {
  NumberSpec others = {};
  others.values = values;
  return values.has_value() && others == *this;
}

bool NumberSpec::Contains(const Decimal& value) const {
  if ((integer && !value.IsInteger()) || (not_integer && value.IsInteger())) return false;
  if (low) {
    const int c = Compare(value, *low);
    if (c < 0 || (c == 0 && low_excluded)) return false;
  }
  if (high) {
    const int c = Compare(value, *high);
    if (c > 0 || (c == 0 && high_excluded)) return false;
  }
  for (const Decimal& m : multiples) {
    if (!IsMultiple(value, m).value_or(false)) return false;
  }
  for (const Decimal& m : not_multiples) {
    if (IsMultiple(value, m).value_or(true)) return false;
  }
  if (values && !std::binary_search(values->begin(), values->end(), value)) return false;
  return !std::binary_search(excluded.begin(), excluded.end(), value);
}

// The least common multiple of all required multiples; nullopt without any, 0 when too large.
std::optional<Decimal> NumberSpec::Granularity() const {
  std::vector<Decimal> all = multiples;
  if (integer) all.push_back(Decimal::FromInt(1));
  if (all.empty()) return std::nullopt;
  int exponent = 0;
  for (const Decimal& m : all) exponent = std::min(exponent, m.exponent);
  __int128 lcm = 1;
  for (const Decimal& m : all) {
    const auto scaled = ScaleTo(m, exponent);
    if (!scaled) return Decimal{};
    const __int128 part = *scaled / Gcd(lcm, *scaled);
    if (part != 0 && lcm > (__int128{1} << 120) / part) return Decimal{};
    lcm *= part;
  }
  return Decimal::Make(lcm, exponent);
}

// Whether a member lies in `interval`.
bool NumberSpec::Meets(const Interval& interval) const {
  if (plain_integer && pointed) return false;
  // Only the bounds: value lists are long and are checked elsewhere.
  NumberSpec cut;
  cut.integer = integer;
  if (low) cut.LimitLow(*low, low_excluded);
  if (high) cut.LimitHigh(*high, high_excluded);
  if (interval.low) cut.LimitLow(*interval.low, interval.low_excluded);
  if (interval.high) cut.LimitHigh(*interval.high, interval.high_excluded);
  cut.multiples = multiples;
  if (interval.multiple) cut.multiples.push_back(*interval.multiple);
  const auto holds = [&](const Decimal& v) { return cut.Contains(v) && Contains(v); };
  if (values) {
    auto at =
        cut.low ? std::lower_bound(values->begin(), values->end(), *cut.low) : values->begin();
    for (; at != values->end() && !(cut.high && *cut.high < *at); ++at) {
      if (holds(*at)) return true;
    }
    return false;
  }
  if (cut.low && cut.high) {
    const int c = Compare(*cut.low, *cut.high);
    if (c > 0 || (c == 0 && (cut.low_excluded || cut.high_excluded))) return false;
    if (c == 0) return holds(*cut.low);
  }
  const auto step = cut.Granularity();
  if (!step) return true;  // an interval: exclusions are only single points of it
  if (step->mantissa == 0) return false;
  for (const Decimal& n : not_multiples) {
    if (IsMultiple(*step, n).value_or(true)) return false;
  }
  if (not_integer && step->IsInteger()) return false;
  // Follows the multiples from the existing end (zero if there is none).
  const bool upwards = cut.low.has_value() || !cut.high;
  const Decimal from = cut.low ? *cut.low : cut.high ? *cut.high : Decimal{};
  const int scale = std::min(from.exponent, step->exponent);
  const auto start = ScaleTo(from, scale), stride = ScaleTo(*step, scale);
  __int128 k = 0;
  if (start && stride) {
    k = upwards ? -FloorDiv(-*start, *stride) : FloorDiv(*start, *stride);
  } else if ((from.Sign() < 0 ? from.Negated() : from) < *step) {
    k = upwards ? from.Sign() > 0 : -(from.Sign() < 0);  // for an end that is tiny compared to the
                                                         // step
  } else {
    return true;  // the interval is many steps wide
  }
  const auto tries = kMaxTries + static_cast<int>(excluded.size());
  for (int i = 0; i < tries; ++i, k += upwards ? 1 : -1) {
    const Decimal candidate = Decimal::Make(k * step->mantissa, step->exponent);
    if (holds(candidate)) return true;
    if (upwards && cut.high && *cut.high < candidate) return false;
    if (!upwards && cut.low && candidate < *cut.low) return false;
  }
  return false;
}

bool NumberSpec::MeetsWritten(Interval interval, int last) const {
  // An interval without gaps has a member with few digits, unless it is tiny.
  constexpr int kDeep = -16;
  const auto deep = [](const Decimal& d) { return d.exponent < kDeep; };
  const bool digits_matter = not_integer || !not_multiples.empty() || !excluded.empty() || values ||
                             (low && deep(*low)) || (high && deep(*high)) ||
                             std::any_of(multiples.begin(), multiples.end(), deep);
  const auto step = Granularity();
  const bool short_enough = step && step->mantissa != 0 && step->exponent >= last;
  if (digits_matter && !integer && !short_enough) interval.multiple = Decimal::Make(1, last);
  return Meets(interval);
}

bool NumberSpec::NotEmpty() const { return Meets({}); }

bool NumberSpec::CanBeWritten() const {
  static constexpr std::string_view kFirst = "-0123456789";
  return std::any_of(kFirst.begin(), kFirst.end(),
                     [&](char c) { return CanBegin(std::string_view(&c, 1)); });
}

std::optional<std::vector<Decimal>> NumberSpec::Members(size_t limit) const {
  std::vector<Decimal> out;
  const auto add = [&](const Decimal& v) {
    if (Contains(v)) out.push_back(v);
  };
  if (values) {
    std::for_each(values->begin(), values->end(), add);
    return out;
  }
  if (!NotEmpty()) return out;
  const auto step = Granularity();
  if (!low || !high) return std::nullopt;
  if (Compare(*low, *high) == 0) {
    add(*low);
    return out;
  }
  if (!step || step->mantissa == 0) return std::nullopt;
  const int scale = std::min({low->exponent, high->exponent, step->exponent});
  const auto a = ScaleTo(*low, scale), b = ScaleTo(*high, scale), s = ScaleTo(*step, scale);
  if (!a || !b || !s || (*b - *a) / *s > static_cast<__int128>(limit)) return std::nullopt;
  for (__int128 k = -FloorDiv(-*a, *s); k * *s <= *b; ++k)
    add(Decimal::Make(k * step->mantissa, step->exponent));
  return out;
}

NumberSyntax NextSyntax(NumberSyntax state, char c) {
  using S = NumberSyntax;
  const bool digit = c >= '0' && c <= '9';
  switch (state) {
    case S::kStart:
      if (c == '-') return S::kMinus;
      [[fallthrough]];
    case S::kMinus:
      return c == '0' ? S::kZero : digit ? S::kInteger : S::kInvalid;
    case S::kInteger:
      if (digit) return S::kInteger;
      [[fallthrough]];
    case S::kZero:
      return c == '.' ? S::kPoint : (c | 32) == 'e' ? S::kE : S::kInvalid;
    case S::kPoint:
      return digit ? S::kFraction : S::kInvalid;
    case S::kFraction:
      return digit ? S::kFraction : (c | 32) == 'e' ? S::kE : S::kInvalid;
    case S::kE:
      if (c == '+' || c == '-') return S::kSign;
      [[fallthrough]];
    case S::kSign:
      return digit ? S::kExponent : S::kInvalid;
    case S::kExponent:
      return digit ? S::kExponent2 : S::kInvalid;
    case S::kExponent2:
      return digit ? S::kExponent3 : S::kInvalid;
    case S::kExponent3:
    case S::kInvalid:
      break;
  }
  return S::kInvalid;
}

bool NumberSpec::CanBegin(std::string_view text) const {
  if (plain_integer && text.find_first_of(".eE") != std::string_view::npos) return false;
  const bool unbounded = IsUnbounded();
  if (unbounded && !integer) return true;
  const size_t e = text.find_first_of("eE");
  if (e != std::string_view::npos) return !plain_integer && ExponentCanBegin(text, e);
  if (unbounded) {
    const size_t point = text.find('.');
    return point == std::string_view::npos || (point <= kMaxDoubleDigits && IsWholeText(text));
  }
  if (const auto quick = QuickCanBegin(text)) return *quick;
  return PlainCanBegin(text) || (!plain_integer && MantissaCanBegin(text));
}

bool NumberSpec::PlainCanBegin(std::string_view text) const {
  const bool negative = !text.empty() && text[0] == '-';
  std::string_view digits = text.substr(negative ? 1 : 0);
  int last = -kMaxDecimalDigits;  // the last decimal place that may be written
  auto meets = [&](const Decimal& low_end, const std::optional<Decimal>& high_end, bool closed) {
    Interval interval{low_end, high_end, false, !closed, {}};
    if (negative) {
      interval.low.reset();
      if (high_end) interval.low = high_end->Negated();
      interval.high = low_end.Negated();
      interval.low_excluded = !closed;
      interval.high_excluded = false;
    }
    return MeetsWritten(interval, last);
  };
  if (digits.empty()) return text.empty() ? Meets({}) : meets(Decimal{}, std::nullopt, true);
  const size_t point = digits.find('.');
  const auto value = Decimal::Parse(digits);
  if (!value) return false;
  if (point != std::string_view::npos) {
    const auto places = static_cast<int>(digits.size() - point - 1);
    if (places > kMaxDecimalDigits) return false;
    // Whole numbers have only zeros after the point.
    const int scale = std::min(-places, value->exponent);
    const auto scaled = ScaleTo(*value, scale);
    const auto unit = ScaleTo(Decimal::Make(1, -places), scale);
    if (!scaled || !unit) return false;
    last = std::max(last, -places - (kMaxDecimalDigits - DigitsOf(digits)));
    return meets(*value, Decimal::Make(*scaled + *unit, scale), false);
  }
  if (digits == "0") return meets(Decimal{}, Decimal::FromInt(1), false);
  // d, d?, d??, ...: [d * 10^k, (d + 1) * 10^k)
  const auto whole = ScaleTo(*value, 0);
  if (!whole) return false;
  for (int k = 0; k + static_cast<int>(digits.size()) < kMaxDecimalDigits; ++k) {
    const Decimal from = Decimal::Make(*whole, k), to = Decimal::Make(*whole + 1, k);
    last = static_cast<int>(digits.size()) + k - kMaxDecimalDigits;
    if (meets(from, to, false)) return true;
    // Nothing follows beyond the far bound.
    if (!negative && high && *high < from) return false;
    if (negative && low && from.Negated() < *low) return false;
  }
  return false;
}

// `text`: one nonzero digit, perhaps a fraction; more digits and an exponent may follow.
bool NumberSpec::MantissaCanBegin(std::string_view text) const {
  if (!IsNormal(text)) return false;
  const bool negative = text[0] == '-';
  const std::string_view digits = text.substr(negative ? 1 : 0);
  const int places = digits.size() > 2 ? static_cast<int>(digits.size()) - 2 : 0;
  const bool whole = places == 0 || OnlyZeros(digits.substr(2));
  if (integer && !whole) return false;
  const auto base = Decimal::Parse(digits);
  const auto from = base ? ScaleTo(*base, -places) : std::nullopt;
  if (!from) return false;
  if (values && values->size() <= kShortList) {
    return std::any_of(values->begin(), values->end(), [&](const Decimal& v) {
      return (v.Sign() < 0) == negative && Contains(v) &&
             HasMantissa(v, *from, places, integer, whole);
    });
  }
  // [from, from + 1) * 10^(x - places) for every exponent x; for whole numbers its beginning.
  const auto step = Granularity();
  auto meets = [&](int x) {
    const Decimal near = Decimal::Make(*from, x - places);
    if (!FitsDouble(near)) return false;
    // A multiple that far below has more digits than can be written.
    const bool alone = integer || (step && x - step->exponent >= kMaxDecimalDigits);
    if (alone) return Contains(negative ? near.Negated() : near);
    Decimal far = Decimal::Make(*from + 1, x - places);
    const bool open = FitsDouble(far);
    if (!open) far = kGreatestDouble;
    const int last = x + 1 - kMaxDecimalDigits;
    if (negative) return MeetsWritten({far.Negated(), near.Negated(), open, false, {}}, last);
    return MeetsWritten({near, far, false, open, {}}, last);
  };
  for (int x = 0; x <= kLastExponent; ++x) {
    if (meets(x)) return true;
    const Decimal near = Decimal::Make(*from, x - places);
    if (negative ? low && near.Negated() < *low : high && *high < near) break;
  }
  for (int x = -1; x >= -kLastExponent && !integer; --x) {
    if (meets(x)) return true;
    const Decimal far = Decimal::Make(*from + 1, x - places);
    if (negative ? high && *high < far.Negated() : low && far < *low) break;
    if (step && far < *step) break;  // no multiple except 0 is that small
  }
  return false;
}

// Whether these digits may precede an exponent: normalised ones, or the beginning of a plain
// number. So an exponent cannot bring digits back that have left the bounds.
bool NumberSpec::MayBeMantissa(std::string_view text) const {
  if (IsNormal(text)) return true;
  if (IsUnbounded()) return IsWholeText(text);
  const auto quick = QuickCanBegin(text);
  return quick ? *quick : PlainCanBegin(text);
}

// An exponent never makes a whole number smaller, and follows no fraction: after "4.5" a model
// would have to make it a huge number.
bool NumberSpec::MayHaveExponent(std::string_view mantissa, const Decimal& base, int x) const {
  if (integer && (x < 0 || !IsWholeText(mantissa))) return false;
  const Decimal value = Decimal::Make(base.mantissa, base.exponent + x);
  return Contains(value) && FitsDouble(value) && !IsTiny(value);
}

bool NumberSpec::ExponentCanBegin(std::string_view text, size_t e) const {
  const std::string_view mantissa = text.substr(0, e);
  const auto base = Decimal::Parse(mantissa);
  if (!base) return false;
  std::string_view rest = text.substr(e + 1);
  const bool sign_open = rest.empty();
  const bool minus = !sign_open && rest[0] == '-';
  if (!sign_open && (minus || rest[0] == '+')) rest.remove_prefix(1);
  if (rest.size() > kExponentDigits || (minus && integer)) return false;
  // What the digits may become: themselves, or with one or two more digits.
  const auto may = [&](int sign) {
    int from = 0;
    for (const char c : rest) from = from * 10 + (c - '0');
    int count = 1;
    for (size_t size = rest.size(); size <= kExponentDigits; ++size, from *= 10, count *= 10) {
      if (from == 0 && size < kExponentDigits) continue;  // the last size covers the others
      for (int x = from; x < from + count && x <= kLastExponent; ++x) {
        if (MayHaveExponent(mantissa, *base, sign * x)) return MayBeMantissa(mantissa);
      }
    }
    return false;
  };
  return (!minus && may(1)) || ((minus || sign_open) && !integer && may(-1));
}

bool NumberSpec::Accepts(std::string_view text) const {
  const bool plain = text.find_first_of(".eE") == std::string_view::npos;
  if (plain ? pointed : plain_integer) return false;
  const bool unbounded = IsUnbounded();
  if (unbounded && !integer) return true;
  const size_t e = text.find_first_of("eE");
  if (unbounded && e == std::string_view::npos) {
    const size_t point = text.find('.');
    return point == std::string_view::npos || (point <= kMaxDoubleDigits && IsWholeText(text));
  }
  const auto value = Decimal::Parse(text);
  if (!value || !Contains(*value)) return false;
  if (e == std::string_view::npos) return true;
  const std::string_view mantissa = text.substr(0, e);
  const auto base = Decimal::Parse(mantissa);
  if (integer && text[e + 1] == '-') return false;
  const auto exponent = Decimal::Parse(text.substr(e + 1 + (text[e + 1] == '+')));
  const auto x = exponent ? ScaleTo(*exponent, 0) : std::nullopt;
  return base && x && *x >= -kLastExponent && *x <= kLastExponent &&
         MayHaveExponent(mantissa, *base, static_cast<int>(*x)) && MayBeMantissa(mantissa);
}

}  // namespace aisp
