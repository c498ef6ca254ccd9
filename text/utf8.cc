#include "text/utf8.h"

#include <cstring>

#include "common/strings.h"

namespace aisp {
namespace {

// Classification of the bytes at the front of a string.
struct Sequence {
  size_t size = 0;         // length of the sequence (of its maximal subpart when broken)
  bool valid = false;      // a complete code point
  bool truncated = false;  // could become complete with more bytes
};

// Well-formed byte sequences, Unicode 14 table 3-7: the second byte's range depends on the lead
// byte.
Sequence Classify(std::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {1, false, false};
  const size_t need = Utf8Length(lead);
  unsigned char low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  size_t i = 1;
  for (; i < need && i < s.size(); ++i) {
    if (byte(i) < low || byte(i) > high) return {i, false, false};
    low = 0x80;
    high = 0xBF;
  }
  return {i, i == need, i < need};
}

}  // namespace

char32_t DecodeUtf8(std::string_view s, size_t* pos) {
  const auto lead = static_cast<unsigned char>(s[*pos]);
  const size_t size = Utf8Length(lead);
  if (size == 1 || *pos + size > s.size()) {
    ++*pos;
    return lead;
  }
  char32_t c = lead & (0xFF >> (size + 1));
  for (size_t i = 1; i < size; ++i) c = c << 6 | (static_cast<unsigned char>(s[*pos + i]) & 0x3F);
  *pos += size;
  return c;
}

void AppendUtf8(char32_t c, std::string* out) {
  if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) c = 0xFFFD;
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | c >> 6));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | c >> 12));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | c >> 18));
    out->push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

std::u32string ToUtf32(std::string_view valid_utf8) {
  std::u32string out;
  out.reserve(valid_utf8.size());
  for (size_t i = 0; i < valid_utf8.size();) out.push_back(DecodeUtf8(valid_utf8, &i));
  return out;
}

std::string ToUtf8(std::u32string_view s) {
  std::string out;
  out.reserve(s.size());
  for (const char32_t c : s) AppendUtf8(c, &out);
  return out;
}

size_t CountCodePoints(std::string_view valid_utf8) {
  size_t count = 0;
  for (const char c : valid_utf8) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

void Utf8Assembler::Replace(size_t count, std::string* out) {
  const size_t marks = repair_ == Repair::kEachByte ? count : 1;
  for (size_t i = 0; i < marks; ++i) out->append(kReplacementCharacter);
}

size_t Utf8Assembler::Consume(std::string_view bytes, bool at_end, std::string* out) {
  size_t done = 0;
  while (done < bytes.size()) {
    const std::string_view rest = bytes.substr(done);
    const size_t valid = ValidUtf8Prefix(rest);
    out->append(rest.substr(0, valid));
    done += valid;
    if (done == bytes.size()) break;
    const Sequence sequence = Classify(bytes.substr(done));
    if (sequence.truncated && !at_end) break;
    Replace(sequence.size, out);
    done += sequence.size;
  }
  return done;
}

void Utf8Assembler::Push(std::string_view bytes, std::string* out) {
  while (pending_size_ != 0 && !bytes.empty()) {
    pending_[pending_size_++] = bytes.front();
    bytes.remove_prefix(1);
    const size_t done = Consume(std::string_view(pending_, pending_size_), false, out);
    std::memmove(pending_, pending_ + done, pending_size_ - done);
    pending_size_ = static_cast<unsigned char>(pending_size_ - done);
  }
  if (bytes.empty()) return;
  bytes.remove_prefix(Consume(bytes, false, out));
  std::memcpy(pending_, bytes.data(), bytes.size());
  pending_size_ = static_cast<unsigned char>(bytes.size());
}

void Utf8Assembler::Flush(std::string* out) {
  Consume(std::string_view(pending_, pending_size_), true, out);
  pending_size_ = 0;
}

}  // namespace aisp
