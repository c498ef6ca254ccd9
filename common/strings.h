// Small helpers for text: strict number parsing, splitting, human-readable sizes, UTF-8 validation.
// For formatting, .cc files use fmt directly. Pure functions: any thread.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

namespace aisp {

// The parts between `separator`s, empty ones included: Split("a,,b", ',') is {"a", "", "b"},
// Split("", ',') is {""}. The parts point into `text`.
std::vector<std::string_view> Split(std::string_view text, char separator);
// Not of a temporary string: the parts would outlive it.
template <std::same_as<std::string> T>
std::vector<std::string_view> Split(T&& text, char separator) = delete;

// `text` without spaces, tabs, CR and LF at both ends.
std::string_view Trim(std::string_view text);

// `parts` with `separator` between them.
std::string Join(const std::vector<std::string>& parts, std::string_view separator);

// Lowers ASCII letters; other bytes are unchanged.
std::string ToLowerAscii(std::string_view text);
bool EqualsIgnoreCaseAscii(std::string_view a, std::string_view b);

// Parses the whole of `text` as a decimal with an optional '-': no spaces, no '+', no trailing
// bytes. OUT_OF_RANGE when the number does not fit, else INVALID_ARGUMENT; the message quotes the
// text.
Result<int64_t> ParseInt(std::string_view text);
// As ParseInt, within [min, max]; the message names both limits.
Result<int64_t> ParseIntInRange(std::string_view text, int64_t min, int64_t max);
// Parses the whole of `text` as a finite number in C's decimal notation.
Result<double> ParseDouble(std::string_view text);
// "true" or "false", nothing else.
Result<bool> ParseBool(std::string_view text);
// "4096", "64KiB", "1.5GiB", "2MB": bytes with a binary or decimal unit (B, KiB, MiB, GiB, TiB, KB,
// MB, GB, TB).
Result<uint64_t> ParseBytes(std::string_view text);

// "0 B", "64 KiB", "1.5 GiB": binary units, at most one digit after the point.
std::string HumanBytes(uint64_t bytes);

// Well-formed UTF-8 in the sense of Unicode's table 3-7: no overlong forms, no surrogates, nothing
// above U+10FFFF.
bool IsValidUtf8(std::string_view bytes);
// Length in bytes of the longest well-formed prefix.
size_t ValidUtf8Prefix(std::string_view bytes);

// For messages that quote untrusted text: at most `max_bytes` of it, control and ill-formed bytes
// as \xNN, and "..." when it was cut.
std::string Excerpt(std::string_view text, size_t max_bytes = 80);

}  // namespace aisp
