#include "text/decoder.h"

#include "text/byte_level.h"
#include "text/normalizer.h"

namespace aisp {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

std::string Strip(std::string_view text, const DecoderSpec::Step& step) {
  if (step.content.empty()) return std::string(text);
  for (size_t i = 0; i < step.start && text.starts_with(step.content); ++i)
    text.remove_prefix(step.content.size());
  for (size_t i = 0; i < step.stop && text.ends_with(step.content); ++i)
    text.remove_suffix(step.content.size());
  return std::string(text);
}

std::string Apply(const std::vector<DecoderSpec::Step>& steps, std::string text, bool first) {
  using Kind = DecoderSpec::Step::Kind;
  for (const DecoderSpec::Step& step : steps) {
    switch (step.kind) {
      case Kind::kByteLevel:
        if (auto bytes = AlphabetToBytes(text)) return *std::move(bytes);
        break;
      case Kind::kByteFallback:
        if (const int byte = ByteOfFallbackToken(text); byte >= 0)
          return std::string(1, static_cast<char>(byte));
        break;
      case Kind::kReplace:
        text = ReplaceAll(text, step.from, step.content);
        break;
      case Kind::kStrip:
        text = Strip(text, step);
        break;
      case Kind::kMetaspace:
        text = ReplaceAll(text, step.from, first && step.drop_first ? "" : " ");
        break;
    }
  }
  return text;
}

}  // namespace

int ByteOfFallbackToken(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const int high = HexDigit(token[3]), low = HexDigit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

Decoder Decoder::Create(DecoderSpec spec, const std::vector<std::string>& vocabulary) {
  Decoder d;
  d.spec_ = std::move(spec);
  bool first_differs = false;
  for (const DecoderSpec::Step& step : d.spec_.steps) {
    if (step.kind == DecoderSpec::Step::Kind::kByteFallback)
      d.repair_ = Utf8Assembler::Repair::kEachByte;
    first_differs = first_differs || step.drop_first;
  }
  d.bytes_.reserve(vocabulary.size());
  for (const std::string& token : vocabulary)
    d.bytes_.push_back(Apply(d.spec_.steps, token, false));
  if (first_differs) {
    d.first_bytes_.reserve(vocabulary.size());
    for (const std::string& token : vocabulary)
      d.first_bytes_.push_back(Apply(d.spec_.steps, token, true));
  }
  return d;
}

std::string_view Decoder::Bytes(TokenId id, bool first) const {
  if (id < 0 || static_cast<size_t>(id) >= bytes_.size()) return {};
  const auto& table = first && !first_bytes_.empty() ? first_bytes_ : bytes_;
  return table[static_cast<size_t>(id)];
}

}  // namespace aisp
