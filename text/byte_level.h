// The alphabet of byte-level BPE: every byte has a printable character (GPT-2's encoder.py,
// bytes_to_unicode). Printable Latin-1 stands for itself, the other 68 bytes are U+0100 onwards.
// Pure functions: any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace aisp {

// Each byte of `bytes` as its character, in UTF-8.
std::string BytesToAlphabet(std::string_view bytes);

// The bytes that `text` (valid UTF-8) spells; nullopt if a character is outside the alphabet.
std::optional<std::string> AlphabetToBytes(std::string_view text);

}  // namespace aisp
