// The parts of the Unicode character database (version 14) that tokenizers and templates need. Pure
// functions over constant tables: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace aisp {

// General categories, in the order of the generated table.
enum class Category : uint8_t {
  kCn,
  kCc,
  kCf,
  kCo,
  kCs,
  kLl,
  kLm,
  kLo,
  kLt,
  kLu,
  kMc,
  kMe,
  kMn,
  kNd,
  kNl,
  kNo,
  kPc,
  kPd,
  kPe,
  kPf,
  kPi,
  kPo,
  kPs,
  kSc,
  kSk,
  kSm,
  kSo,
  kZl,
  kZp,
  kZs,
};

Category CategoryOf(char32_t c);
// The code points of a category as sorted inclusive ranges. Time is linear in the table's size.
std::vector<std::pair<uint32_t, uint32_t>> RangesOf(Category category);
inline bool IsLetter(char32_t c) {
  return CategoryOf(c) >= Category::kLl && CategoryOf(c) <= Category::kLu;
}
inline bool IsNumber(char32_t c) {
  return CategoryOf(c) >= Category::kNd && CategoryOf(c) <= Category::kNo;
}
inline bool IsPunctuation(char32_t c) {
  return CategoryOf(c) >= Category::kPc && CategoryOf(c) <= Category::kPs;
}
// The White_Space property.
bool IsWhitespace(char32_t c);
// Whether regular expressions' \w matches it: letters, marks, digits, connectors.
bool IsWord(char32_t c);

// Appends the full case mapping of a character (up to three characters) to *out.
void AppendUpper(char32_t c, std::u32string* out);
void AppendLower(char32_t c, std::u32string* out);

// Normalisation forms C and D (UAX #15) of valid UTF-8.
std::string NormalizeNfc(std::string_view valid_utf8);
std::string NormalizeNfd(std::string_view valid_utf8);

}  // namespace aisp
