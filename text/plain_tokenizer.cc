#include "text/plain_tokenizer.h"

#include <string>
#include <utility>
#include <vector>

#include "common/hash.h"
#include "text/tokenizer_parts.h"

namespace aisp {
namespace {

constexpr int32_t kBytes = 256;

std::string SpellingOf(TokenId id) {
  if (id < kBytes) return {static_cast<char>(id)};
  return "<|" + std::to_string(id) + "|>";
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> MakePlainTokenizer(int32_t vocabulary) {
  if (vocabulary < kBytes) {
    return InvalidArgument("a vocabulary of " + std::to_string(vocabulary) +
                           " has no room for the 256 bytes");
  }
  const auto size = static_cast<size_t>(vocabulary);
  std::vector<std::string> spellings(size);
  std::vector<AddedToken> added;
  added.reserve(size - kBytes);
  BpeSpec spec;
  spec.byte_symbols = true;
  spec.pieces.resize(size);
  for (TokenId id = 0; id < vocabulary; ++id) {
    std::string& spelling = spellings[static_cast<size_t>(id)];
    spelling = SpellingOf(id);
    if (id < kBytes) {
      spec.pieces[static_cast<size_t>(id)] = spelling;
    } else {
      added.push_back({.id = id, .content = spelling});
    }
  }
  AISP_ASSIGN_OR_RETURN(Bpe bpe, Bpe::Create(std::move(spec)));
  auto parts = std::make_unique<TokenizerParts>(std::move(bpe));
  AISP_ASSIGN_OR_RETURN(parts->added, AddedTokens::Create(std::move(added), Normalizer()));
  for (size_t id = 0; id < size; ++id) parts->ids.emplace(spellings[id], static_cast<TokenId>(id));
  parts->decoder = Decoder::Create(DecoderSpec(), spellings);
  parts->special.resize(size);
  parts->fingerprint = HashBytes("plain " + std::to_string(vocabulary)).ToHex();
  return std::make_unique<Tokenizer>(std::move(parts));
}

}  // namespace aisp
