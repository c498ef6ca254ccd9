// Python's string functions that both methods and filters use. Pure functions over valid UTF-8: any
// thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace aisp::jinja {

enum class StripSide { kLeft, kRight, kBoth };

// str.strip and its kin: white space, or the characters of `chars`.
std::string StripChars(std::string_view s, std::optional<std::string_view> chars, StripSide side);

std::string Upper(std::string_view s);
std::string Lower(std::string_view s);
std::string Capitalize(std::string_view s);
// str.title: every letter behind a non-letter is upper case.
std::string Title(std::string_view s);

// str.split and rsplit. `limit` splits at most, all when negative.
std::vector<std::string> SplitSpaces(std::string_view s, long limit, bool from_right);
std::vector<std::string> SplitBy(std::string_view s, std::string_view separator, long limit,
                                 bool from_right);
std::vector<std::string> SplitLines(std::string_view s, bool keep_ends);

// How many pieces the functions above make, at most.
size_t CountWords(std::string_view s);
size_t CountLines(std::string_view s);

// The first or last place of `what`, npos where there is none. In linear time, unlike
// std::string's: no text makes a search slow.
size_t FindText(std::string_view s, std::string_view what, size_t from = 0);
size_t FindTextFromRight(std::string_view s, std::string_view what);
// How often str.replace would replace `what`: places that do not overlap, at most `limit` unless
// that is negative; an empty `what` stands between all characters.
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
