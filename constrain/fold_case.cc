#include "constrain/fold_case.h"

#include <algorithm>
#include <map>
#include <vector>

#include "text/unicode.h"

namespace aisp {
namespace {

using Class = std::vector<uint32_t>;

// The single letter that a case mapping gives; `c` if there is none or several.
uint32_t Mapped(uint32_t c, void (*append)(char32_t, std::u32string*)) {
  std::u32string out;
  append(c, &out);
  return out.size() == 1 ? out[0] : c;
}

// All classes of two or more letters. Based on the simple fold of capitals, so long s joins s; the
// dotless i has a capital but folds to itself.
std::vector<Class> MakeClasses() {
  constexpr uint32_t kDotlessI = 0x131, kDottedCapitalI = 0x130, kIotaBelow = 0x345;
  std::vector<std::pair<uint32_t, uint32_t>> ranges = {{kIotaBelow, kIotaBelow}};
  for (const Category category :
       {Category::kLu, Category::kLl, Category::kLt, Category::kNl, Category::kSo}) {
    const auto own = RangesOf(category);
    ranges.insert(ranges.end(), own.begin(), own.end());
  }
  std::map<uint32_t, Class> by_fold;
  for (const auto& [lo, hi] : ranges) {
    for (uint32_t c = lo; c <= hi; ++c) {
      if (c == kDotlessI || c == kDottedCapitalI) continue;
      const uint32_t upper = Mapped(Mapped(c, AppendLower), AppendUpper);
      by_fold[Mapped(upper, AppendLower)].push_back(c);
    }
  }
  std::vector<Class> out;
  for (auto& [fold, letters] : by_fold) {
    if (letters.size() > 1) out.push_back(std::move(letters));
  }
  return out;
}

}  // namespace

CharSet FoldCase(const CharSet& set) {
  static const std::vector<Class> kClasses = MakeClasses();
  std::vector<CharSet::Range> ranges = set.ranges();
  for (const Class& letters : kClasses) {
    if (std::none_of(letters.begin(), letters.end(), [&](uint32_t c) { return set.Contains(c); }))
      continue;
    for (const uint32_t c : letters) ranges.emplace_back(c, c);
  }
  return CharSet::Of(std::move(ranges));
}

}  // namespace aisp
