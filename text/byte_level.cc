#include "text/byte_level.h"

#include <array>
#include <cstdint>

#include "text/utf8.h"

namespace aisp {
namespace {

constexpr char32_t kAlphabetEnd = 0x144;

struct Alphabet {
  std::array<char32_t, 256> to_char{};
  std::array<int16_t, kAlphabetEnd> to_byte{};
};

constexpr Alphabet MakeAlphabet() {
  Alphabet a;
  for (auto& b : a.to_byte) b = -1;
  char32_t next = 0x100;
  for (unsigned b = 0; b < 256; ++b) {
    const bool itself = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    const char32_t c = itself ? b : next++;
    a.to_char[b] = c;
    a.to_byte[c] = static_cast<int16_t>(b);
  }
  return a;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

std::string BytesToAlphabet(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char b : bytes) AppendUtf8(kAlphabet.to_char[static_cast<unsigned char>(b)], &out);
  return out;
}

std::optional<std::string> AlphabetToBytes(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const char32_t c = DecodeUtf8(text, &i);
    if (c >= kAlphabetEnd || kAlphabet.to_byte[c] < 0) return std::nullopt;
    out.push_back(static_cast<char>(kAlphabet.to_byte[c]));
  }
  return out;
}

}  // namespace aisp
