#include "constrain/unicode_property.h"

#include <array>
#include <utility>
#include <vector>

#include "text/unicode.h"

namespace aisp {

std::optional<CharSet> UnicodeProperty(std::string_view name) {
  static constexpr std::array<std::string_view, 30> kShort = {
      "Cn", "Cc", "Cf", "Co", "Cs", "Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl",
      "No", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl", "Zp", "Zs"};
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 16> kLong = {{
      {"Letter", "L"},
      {"Mark", "M"},
      {"Number", "N"},
      {"Punctuation", "P"},
      {"Symbol", "S"},
      {"Separator", "Z"},
      {"Other", "C"},
      {"Uppercase_Letter", "Lu"},
      {"Lowercase_Letter", "Ll"},
      {"Titlecase_Letter", "Lt"},
      {"Modifier_Letter", "Lm"},
      {"Other_Letter", "Lo"},
      {"Decimal_Number", "Nd"},
      {"digit", "Nd"},
      {"punct", "P"},
      {"Letter_Number", "Nl"},
  }};
  for (const std::string_view prefix : {"General_Category=", "gc="}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  if (name == "Any") return CharSet::Any();
  if (name == "ASCII") return CharSet::Of({{0, 127}});
  for (const auto& [full, brief] : kLong) {
    if (name == full) name = brief;
  }
  std::array<bool, kShort.size()> wanted = {};
  bool known = false;
  for (size_t i = 0; i < kShort.size(); ++i) {
    wanted[i] = name == kShort[i] || (name.size() == 1 && kShort[i][0] == name[0]);
    known = known || wanted[i];
  }
  if (!known) return std::nullopt;
  std::vector<CharSet::Range> ranges;
  for (size_t i = 0; i < kShort.size(); ++i) {
    if (!wanted[i]) continue;
    const auto own = RangesOf(static_cast<Category>(i));
    ranges.insert(ranges.end(), own.begin(), own.end());
  }
  return CharSet::Of(std::move(ranges));
}

}  // namespace aisp
