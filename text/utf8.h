// UTF-8 decoding and repair of broken sequences (validation is in common/strings.h). Pure functions
// and one small value type: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace aisp {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// Length in bytes of the sequence that `lead` starts in valid UTF-8 (1 for a continuation byte).
constexpr size_t Utf8Length(unsigned char lead) {
  return lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

// Decodes the code point at s[*pos] of valid UTF-8 and advances *pos. Requires *pos < s.size().
char32_t DecodeUtf8(std::string_view s, size_t* pos);

// Appends `c` (at most 0x10FFFF; surrogates become U+FFFD).
void AppendUtf8(char32_t c, std::string* out);

std::u32string ToUtf32(std::string_view valid_utf8);
std::string ToUtf8(std::u32string_view s);

// Number of code points of valid UTF-8.
size_t CountCodePoints(std::string_view valid_utf8);

// Turns a stream of bytes into valid UTF-8. Up to three bytes of an incomplete sequence are held
// back; invalid bytes become U+FFFD. Not thread-safe.
class Utf8Assembler {
 public:
  enum class Repair {
    kMaximalSubpart,  // one U+FFFD for each maximal subpart of a broken sequence (Unicode 14,
                      // section 3.9)
    kEachByte,        // one U+FFFD for each byte
  };
  explicit Utf8Assembler(Repair repair) : repair_(repair) {}

  // Appends what `bytes` completes to *out.
  void Push(std::string_view bytes, std::string* out);
  // Ends the stream: replaces what is held back. The assembler can then be reused.
  void Flush(std::string* out);
  bool HoldsBack() const { return pending_size_ != 0; }

 private:
  // Converts complete and broken sequences at the front of `bytes`; returns the bytes consumed.
  size_t Consume(std::string_view bytes, bool at_end, std::string* out);
  void Replace(size_t count, std::string* out);

  Repair repair_;
  unsigned char pending_size_ = 0;
  char pending_[4] = {};
};

}  // namespace aisp
