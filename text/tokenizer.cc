#include "text/tokenizer.h"

#include <fstream>

#include "common/hash.h"
#include "common/strings.h"
#include "text/detokenizer.h"
#include "text/tokenizer_parts.h"

namespace aisp {
namespace {

// Applies tokenizer_config.json once the vocabulary is known.
Status ApplyConfig(const TokenizerConfig& config, TokenizerParts* parts) {
  const auto set = [&](const char* field, const std::optional<std::string>& token,
                       std::optional<TokenId>* id, std::string* text) -> Status {
    if (!token || token->empty()) return {};
    const auto it = parts->ids.find(*token);
    if (it == parts->ids.end()) {
      return InvalidArgument(std::string("tokenizer_config.json: ") + field + " \"" +
                             Excerpt(*token) + "\" is not in the vocabulary");
    }
    *id = it->second;
    *text = *token;
    return {};
  };
  AISP_RETURN_IF_ERROR(set("bos_token", config.bos_token, &parts->bos, &parts->bos_token));
  return set("eos_token", config.eos_token, &parts->eos, &parts->eos_token);
}

}  // namespace

Result<std::string> ReadFile(const std::string& path, size_t limit) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return NotFound("cannot open " + path);
  const auto size = static_cast<int64_t>(in.tellg());
  if (size < 0) return Unavailable("cannot read " + path);
  if (static_cast<uint64_t>(size) > limit) {
    return InvalidArgument(path + " has " + std::to_string(size) + " bytes; the limit is " +
                           std::to_string(limit));
  }
  std::string content(static_cast<size_t>(size), '\0');
  in.seekg(0);
  if (!in.read(content.data(), size)) return Unavailable("cannot read " + path);
  return content;
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& model_folder) {
  TokenizerConfig config;
  const std::string config_path = model_folder + "/tokenizer_config.json";
  auto config_json = ReadFile(config_path, kMaxTokenizerFileBytes);
  if (!config_json && config_json.error().code != Code::kNotFound)
    return tl::unexpected(config_json.error());
  if (config_json) {
    auto parsed = ParseTokenizerConfig(*config_json);
    if (!parsed) return tl::unexpected(parsed.error().WithContext(config_path));
    config = *std::move(parsed);
  }
  std::string path = model_folder + "/tokenizer.json";
  auto content = ReadFile(path, kMaxTokenizerFileBytes);
  const bool json = content.has_value();
  if (!json) {
    if (content.error().code != Code::kNotFound) return tl::unexpected(content.error());
    path = model_folder + "/tokenizer.model";
    content = ReadFile(path, kMaxTokenizerFileBytes);
  }
  if (!content) {
    return NotFound("no tokenizer.json and no tokenizer.model in " + model_folder);
  }
  auto parts = json ? ParseTokenizerJson(*content) : ParseSentencePiece(*content, config);
  if (!parts) return tl::unexpected(parts.error().WithContext(path));
  AISP_RETURN_IF_ERROR(ApplyConfig(config, parts->get()));
  const Hash128 config_hash =
      HashBytes(config_json ? std::string_view(*config_json) : std::string_view());
  (*parts)->fingerprint = HashBytes(HashBytes(*content).ToHex() + config_hash.ToHex()).ToHex();
  return std::make_unique<Tokenizer>(*std::move(parts));
}

struct Tokenizer::Scratch {
  Bpe::ScratchPtr bpe = Bpe::NewScratch();
  std::vector<AddedTokens::Segment> raw;
  std::vector<AddedTokens::Segment> normalized;
};

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerParts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

Status Tokenizer::EncodeText(std::string_view text, bool at_start, bool parse_special,
                             Scratch* scratch, std::vector<TokenId>* out) const {
  Scratch& s = *scratch;
  std::string normalized;
  if (!parts_->normalizer.IsIdentity()) {
    AISP_ASSIGN_OR_RETURN(normalized, parts_->normalizer.Apply(text));
    text = normalized;
  }
  s.normalized.clear();
  if (parts_->added.Empty(AddedTokens::Pass::kNormalized)) {
    s.normalized.push_back({text, -1});
  } else {
    parts_->added.Split(text, AddedTokens::Pass::kNormalized, parse_special, &s.normalized);
  }
  for (const AddedTokens::Segment& segment : s.normalized) {
    if (segment.id >= 0) {
      out->push_back(segment.id);
    } else {
      AISP_ASSIGN_OR_RETURN(const PreTokenizer::Words words,
                            parts_->pre_tokenizer.Run(segment.text, at_start));
      for (const std::string_view word : words.words) parts_->model.Encode(word, s.bpe.get(), out);
    }
    at_start = false;
  }
  return {};
}

Result<std::vector<TokenId>> Tokenizer::Encode(std::string_view text, bool add_special,
                                               bool parse_special) const {
  if (text.size() > kMaxEncodeBytes) {
    return InvalidArgument("text of " + std::to_string(text.size()) + " bytes; the limit is " +
                           std::to_string(kMaxEncodeBytes));
  }
  const size_t valid = ValidUtf8Prefix(text);
  if (valid != text.size()) {
    return InvalidArgument("text is not valid UTF-8 at byte " + std::to_string(valid));
  }
  std::vector<TokenId> out;
  out.reserve(text.size() / 4 + 8);
  if (add_special) out = parts_->before;
  Scratch scratch;
  parts_->added.Split(text, AddedTokens::Pass::kRaw, parse_special, &scratch.raw);
  bool at_start = true;
  for (const AddedTokens::Segment& segment : scratch.raw) {
    if (segment.id >= 0) {
      out.push_back(segment.id);
    } else {
      AISP_RETURN_IF_ERROR(EncodeText(segment.text, at_start, parse_special, &scratch, &out));
    }
    at_start = false;
  }
  if (add_special) out.insert(out.end(), parts_->behind.begin(), parts_->behind.end());
  return out;
}

std::string Tokenizer::Decode(std::span<const TokenId> ids, bool skip_special) const {
  Detokenizer detokenizer(*this, skip_special);
  std::string text;
  for (const TokenId id : ids) detokenizer.Push(id, &text);
  detokenizer.Flush(&text);
  return text;
}

int32_t Tokenizer::VocabSize() const { return static_cast<int32_t>(parts_->decoder.size()); }

std::optional<TokenId> Tokenizer::TokenToId(std::string_view token) const {
  const auto it = parts_->ids.find(std::string(token));
  if (it == parts_->ids.end()) return std::nullopt;
  return it->second;
}

std::string_view Tokenizer::IdToPiece(TokenId id) const { return parts_->decoder.Bytes(id, false); }

bool Tokenizer::IsSpecial(TokenId id) const {
  return id >= 0 && static_cast<size_t>(id) < parts_->special.size() &&
         parts_->special[static_cast<size_t>(id)];
}

std::optional<TokenId> Tokenizer::BosId() const { return parts_->bos; }
std::optional<TokenId> Tokenizer::EosId() const { return parts_->eos; }
const std::string& Tokenizer::BosToken() const { return parts_->bos_token; }
const std::string& Tokenizer::EosToken() const { return parts_->eos_token; }
const std::string& Tokenizer::Fingerprint() const { return parts_->fingerprint; }
const Decoder& Tokenizer::decoder() const { return parts_->decoder; }

}  // namespace aisp
