#include "text/unicode.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "text/utf8.h"

namespace aisp {
namespace {

struct Decomposition {
  char32_t from, first, second;  // second is 0 for a singleton
};
struct Composition {
  char32_t first, second, to;
};
struct CaseMapping {
  char32_t from;
  char32_t to[3];  // ends at the first 0
};

#include "text/unicode_tables.inc"

// The value of the range that holds `c`.
template <size_t N>
uint8_t RangeValue(const uint32_t (&ranges)[N], char32_t c, uint8_t before_first) {
  const auto* it =
      std::upper_bound(std::begin(ranges), std::end(ranges), static_cast<uint32_t>(c << 8 | 0xFF));
  return it == std::begin(ranges) ? before_first : static_cast<uint8_t>(*(it - 1));
}

uint8_t CombiningClass(char32_t c) { return c < 0x300 ? 0 : RangeValue(kCombiningRanges, c, 0); }

template <size_t N>
void AppendCase(const CaseMapping (&table)[N], char32_t c, std::u32string* out) {
  const auto* it = std::lower_bound(std::begin(table), std::end(table), c,
                                    [](const CaseMapping& m, char32_t v) { return m.from < v; });
  if (it == std::end(table) || it->from != c) {
    out->push_back(c);
    return;
  }
  for (const char32_t mapped : it->to) {
    if (mapped != 0) out->push_back(mapped);
  }
}

// Hangul syllables are composed by arithmetic (Unicode 14, section 3.12).
constexpr char32_t kSBase = 0xAC00, kLBase = 0x1100, kVBase = 0x1161, kTBase = 0x11A7;
constexpr char32_t kLCount = 19, kVCount = 21, kTCount = 28, kSCount = kLCount * kVCount * kTCount;

void AppendDecomposed(char32_t c, std::u32string* out) {
  if (c >= kSBase && c < kSBase + kSCount) {
    const char32_t s = c - kSBase;
    out->push_back(kLBase + s / (kVCount * kTCount));
    out->push_back(kVBase + s % (kVCount * kTCount) / kTCount);
    if (s % kTCount != 0) out->push_back(kTBase + s % kTCount);
    return;
  }
  const auto* it = std::lower_bound(std::begin(kDecompositions), std::end(kDecompositions), c,
                                    [](const Decomposition& d, char32_t v) { return d.from < v; });
  if (c < 0xC0 || it == std::end(kDecompositions) || it->from != c) {
    out->push_back(c);
    return;
  }
  AppendDecomposed(it->first, out);
  if (it->second != 0) out->push_back(it->second);
}

std::u32string Decompose(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) AppendDecomposed(DecodeUtf8(text, &i), &out);
  // Canonical ordering: each run of non-starters is sorted, stably, by combining class.
  for (size_t i = 0; i < out.size();) {
    if (CombiningClass(out[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < out.size() && CombiningClass(out[end]) != 0) ++end;
    std::stable_sort(out.begin() + static_cast<ptrdiff_t>(i),
                     out.begin() + static_cast<ptrdiff_t>(end),
                     [](char32_t a, char32_t b) { return CombiningClass(a) < CombiningClass(b); });
    i = end;
  }
  return out;
}

// The primary composite of a pair, or 0.
char32_t Compose(char32_t a, char32_t b) {
  if (a >= kLBase && a < kLBase + kLCount && b >= kVBase && b < kVBase + kVCount) {
    return kSBase + ((a - kLBase) * kVCount + (b - kVBase)) * kTCount;
  }
  if (a >= kSBase && a < kSBase + kSCount && (a - kSBase) % kTCount == 0 && b > kTBase &&
      b < kTBase + kTCount) {
    return a + (b - kTBase);
  }
  const auto* it = std::lower_bound(
      std::begin(kCompositions), std::end(kCompositions), std::pair(a, b),
      [](const Composition& c, const auto& v) { return std::pair(c.first, c.second) < v; });
  return it != std::end(kCompositions) && it->first == a && it->second == b ? it->to : 0;
}

}  // namespace

Category CategoryOf(char32_t c) { return static_cast<Category>(RangeValue(kCategoryRanges, c, 0)); }

std::vector<std::pair<uint32_t, uint32_t>> RangesOf(Category category) {
  constexpr uint32_t kEnd = 0x110000;
  constexpr size_t kCount = std::size(kCategoryRanges);
  std::vector<std::pair<uint32_t, uint32_t>> out;
  for (size_t i = 0; i < kCount; ++i) {
    if (static_cast<Category>(kCategoryRanges[i] & 0xFF) != category) continue;
    const uint32_t next = i + 1 < kCount ? kCategoryRanges[i + 1] >> 8 : kEnd;
    out.emplace_back(kCategoryRanges[i] >> 8, next - 1);
  }
  return out;
}

bool IsWhitespace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x9 && c <= 0xD);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsWord(char32_t c) {
  const Category category = CategoryOf(c);
  return (category >= Category::kLl && category <= Category::kNl) || category == Category::kPc;
}

void AppendUpper(char32_t c, std::u32string* out) { AppendCase(kUpper, c, out); }
void AppendLower(char32_t c, std::u32string* out) { AppendCase(kLower, c, out); }

std::string NormalizeNfd(std::string_view valid_utf8) { return ToUtf8(Decompose(valid_utf8)); }

std::string NormalizeNfc(std::string_view valid_utf8) {
  // NFC changes nothing below U+0300, and those characters have lead bytes below 0xCC.
  if (std::all_of(valid_utf8.begin(), valid_utf8.end(),
                  [](char c) { return static_cast<unsigned char>(c) < 0xCC; })) {
    return std::string(valid_utf8);
  }
  const std::u32string text = Decompose(valid_utf8);
  std::u32string out;
  out.reserve(text.size());
  size_t starter = std::u32string::npos;  // index in `out` of the last starter
  uint8_t last_class = 0;  // combining class of the last character kept after the starter
  for (const char32_t c : text) {
    const uint8_t combining = CombiningClass(c);
    const bool adjacent = starter != std::u32string::npos && starter + 1 == out.size();
    if (starter != std::u32string::npos && (adjacent || last_class < combining)) {
      if (const char32_t composed = Compose(out[starter], c); composed != 0) {
        out[starter] = composed;
        continue;
      }
    }
    if (combining == 0) starter = out.size();
    last_class = combining;
    out.push_back(c);
  }
  return ToUtf8(out);
}

}  // namespace aisp
