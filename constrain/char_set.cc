#include "constrain/char_set.h"

#include <algorithm>

namespace aisp {

CharSet CharSet::Of(std::vector<Range> ranges) {
  // Removes surrogates.
  std::vector<Range> valid;
  for (const auto& [lo, hi] : ranges) {
    if (lo < 0xD800) valid.emplace_back(lo, std::min(hi, 0xD7FFu));
    if (hi > 0xDFFF) valid.emplace_back(std::max(lo, 0xE000u), std::min(hi, kMaxCodePoint));
  }
  std::sort(valid.begin(), valid.end());
  CharSet out;
  for (const auto& [lo, hi] : valid) {
    if (lo > hi) continue;
    if (!out.ranges_.empty() && lo <= out.ranges_.back().second + 1) {
      out.ranges_.back().second = std::max(out.ranges_.back().second, hi);
    } else {
      out.ranges_.emplace_back(lo, hi);
    }
  }
  return out;
}

bool CharSet::Contains(uint32_t c) const {
  const auto it = std::upper_bound(ranges_.begin(), ranges_.end(), Range{c, UINT32_MAX});
  return it != ranges_.begin() && std::prev(it)->second >= c;
}

uint64_t CharSet::Size() const {
  uint64_t size = 0;
  for (const auto& [lo, hi] : ranges_) size += hi - lo + 1;
  return size;
}

CharSet CharSet::Union(const CharSet& other) const {
  std::vector<Range> all = ranges_;
  all.insert(all.end(), other.ranges_.begin(), other.ranges_.end());
  return Of(std::move(all));
}

CharSet CharSet::Intersect(const CharSet& other) const {
  std::vector<Range> out;
  for (size_t i = 0, j = 0; i < ranges_.size() && j < other.ranges_.size();) {
    const Range &a = ranges_[i], &b = other.ranges_[j];
    if (std::max(a.first, b.first) <= std::min(a.second, b.second)) {
      out.emplace_back(std::max(a.first, b.first), std::min(a.second, b.second));
    }
    a.second < b.second ? ++i : ++j;
  }
  return Of(std::move(out));
}

CharSet CharSet::Complement() const {
  std::vector<Range> out;
  uint32_t next = 0;
  for (const auto& [lo, hi] : ranges_) {
    if (lo > next) out.emplace_back(next, lo - 1);
    next = hi + 1;
  }
  if (next <= kMaxCodePoint) out.emplace_back(next, kMaxCodePoint);
  return Of(std::move(out));
}

}  // namespace aisp
