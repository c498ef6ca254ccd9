// CharSet: a set of Unicode code points as sorted, disjoint, non-adjacent ranges. Never contains
// surrogates, which a JSON text cannot hold. Value type: any thread.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace aisp {

inline constexpr uint32_t kMaxCodePoint = 0x10FFFF;

class CharSet {
 public:
  using Range = std::pair<uint32_t, uint32_t>;  // inclusive

  CharSet() = default;
  static CharSet Of(std::vector<Range> ranges);
  static CharSet One(uint32_t c) { return Of({{c, c}}); }
  static CharSet Any() { return Of({{0, kMaxCodePoint}}); }

  bool empty() const { return ranges_.empty(); }
  bool Contains(uint32_t c) const;
  uint64_t Size() const;
  CharSet Union(const CharSet& other) const;
  CharSet Intersect(const CharSet& other) const;
  CharSet Complement() const;
  const std::vector<Range>& ranges() const { return ranges_; }
  friend auto operator<=>(const CharSet&, const CharSet&) = default;

 private:
  std::vector<Range> ranges_;
};

}  // namespace aisp
