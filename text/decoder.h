// The text that each token of a vocabulary contributes to decoded output. Steps and order are those
// of Hugging Face's decoders; work that concerns a single token is done once, at load. Immutable
// after Create: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/ids.h"
#include "text/utf8.h"

namespace aisp {

struct DecoderSpec {
  struct Step {
    enum class Kind {
      kByteLevel,     // characters of the byte alphabet become bytes
      kByteFallback,  // "<0x0A>" becomes the byte
      kReplace,       // `from` becomes `content`
      kStrip,         // removes up to `start` times `content` from the token's front, `stop` from
                      // its end
      kMetaspace,     // `from` becomes a space, or nothing in the first token when `drop_first`
    };
    Kind kind = Kind::kByteLevel;
    std::string from;
    std::string content;
    size_t start = 0, stop = 0;
    bool drop_first = false;
  };
  std::vector<Step> steps;
  // Removed from the front of the whole text, up to this many times.
  std::string leading;
  size_t leading_count = 0;
  bool spaces_between = false;  // a space between any two tokens (for files without a decoder)
};

class Decoder {
 public:
  Decoder() = default;
  // `vocabulary`: by id, the strings of the file; empty where an id has none.
  static Decoder Create(DecoderSpec spec, const std::vector<std::string>& vocabulary);

  size_t size() const { return bytes_.size(); }
  // The bytes of a token within a text; `first`: as its first token. Empty for ids outside the
  // vocabulary.
  std::string_view Bytes(TokenId id, bool first) const;

  const std::string& leading() const { return spec_.leading; }
  size_t leading_count() const { return spec_.leading_count; }
  bool spaces_between() const { return spec_.spaces_between; }
  Utf8Assembler::Repair repair() const { return repair_; }

 private:
  DecoderSpec spec_;
  Utf8Assembler::Repair repair_ = Utf8Assembler::Repair::kMaximalSubpart;
  std::vector<std::string> bytes_;
  std::vector<std::string> first_bytes_;  // empty unless the first token differs
};

// The byte that "<0x0A>" names, or -1.
int ByteOfFallbackToken(std::string_view token);

}  // namespace aisp
