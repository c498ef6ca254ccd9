// Text to token ids and back, from the files of a model folder: tokenizer.json (Hugging Face, BPE)
// or tokenizer.model (SentencePiece, BPE), with tokenizer_config.json for the names of control
// tokens.
//
// A Tokenizer is immutable after Load and owns its tables: any number of threads may use it. Files
// are untrusted: Load returns a Tokenizer or an error that names the file and the field.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/ids.h"
#include "common/result.h"

namespace aisp {

class Decoder;
struct TokenizerParts;

// The longest text that Encode accepts.
inline constexpr size_t kMaxEncodeBytes = 64u << 20;

class Tokenizer {
 public:
  // Reads `model_folder`/tokenizer.json, or tokenizer.model when there is no such file.
  static Result<std::unique_ptr<Tokenizer>> Load(const std::string& model_folder);
  explicit Tokenizer(std::unique_ptr<const TokenizerParts> parts);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // INVALID_ARGUMENT: not UTF-8, or longer than kMaxEncodeBytes. RESOURCE_EXHAUSTED: a pattern
  // exceeded its limits. `add_special` adds the model's BOS and the like; false for a rendered
  // chat. `parse_special`: control tokens spelled in the text become tokens; false for untrusted
  // text.

  Result<std::vector<TokenId>> Encode(std::string_view text, bool add_special = true,
                                      bool parse_special = true) const;

  // The text of `ids`, always valid UTF-8: invalid sequences become U+FFFD. `skip_special` omits
  // control tokens. Ids outside the vocabulary (rows of a padded embedding) give no text.
  std::string Decode(std::span<const TokenId> ids, bool skip_special) const;

  // One more than the highest id.
  int32_t VocabSize() const;
  // The id of a token as the file spells it ("<|im_end|>", "Ġthe").
  std::optional<TokenId> TokenToId(std::string_view token) const;
  // The bytes that this token contributes within a text, possibly a part of a UTF-8 sequence. ""
  // for unknown ids.
  std::string_view IdToPiece(TokenId id) const;
  // Whether the token is a control token, which skip_special omits.
  bool IsSpecial(TokenId id) const;

  // From tokenizer_config.json (else SentencePiece's own); absent when not configured.
  std::optional<TokenId> BosId() const;
  std::optional<TokenId> EosId() const;
  // Their spelling, for chat templates; empty when absent.
  const std::string& BosToken() const;
  const std::string& EosToken() const;

  // 32 hexadecimal digits over the files' contents; equal fingerprints encode and decode equally.
  const std::string& Fingerprint() const;

  // Used by Detokenizer.
  const Decoder& decoder() const;

 private:
  struct Scratch;
  Status EncodeText(std::string_view text, bool at_start, bool parse_special, Scratch* scratch,
                    std::vector<TokenId>* out) const;

  std::unique_ptr<const TokenizerParts> parts_;
};

}  // namespace aisp
