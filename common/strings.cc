#include "common/strings.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

namespace aisp {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";

char LowerAscii(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

struct ByteUnit {
  std::string_view name;
  uint64_t bytes;
};
constexpr ByteUnit kByteUnits[] = {
    {"", 1},
    {"B", 1},
    {"KiB", 1ULL << 10},
    {"MiB", 1ULL << 20},
    {"GiB", 1ULL << 30},
    {"TiB", 1ULL << 40},
    {"KB", 1'000},
    {"MB", 1'000'000},
    {"GB", 1'000'000'000},
    {"TB", 1'000'000'000'000},
};

// What may follow a UTF-8 lead byte: the number of bytes and the range of the first one (Unicode,
// table 3-7).
struct LeadByte {
  uint8_t continuation_bytes;
  uint8_t second_min;
  uint8_t second_max;
};

// continuation_bytes is 0 for a byte that cannot lead a multi-byte sequence.
constexpr LeadByte ClassifyLead(uint8_t lead) {
  if (lead >= 0xC2 && lead <= 0xDF) return {1, 0x80, 0xBF};
  if (lead == 0xE0) return {2, 0xA0, 0xBF};
  if (lead == 0xED) return {2, 0x80, 0x9F};
  if (lead >= 0xE1 && lead <= 0xEF) return {2, 0x80, 0xBF};
  if (lead == 0xF0) return {3, 0x90, 0xBF};
  if (lead >= 0xF1 && lead <= 0xF3) return {3, 0x80, 0xBF};
  if (lead == 0xF4) return {3, 0x80, 0x8F};
  return {0, 0, 0};
}

// Length in bytes of the well-formed sequence at `at`, 0 if there is none.
size_t SequenceLength(std::string_view bytes, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  if (byte(at) < 0x80) return 1;
  const LeadByte lead = ClassifyLead(byte(at));
  if (lead.continuation_bytes == 0 || at + lead.continuation_bytes >= bytes.size()) return 0;
  if (byte(at + 1) < lead.second_min || byte(at + 1) > lead.second_max) return 0;
  for (size_t i = 2; i <= lead.continuation_bytes; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
  }
  return 1 + lead.continuation_bytes;
}

}  // namespace

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

std::string Join(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

std::string ToLowerAscii(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), LowerAscii);
  return lower;
}

bool EqualsIgnoreCaseAscii(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, {}, LowerAscii, LowerAscii);
}

Result<int64_t> ParseInt(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) {
    return Fail(Code::kOutOfRange, fmt::format("'{}' does not fit in 64 bits", Excerpt(text)));
  }
  if (error != std::errc() || end != text.data() + text.size()) {
    return InvalidArgument(fmt::format("'{}' is not a decimal integer", Excerpt(text)));
  }
  return value;
}

Result<int64_t> ParseIntInRange(std::string_view text, int64_t min, int64_t max) {
  AISP_ASSIGN_OR_RETURN(const int64_t value, ParseInt(text));
  if (value < min || value > max) {
    return Fail(Code::kOutOfRange, fmt::format("{} is outside {}..{}", value, min, max));
  }
  return value;
}

Result<double> ParseDouble(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) {
    return Fail(Code::kOutOfRange, fmt::format("'{}' does not fit in a double", Excerpt(text)));
  }
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return InvalidArgument(fmt::format("'{}' is not a finite decimal number", Excerpt(text)));
  }
  return value;
}

Result<bool> ParseBool(std::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  return InvalidArgument(fmt::format("'{}' is neither 'true' nor 'false'", Excerpt(text)));
}

Result<uint64_t> ParseBytes(std::string_view text) {
  const size_t number_end = text.find_first_not_of("0123456789.");
  const std::string_view number = text.substr(0, number_end);
  const std::string_view unit =
      number_end == std::string_view::npos ? std::string_view() : Trim(text.substr(number_end));
  const auto* found = std::ranges::find(kByteUnits, unit, &ByteUnit::name);
  const Result<double> value = ParseDouble(number);
  if (found == std::end(kByteUnits) || !value) {
    return InvalidArgument(fmt::format(
        "'{}' is not a size; write a number and B, KiB, MiB, GiB, TiB, KB, MB, GB or TB",
        Excerpt(text)));
  }
  const double bytes = *value * static_cast<double>(found->bytes);
  if (bytes >= 0x1p63) {
    return Fail(Code::kOutOfRange, fmt::format("'{}' is more than 2^63 bytes", Excerpt(text)));
  }
  return static_cast<uint64_t>(bytes);
}

std::string HumanBytes(uint64_t bytes) {
  constexpr std::array<std::string_view, 7> kUnits = {"B",   "KiB", "MiB", "GiB",
                                                      "TiB", "PiB", "EiB"};
  size_t unit = 0;
  auto value = static_cast<double>(bytes);
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::string number = fmt::format("{:.1f}", value);
  if (number.ends_with(".0")) number.resize(number.size() - 2);
  return fmt::format("{} {}", number, kUnits[unit]);
}

size_t ValidUtf8Prefix(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    // Skips eight ASCII bytes at a time, since most text is ASCII.
    uint64_t word = 0;
    if (at + sizeof(word) <= bytes.size()) {
      std::memcpy(&word, bytes.data() + at, sizeof(word));
      if ((word & 0x8080808080808080ULL) == 0) {
        at += sizeof(word);
        continue;
      }
    }
    const size_t length = SequenceLength(bytes, at);
    if (length == 0) return at;
    at += length;
  }
  return at;
}

bool IsValidUtf8(std::string_view bytes) { return ValidUtf8Prefix(bytes) == bytes.size(); }

std::string Excerpt(std::string_view text, size_t max_bytes) {
  std::string out;
  size_t at = 0;
  while (at < text.size()) {
    const size_t length = SequenceLength(text, at);
    const bool printable = length > 1 || (length == 1 && text[at] >= 0x20 && text[at] != 0x7F);
    const std::string shown = printable ? std::string(text.substr(at, length))
                                        : fmt::format("\\x{:02X}", static_cast<uint8_t>(text[at]));
    if (out.size() + shown.size() > max_bytes) return out + "...";
    out += shown;
    at += std::max<size_t>(length, 1);
  }
  return out;
}

}  // namespace aisp
