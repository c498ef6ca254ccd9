// Unique numbers: whether the number being read can still become one that was not read before.
#include <algorithm>
#include <optional>

#include "constrain/json_machine.h"

namespace aisp {
namespace {

bool Takes(const NumberSpec& spec, const std::string& text) {
  return (spec.IsUnbounded() && !spec.integer) || spec.Accepts(text);
}

// False only when no spelling of the number (a NormalNumber) begins with `text`, because its
// leading digits differ.
bool MaySpell(std::string_view text, std::string_view number) {
  const auto digits_of = [](std::string_view from, std::string* out) {
    for (const char c : from.substr(0, from.find_first_of("eE"))) {
      if (c != '-' && c != '.' && (c != '0' || !out->empty())) out->push_back(c);
    }
  };
  if (text.empty()) return true;
  if (text.starts_with('-') != number.starts_with('-') && number != "0") return false;
  std::string begun, whole;
  digits_of(text, &begun);
  digits_of(number, &whole);
  // Zeros may follow the digits of a number.
  if (begun.size() > whole.size()) whole.resize(begun.size(), '0');
  return whole.starts_with(begun);
}

// Whether a number without limits can become one not in `taken`. Only in an exponent are few
// numbers left.
bool IsFreeAndNew(const std::string& text, NumberSyntax syntax,
                  const std::vector<const ReadValue*>& taken) {
  if (syntax < NumberSyntax::kE) return true;
  const std::string_view mantissa = std::string_view(text).substr(0, text.find_first_of("eE"));
  const bool zero = mantissa.find_first_of("123456789") == std::string_view::npos;
  const auto is_new = [&](const std::string& number) {
    const std::string normal = NormalNumber(number);
    return std::none_of(taken.begin(), taken.end(), [&](const ReadValue* value) {
      return value->kind == ReadValue::Kind::kNumber && value->text == normal;
    });
  };
  if (zero) return is_new("0");
  if (syntax < NumberSyntax::kExponent || is_new(text)) return true;
  for (char digit = '0'; digit <= '9' && syntax < NumberSyntax::kExponent3; ++digit) {
    if (is_new(text + digit)) return true;
  }
  return false;
}

// Whole numbers of a range that start with given plain digits, shortest first.
class WholeNumbers {
 public:
  // nullopt: the numbers are not such a range, or `text` is not such a prefix.
  static std::optional<WholeNumbers> Of(const NumberSpec& spec, std::string_view text) {
    constexpr size_t kMaxDigits = 15;
    const auto range = spec.AsWholeRange();
    const std::string_view digits = text.substr(text.starts_with('-'));
    if (!range || text.size() > kMaxDigits ||
        digits.find_first_not_of("0123456789") != std::string_view::npos)
      return std::nullopt;
    return WholeNumbers(*range, text.starts_with('-'), digits);
  }

  bool Endless() const {
    if (digits_.empty()) return !range_.low || (!negative_ && !range_.high);
    return digits_ != "0" && !(negative_ ? range_.low : range_.high);
  }
  // Whether `is_new` holds for one of them. Not for infinite ranges.
  template <typename IsNew>
  bool Any(const IsNew& is_new) const {
    if (digits_.empty()) return AnyOf(*range_.low, negative_ ? 0 : *range_.high, is_new);
    int64_t first = 0, size = 1;
    for (const char c : digits_) first = first * 10 + (c - '0');
    do {
      const int64_t last = first + size - 1;
      if (negative_ ? AnyOf(-last, -first, is_new) : AnyOf(first, last, is_new)) return true;
      first *= 10;
      size *= 10;
    } while (first > 0 && (negative_ ? -first >= *range_.low : first <= *range_.high));
    return false;
  }

 private:
  WholeNumbers(const NumberSpec::WholeRange& range, bool negative, std::string_view digits)
      : range_(range), negative_(negative), digits_(digits) {}

  template <typename IsNew>
  bool AnyOf(int64_t from, int64_t to, const IsNew& is_new) const {
    if (range_.low) from = std::max(from, *range_.low);
    if (range_.high) to = std::min(to, *range_.high);
    const int64_t over = from % range_.step;
    if (over != 0) from += over > 0 ? range_.step - over : -over;
    for (; from <= to; from += range_.step) {
      if (is_new(from)) return true;
    }
    return false;
  }

  NumberSpec::WholeRange range_;
  bool negative_;
  std::string_view digits_;
};

// For numbers of one alternative: whether one is left for which `is_new` holds, without comparing
// all earlier ones.
template <typename IsNew>
std::optional<bool> HasNewOne(const NumberSpec& spec, std::string_view text, const IsNew& is_new) {
  if (const auto wholes = WholeNumbers::Of(spec, text))
    return wholes->Endless() || wholes->Any(is_new);
  // An interval has infinitely many numbers.
  if (!spec.integer && spec.QuickCanBegin(text).value_or(false)) return true;
  return std::nullopt;
}

}  // namespace

bool JsonMachine::HasFreshNumber(const JsonState& state, uint16_t base, Arena* arena) {
  const Level& level = *state.top;
  const Scalar& scalar = *state.scalar;
  const std::string text = TextOf(scalar.text);
  const bool is_item = level.depth == base;
  Taken own;
  const Taken* inside = is_item ? nullptr : &TakenAt(level, base, &own);
  const auto is_new = [&](int64_t number) {
    if (is_item) return !HoldsWhole(level.taken, number);
    return !std::binary_search(inside->wholes.begin(), inside->wholes.end(), number);
  };
  bool told = true;
  for (size_t i = 0; i < scalar.num_alts; ++i) {
    const auto answer = HasNewOne(*scalar.alts[i].number, text, is_new);
    if (answer == true) return true;
    told = told && answer.has_value();
  }
  // All were used: no new item remains.
  const auto wants_new = [&](const Slot& slot) { return Array(level.alts[slot.alt]).unique; };
  if (told && is_item && std::all_of(level.slots, level.slots + level.num_slots, wants_new))
    return false;
  if (is_item) inside = &TakenAt(level, base, &own);
  return HasFreshNumberAmong(state, text, *inside, base, arena);
}

bool JsonMachine::HasFreshNumberAmong(const JsonState& state, const std::string& text,
                                      const Taken& all, uint16_t base, Arena* arena) {
  const Level& level = *state.top;
  const Scalar& scalar = *state.scalar;
  std::vector<const ReadValue*> values = all.values;
  // Usually the number as it stands is new.
  if (aisp::IsWhole(scalar.syntax)) {
    const ReadValue& own = *MakeScalar(ReadValue::Kind::kNumber, NormalNumber(text), arena);
    const bool taken = std::any_of(values.begin(), values.end(),
                                   [&](const ReadValue* value) { return Equal(*value, own); });
    if (!taken && std::any_of(scalar.alts, scalar.alts + scalar.num_alts,
                              [&](const ScalarAlt& a) { return Takes(*a.number, text); }))
      return true;
  }
  std::erase_if(values, [&](const ReadValue* value) {
    return value->kind != ReadValue::Kind::kNumber || !MaySpell(text, value->text);
  });
  std::vector<Decimal> taken;
  for (const ReadValue* value : values) {
    const auto number = Decimal::Parse(value->text);
    if (number) taken.push_back(*number);
  }
  if (taken.empty()) return true;
  for (size_t i = 0; i < scalar.num_alts; ++i) {
    const NumberSpec& spec = *scalar.alts[i].number;
    if (spec.IsUnbounded() && (spec.integer ? scalar.syntax == NumberSyntax::kInteger
                                            : IsFreeAndNew(text, scalar.syntax, values)))
      return true;
    if (spec.IsUnbounded() && !spec.integer) continue;
    NumberSpec others = spec;
    others.Exclude(taken);
    if (others.CanBegin(text)) return true;
  }
  for (const ReadValue* value : values) {
    const auto number = Decimal::Parse(value->text);
    for (size_t i = 0; number && i < scalar.num_alts; ++i) {
      NumberSpec one = *scalar.alts[i].number;
      const bool free = one.IsUnbounded() && !one.integer;
      one.LimitValues({*number});
      if ((free || one.CanBegin(text)) &&
          IsFreshWith(level, scalar.alts[i].slots, *value, base, arena))
        return true;
    }
  }
  return false;
}

}  // namespace aisp
