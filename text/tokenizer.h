// Text to token ids and back, from the files of a model folder: tokenizer.json (Hugging Face, BPE)
// or tokenizer.model (SentencePiece, BPE), with tokenizer_config.json beside it for the names of
// the control tokens.
//
// A Tokenizer is immutable after Load and owns all its tables: any number of threads may call any
// of its functions. Files are untrusted: whatever they hold, Load answers with a Tokenizer or an
// error that names the file and the field.
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

// The longest text that Encode takes.
inline constexpr size_t kMaxEncodeBytes = 64u << 20;

class Tokenizer {
 public:
  // Reads `model_folder`/tokenizer.json, or tokenizer.model when there is no such file.
  static Result<std::unique_ptr<Tokenizer>> Load(const std::string& model_folder);
  explicit Tokenizer(std::unique_ptr<const TokenizerParts> parts);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // INVALID_ARGUMENT: not UTF-8, or longer than kMaxEncodeBytes. RESOURCE_EXHAUSTED: a pattern of
  // the file ran out of bounds. `add_special` adds what the model wants around every text, as BOS;
  // false for what a chat template rendered. `parse_special`: control tokens that the text spells
  // out become control tokens; false for text that must not steer the model.

  Result<std::vector<TokenId>> Encode(std::string_view text, bool add_special = true,
                                      bool parse_special = true) const;

  // The text of `ids`, always valid UTF-8: what is no valid sequence becomes U+FFFD. `skip_special`
  // leaves control tokens out. Ids outside the vocabulary (a padded embedding has such rows)
  // contribute nothing.
  std::string Decode(std::span<const TokenId> ids, bool skip_special) const;

  // One more than the highest id.
  int32_t VocabSize() const;
  // The id of a token as the file spells it ("<|im_end|>", "Ġthe").
  std::optional<TokenId> TokenToId(std::string_view token) const;
  // The bytes that this token contributes inside a text; part of a UTF-8 sequence is possible.
  // Empty for unknown ids.
  std::string_view IdToPiece(TokenId id) const;
  // A control token, which skip_special leaves out.
  bool IsSpecial(TokenId id) const;

  // From tokenizer_config.json (else SentencePiece's own); absent when not configured.
  std::optional<TokenId> BosId() const;
  std::optional<TokenId> EosId() const;
  // Their spelling, for chat templates; empty when absent.
  const std::string& BosToken() const;
  const std::string& EosToken() const;

  // 32 hexadecimal digits over the contents of the files; equal fingerprints encode and decode
  // alike.
  const std::string& Fingerprint() const;

  // For Detokenizer.
  const Decoder& decoder() const;

 private:
  struct Scratch;
  Status EncodeText(std::string_view text, bool at_start, bool parse_special, Scratch* scratch,
                    std::vector<TokenId>* out) const;

  std::unique_ptr<const TokenizerParts> parts_;
};

}  // namespace aisp
