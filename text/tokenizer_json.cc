// Reads tokenizer.json and tokenizer_config.json as Hugging Face writes them.
#include "common/strings.h"
#include "text/byte_level.h"
#include "text/tokenizer_parts.h"
#include "text/tokenizer_steps.h"

namespace aisp {
namespace {

// The vocabulary during parsing: strings by id and ids by string.
struct Vocabulary {
  std::vector<std::string> tokens;
  std::unordered_map<std::string, TokenId> ids;

  void Set(TokenId id, const std::string& token) {
    if (static_cast<size_t>(id) >= tokens.size()) tokens.resize(static_cast<size_t>(id) + 1);
    tokens[static_cast<size_t>(id)] = token;
    ids[token] = id;
  }
};

Result<Vocabulary> ParseVocabulary(const JsonField& field) {
  if (!field.IsObject()) return field.Wrong("must be an object of token: id");
  if (field.value().size() > kMaxVocabSize) {
    return field.Wrong("has " + std::to_string(field.value().size()) + " tokens; the limit is " +
                       std::to_string(kMaxVocabSize));
  }
  Vocabulary v;
  v.tokens.reserve(field.value().size() + 1024);
  v.ids.reserve(field.value().size() + 1024);
  for (const auto& [token, id] : field.value().items()) {
    const JsonField entry(&id, field.path() + "[\"" + Excerpt(token) + "\"]");
    AISP_ASSIGN_OR_RETURN(const int64_t number,
                          entry.Int(0, static_cast<int64_t>(kMaxVocabSize) - 1));
    if (token.size() > kMaxPieceBytes)
      return entry.Wrong("is longer than " + std::to_string(kMaxPieceBytes) + " bytes");
    v.Set(static_cast<TokenId>(number), token);
  }
  return v;
}

// "a b" or ["a", "b"].
Result<std::pair<std::string, std::string>> ParseMerge(const JsonField& field) {
  if (field.IsString()) {
    const std::string& s = field.value().get_ref<const std::string&>();
    const size_t space = s.find(' ');
    if (space == std::string::npos || s.find(' ', space + 1) != std::string::npos) {
      return field.Wrong("must be two tokens with a space between");
    }
    return std::pair(s.substr(0, space), s.substr(space + 1));
  }
  const nlohmann::json& v = field.value();
  if (!v.is_array() || v.size() != 2 || !v[0].is_string() || !v[1].is_string()) {
    return field.Wrong("must be two tokens");
  }
  return std::pair(v[0].get<std::string>(), v[1].get<std::string>());
}

Result<std::vector<BpeSpec::Merge>> ParseMerges(const JsonField& field,
                                                const Vocabulary& vocabulary) {
  if (!field.IsArray()) return field.Wrong("must be an array");
  if (field.value().size() > kMaxMerges) {
    return field.Wrong("has " + std::to_string(field.value().size()) + " merges; the limit is " +
                       std::to_string(kMaxMerges));
  }
  std::vector<BpeSpec::Merge> merges;
  merges.reserve(field.value().size());
  for (size_t i = 0; i < field.value().size(); ++i) {
    const JsonField entry(&field.value()[i], field.path() + "[" + std::to_string(i) + "]");
    AISP_ASSIGN_OR_RETURN(const auto pair, ParseMerge(entry));
    BpeSpec::Merge merge;
    merge.rank = static_cast<uint32_t>(i);
    for (const auto& [token, id] :
         {std::pair(pair.first, &merge.left), std::pair(pair.second, &merge.right),
          std::pair(pair.first + pair.second, &merge.result)}) {
      const auto it = vocabulary.ids.find(token);
      if (it == vocabulary.ids.end())
        return entry.Wrong("needs \"" + Excerpt(token) + "\", which is not in the vocabulary");
      *id = it->second;
    }
    merges.push_back(merge);
  }
  return merges;
}

// The ids of <0x00> ... <0xFF> if all exist, else nullopt.
std::optional<std::array<TokenId, 256>> ByteTokens(const Vocabulary& vocabulary) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::array<TokenId, 256> out{};
  for (size_t b = 0; b < 256; ++b) {
    const auto it = vocabulary.ids.find(std::string("<0x") + kHex[b / 16] + kHex[b % 16] + ">");
    if (it == vocabulary.ids.end()) return std::nullopt;
    out[b] = it->second;
  }
  return out;
}

Result<BpeSpec> ParseModel(const JsonField& model, const Vocabulary& vocabulary, bool byte_level) {
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    AISP_ASSIGN_OR_RETURN(const std::string value, model.At(affix).StringOr(""));
    if (!value.empty()) return model.At(affix).Unsupported("\"" + Excerpt(value) + "\"");
  }
  BpeSpec spec;
  AISP_ASSIGN_OR_RETURN(spec.ignore_merges, model.At("ignore_merges").BoolOr(false));
  AISP_ASSIGN_OR_RETURN(spec.fuse_unk, model.At("fuse_unk").BoolOr(false));
  AISP_ASSIGN_OR_RETURN(const bool byte_fallback, model.At("byte_fallback").BoolOr(false));
  AISP_ASSIGN_OR_RETURN(const std::string unk, model.At("unk_token").StringOr(""));
  if (!unk.empty()) {
    const auto it = vocabulary.ids.find(unk);
    if (it == vocabulary.ids.end())
      return model.At("unk_token").Wrong("\"" + Excerpt(unk) + "\" is not in the vocabulary");
    spec.unk = it->second;
  }
  if (byte_fallback) spec.byte_tokens = ByteTokens(vocabulary);
  spec.byte_symbols = byte_level;
  AISP_ASSIGN_OR_RETURN(spec.merges, ParseMerges(model.At("merges"), vocabulary));
  // With ByteLevel, words are bytes and so are pieces; a token with characters outside the alphabet
  // never matches text.
  spec.pieces.reserve(vocabulary.tokens.size());
  for (const std::string& token : vocabulary.tokens) {
    spec.pieces.push_back(byte_level ? AlphabetToBytes(token).value_or(std::string()) : token);
  }
  return spec;
}

Result<std::vector<AddedToken>> ParseAddedTokens(const JsonField& field) {
  std::vector<AddedToken> out;
  if (!field.IsNull() && !field.IsArray()) return field.Wrong("must be an array");
  if (field.value().size() > kMaxAddedTokens) {
    return field.Wrong("has " + std::to_string(field.value().size()) + " tokens; the limit is " +
                       std::to_string(kMaxAddedTokens));
  }
  for (const JsonField& f : field.Elements()) {
    AddedToken token;
    AISP_ASSIGN_OR_RETURN(const int64_t id,
                          f.At("id").Int(0, static_cast<int64_t>(kMaxVocabSize) - 1));
    token.id = static_cast<TokenId>(id);
    AISP_ASSIGN_OR_RETURN(token.content, f.At("content").String());
    AISP_ASSIGN_OR_RETURN(token.special, f.At("special").BoolOr(false));
    AISP_ASSIGN_OR_RETURN(token.normalized, f.At("normalized").BoolOr(!token.special));
    AISP_ASSIGN_OR_RETURN(token.lstrip, f.At("lstrip").BoolOr(false));
    AISP_ASSIGN_OR_RETURN(token.rstrip, f.At("rstrip").BoolOr(false));
    AISP_ASSIGN_OR_RETURN(token.single_word, f.At("single_word").BoolOr(false));
    if (token.content.size() > kMaxAddedTokenBytes) {
      return f.At("content").Wrong("is longer than " + std::to_string(kMaxAddedTokenBytes) +
                                   " bytes");
    }
    out.push_back(std::move(token));
  }
  return out;
}

// "<s>" or {"content": "<s>", ...} or null.
Result<std::optional<std::string>> ParseTokenName(const JsonField& field) {
  if (field.IsNull()) return std::optional<std::string>();
  const JsonField name = field.IsObject() ? field.At("content") : field;
  AISP_ASSIGN_OR_RETURN(std::string s, name.String());
  return std::optional<std::string>(std::move(s));
}

Result<std::optional<bool>> ParseFlag(const JsonField& field) {
  if (field.IsNull()) return std::optional<bool>();
  AISP_ASSIGN_OR_RETURN(const bool flag, field.BoolOr(false));
  return std::optional<bool>(flag);
}

}  // namespace

Result<TokenizerConfig> ParseTokenizerConfig(std::string_view json) {
  AISP_ASSIGN_OR_RETURN(const nlohmann::json document, ParseJsonObject(json));
  const JsonField root(&document, "");
  TokenizerConfig config;
  AISP_ASSIGN_OR_RETURN(config.bos_token, ParseTokenName(root.At("bos_token")));
  AISP_ASSIGN_OR_RETURN(config.eos_token, ParseTokenName(root.At("eos_token")));
  AISP_ASSIGN_OR_RETURN(config.add_bos, ParseFlag(root.At("add_bos_token")));
  AISP_ASSIGN_OR_RETURN(config.add_eos, ParseFlag(root.At("add_eos_token")));
  return config;
}

Result<std::unique_ptr<TokenizerParts>> ParseTokenizerJson(std::string_view json) {
  AISP_ASSIGN_OR_RETURN(const nlohmann::json document, ParseJsonObject(json));
  const JsonField root(&document, "");
  const JsonField model = root.At("model");
  // Old files omit the model's type.
  AISP_ASSIGN_OR_RETURN(const std::string type, model.At("type").StringOr("BPE"));
  if (type != "BPE")
    return model.At("type").Unsupported("model " + Excerpt(type) + " (only BPE is)");
  AISP_ASSIGN_OR_RETURN(Normalizer normalizer, ParseNormalizer(root.At("normalizer")));
  AISP_ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, ParsePreTokenizer(root.At("pre_tokenizer")));
  AISP_ASSIGN_OR_RETURN(Vocabulary vocabulary, ParseVocabulary(model.At("vocab")));
  AISP_ASSIGN_OR_RETURN(BpeSpec spec, ParseModel(model, vocabulary, pre_tokenizer.byte_level()));
  AISP_ASSIGN_OR_RETURN(Bpe bpe, Bpe::Create(std::move(spec)));
  AISP_ASSIGN_OR_RETURN(std::vector<AddedToken> added, ParseAddedTokens(root.At("added_tokens")));
  AISP_ASSIGN_OR_RETURN(DecoderSpec decoder, ParseDecoder(root.At("decoder")));

  auto parts = std::make_unique<TokenizerParts>(std::move(bpe));
  for (const AddedToken& token : added) vocabulary.Set(token.id, token.content);
  parts->special.resize(vocabulary.tokens.size());
  for (const AddedToken& token : added)
    parts->special[static_cast<size_t>(token.id)] = token.special;
  AISP_ASSIGN_OR_RETURN(parts->added, AddedTokens::Create(std::move(added), normalizer));
  parts->normalizer = std::move(normalizer);
  parts->pre_tokenizer = std::move(pre_tokenizer);
  parts->decoder = Decoder::Create(std::move(decoder), vocabulary.tokens);
  parts->ids = std::move(vocabulary.ids);
  AISP_RETURN_IF_ERROR(ParsePostProcessor(root.At("post_processor"), parts.get()));
  return parts;
}

}  // namespace aisp
