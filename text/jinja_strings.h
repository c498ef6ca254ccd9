// Python's string functions, shared by methods and filters. Pure functions over valid UTF-8: any
// thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace aisp::jinja {

enum class StripSide { kLeft, kRight, kBoth };

// str.strip, lstrip, rstrip: removes white space, or the characters of `chars`.
std::string StripChars(std::string_view s, std::optional<std::string_view> chars, StripSide side);

std::string Upper(std::string_view s);
std::string Lower(std::string_view s);
std::string Capitalize(std::string_view s);
// str.title: upper case for every letter after a non-letter.
std::string Title(std::string_view s);

// str.split and rsplit. At most `limit` splits, all when negative.
std::vector<std::string> SplitSpaces(std::string_view s, long limit, bool from_right);
std::vector<std::string> SplitBy(std::string_view s, std::string_view separator, long limit,
                                 bool from_right);
std::vector<std::string> SplitLines(std::string_view s, bool keep_ends);

// Upper bound of the pieces that the functions above return.
size_t CountWords(std::string_view s);
size_t CountLines(std::string_view s);

// First or last position of `what`, npos if absent. Linear time for any input, unlike
// std::string's.
size_t FindText(std::string_view s, std::string_view what, size_t from = 0);
size_t FindTextFromRight(std::string_view s, std::string_view what);
// Number of non-overlapping occurrences that str.replace would replace, at most `limit` unless
// negative; an empty `what` occurs between all characters.
size_t CountText(std::string_view s, std::string_view what, long limit);

// Replaces at most `limit` times, always when negative. An empty `from` matches between all
// characters.
std::string ReplaceLimited(std::string_view s, std::string_view from, std::string_view to,
                           long limit);

// & < > " ' as entities (markupsafe).
std::string EscapeHtml(std::string_view s);

// `s` padded with `fill` to `width` characters: 'l'eft, 'r'ight or 'c'entred.
std::string Pad(std::string_view s, size_t width, char align, std::string_view fill);

}  // namespace aisp::jinja
