// The contents of a tokenizer file, and their loaders. For text/ only. Plain data, immutable once
// in a Tokenizer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/ids.h"
#include "common/result.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"

namespace aisp {

inline constexpr size_t kMaxTokenizerFileBytes = 256u << 20;
inline constexpr size_t kMaxSpecialAround =
    64;  // tokens that a post-processor may add before or after a text

struct TokenizerParts {
  explicit TokenizerParts(Bpe m) : model(std::move(m)) {}

  Bpe model;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  AddedTokens added;
  Decoder decoder;
  std::unordered_map<std::string, TokenId> ids;  // by the file's spelling
  std::vector<bool> special;                     // by id
  std::vector<TokenId> before, behind;           // tokens that add_special puts around a text
  std::optional<TokenId> bos, eos;
  std::string bos_token, eos_token;
  std::string fingerprint;
};

// The relevant settings of tokenizer_config.json.
struct TokenizerConfig {
  std::optional<std::string> bos_token, eos_token;
  std::optional<bool> add_bos, add_eos;
};

// The whole file; NOT_FOUND when it cannot be opened, INVALID_ARGUMENT above `limit` bytes.
Result<std::string> ReadFile(const std::string& path, size_t limit);

Result<TokenizerConfig> ParseTokenizerConfig(std::string_view json);
Result<std::unique_ptr<TokenizerParts>> ParseTokenizerJson(std::string_view json);
Result<std::unique_ptr<TokenizerParts>> ParseSentencePiece(std::string_view proto,
                                                           const TokenizerConfig& config);

}  // namespace aisp
