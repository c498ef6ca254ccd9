#include "text/jinja_strings.h"

#include <algorithm>
#include <cstring>

#include "text/unicode.h"
#include "text/utf8.h"

namespace aisp::jinja {
namespace {

std::string Reversed(std::string_view s) { return std::string(s.rbegin(), s.rend()); }

}  // namespace

std::string StripChars(std::string_view s, std::optional<std::string_view> chars, StripSide side) {
  const std::u32string text = ToUtf32(s);
  std::u32string set = chars ? ToUtf32(*chars) : std::u32string();
  std::sort(set.begin(), set.end());
  const auto strip = [&](char32_t c) {
    // Python also strips the four separators U+001C to U+001F.
    return chars ? std::binary_search(set.begin(), set.end(), c)
                 : IsWhitespace(c) || (c >= 0x1C && c <= 0x1F);
  };
  size_t begin = 0, end = text.size();
  while (side != StripSide::kRight && begin < end && strip(text[begin])) ++begin;
  while (side != StripSide::kLeft && end > begin && strip(text[end - 1])) --end;
  return ToUtf8(std::u32string_view(text).substr(begin, end - begin));
}

std::string Upper(std::string_view s) {
  std::u32string out;
  for (size_t i = 0; i < s.size();) AppendUpper(DecodeUtf8(s, &i), &out);
  return ToUtf8(out);
}

std::string Lower(std::string_view s) {
  std::u32string out;
  for (size_t i = 0; i < s.size();) AppendLower(DecodeUtf8(s, &i), &out);
  return ToUtf8(out);
}

std::string Capitalize(std::string_view s) {
  if (s.empty()) return std::string();
  size_t first = 0;
  DecodeUtf8(s, &first);
  return Upper(s.substr(0, first)) + Lower(s.substr(first));
}

std::string Title(std::string_view s) {
  std::u32string out;
  bool inside = false;
  for (size_t i = 0; i < s.size();) {
    const char32_t c = DecodeUtf8(s, &i);
    inside ? AppendLower(c, &out) : AppendUpper(c, &out);
    inside = IsLetter(c);
  }
  return ToUtf8(out);
}

std::vector<std::string> SplitSpaces(std::string_view s, long limit, bool from_right) {
  const std::u32string text = ToUtf32(s);
  const std::u32string_view view = text;
  std::vector<std::string> out;
  if (from_right) {
    size_t end = text.size();
    while (true) {
      while (end > 0 && IsWhitespace(text[end - 1])) --end;
      if (end == 0) break;
      size_t begin = end;
      if (limit >= 0 && static_cast<long>(out.size()) >= limit) {
        begin = 0;
      } else {
        while (begin > 0 && !IsWhitespace(text[begin - 1])) --begin;
      }
      out.push_back(ToUtf8(view.substr(begin, end - begin)));
      end = begin;
    }
    std::reverse(out.begin(), out.end());
    return out;
  }
  size_t begin = 0;
  while (true) {
    while (begin < text.size() && IsWhitespace(text[begin])) ++begin;
    if (begin == text.size()) return out;
    size_t end = begin;
    if (limit >= 0 && static_cast<long>(out.size()) >= limit) {
      end = text.size();
    } else {
      while (end < text.size() && !IsWhitespace(text[end])) ++end;
    }
    out.push_back(ToUtf8(view.substr(begin, end - begin)));
    begin = end;
  }
}

std::vector<std::string> SplitBy(std::string_view s, std::string_view separator, long limit,
                                 bool from_right) {
  std::vector<std::string> out;
  if (from_right) {
    // Splitting from the right is splitting the reversed bytes from the left.
    out = SplitBy(Reversed(s), Reversed(separator), limit, false);
    for (std::string& piece : out) piece = Reversed(piece);
    std::reverse(out.begin(), out.end());
    return out;
  }
  while (limit < 0 || static_cast<long>(out.size()) < limit) {
    const size_t at = FindText(s, separator);
    if (at == std::string_view::npos) break;
    out.emplace_back(s.substr(0, at));
    s = s.substr(at + separator.size());
  }
  out.emplace_back(s);
  return out;
}

size_t CountWords(std::string_view s) {
  size_t words = 0;
  bool inside = false;
  for (size_t i = 0; i < s.size();) {
    const bool space = IsWhitespace(DecodeUtf8(s, &i));
    words += !space && !inside ? 1 : 0;
    inside = !space;
  }
  return words;
}

size_t CountLines(std::string_view s) {
  return 1 + static_cast<size_t>(std::count_if(s.begin(), s.end(), [](char c) {
           return c == '\n' || c == '\r' || c == '\v' || c == '\f';
         }));
}

size_t FindText(std::string_view s, std::string_view what, size_t from) {
  if (from > s.size()) return std::string_view::npos;
  if (what.empty()) return from;
  const void* at = memmem(s.data() + from, s.size() - from, what.data(), what.size());
  return at == nullptr ? std::string_view::npos
                       : static_cast<size_t>(static_cast<const char*>(at) - s.data());
}

size_t FindTextFromRight(std::string_view s, std::string_view what) {
  if (what.size() <= 16) return s.rfind(what);
  const size_t at = FindText(Reversed(s), Reversed(what));
  return at == std::string_view::npos ? at : s.size() - at - what.size();
}

size_t CountText(std::string_view s, std::string_view what, long limit) {
  size_t count = 0;
  if (what.empty()) {
    count = CountCodePoints(s) + 1;
  } else {
    for (size_t at = 0; (at = FindText(s, what, at)) != std::string_view::npos; at += what.size())
      ++count;
  }
  return limit < 0 ? count : std::min(count, static_cast<size_t>(limit));
}

std::vector<std::string> SplitLines(std::string_view s, bool keep_ends) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin < s.size();) {
    const size_t at = s.find_first_of("\n\r\v\f", begin);
    const size_t end = at == std::string_view::npos ? s.size() : at;
    size_t next = at == std::string_view::npos ? s.size() : at + 1;
    if (at != std::string_view::npos && s[at] == '\r' && next < s.size() && s[next] == '\n') ++next;
    out.emplace_back(s.substr(begin, (keep_ends ? next : end) - begin));
    begin = next;
  }
  return out;
}

std::string ReplaceLimited(std::string_view s, std::string_view from, std::string_view to,
                           long limit) {
  std::string out;
  long count = 0;
  const auto more = [&] { return limit < 0 || count < limit; };
  if (from.empty()) {
    for (size_t i = 0; i < s.size();) {
      if (more()) out.append(to), ++count;
      const size_t begin = i;
      DecodeUtf8(s, &i);
      out.append(s.substr(begin, i - begin));
    }
    if (more()) out.append(to);
    return out;
  }
  size_t done = 0;
  for (size_t at; more() && (at = FindText(s, from, done)) != std::string_view::npos;
       done = at + from.size(), ++count) {
    out.append(s.substr(done, at - done)).append(to);
  }
  return out.append(s.substr(done));
}

std::string EscapeHtml(std::string_view s) {
  std::string out;
  for (const char c : s) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out.push_back(c);
    }
  }
  return out;
}

std::string Pad(std::string_view s, size_t width, char align, std::string_view fill) {
  const size_t length = CountCodePoints(s);
  if (length >= width) return std::string(s);
  const size_t missing = width - length;
  // With an odd remainder, str.center puts the extra fill left when the width is odd.
  const size_t left = align == 'l'   ? 0
                      : align == 'r' ? missing
                                     : missing / 2 + (missing & width & 1);
  std::string out;
  for (size_t i = 0; i < left; ++i) out.append(fill);
  out.append(s);
  for (size_t i = left; i < missing; ++i) out.append(fill);
  return out;
}

}  // namespace aisp::jinja
