// Reads tokenizer.model: SentencePiece's ModelProto (sentencepiece_model.proto), BPE models without
// a character map, as in Llama 2 and Mistral. The few fields needed are parsed from protobuf's wire
// format here, because libsentencepiece cannot be in one process with libprotobuf.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/strings.h"
#include "text/tokenizer_parts.h"

namespace aisp {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

// One field of a message.
struct WireField {
  uint32_t number = 0;
  uint64_t varint = 0;     // wire type 0, and 5 as bits
  std::string_view bytes;  // wire type 2
};

class WireReader {
 public:
  explicit WireReader(std::string_view message) : rest_(message) {}

  bool AtEnd() const { return rest_.empty(); }

  // False when the message is malformed.
  bool Next(WireField* field) {
    uint64_t key = 0;
    if (!Varint(&key) || key >> 3 == 0 || key >> 3 > UINT32_MAX) return false;
    *field = WireField{};
    field->number = static_cast<uint32_t>(key >> 3);
    switch (key & 7) {
      case 0:
        return Varint(&field->varint);
      case 1:
        return Fixed(8, field);
      case 2: {
        uint64_t size = 0;
        if (!Varint(&size) || size > rest_.size()) return false;
        field->bytes = rest_.substr(0, size);
        rest_.remove_prefix(size);
        return true;
      }
      case 5:
        return Fixed(4, field);
      default:
        return false;  // groups are not used
    }
  }

 private:
  bool Varint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      *value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }
  bool Fixed(size_t size, WireField* field) {
    if (rest_.size() < size) return false;
    std::memcpy(&field->varint, rest_.data(), size);
    rest_.remove_prefix(size);
    return true;
  }

  std::string_view rest_;
};

enum class PieceType {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

struct Piece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::kNormal;
};

struct Model {
  std::vector<Piece> pieces;
  uint64_t model_type = 1;  // 1 unigram, 2 BPE
  bool byte_fallback = false;
  bool whitespace_as_suffix = false;
  int64_t unk = 0, bos = 1, eos = 2;
  std::string unk_surface = " \xE2\x81\x87 ";
  bool has_character_map = false;
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

// Calls `on_field` for every field of `message`.
template <typename F>
Status ForEachField(std::string_view message, const char* what, const F& on_field) {
  WireReader reader(message);
  WireField field;
  while (!reader.AtEnd()) {
    if (!reader.Next(&field))
      return InvalidArgument(std::string("field ") + what + " is malformed");
    AISP_RETURN_IF_ERROR(on_field(field));
  }
  return {};
}

Status ReadPiece(std::string_view message, Model* model) {
  const std::string where = "pieces[" + std::to_string(model->pieces.size()) + "]";
  if (model->pieces.size() >= kMaxVocabSize)
    return InvalidArgument("more than " + std::to_string(kMaxVocabSize) + " pieces");
  Piece piece;
  AISP_RETURN_IF_ERROR(ForEachField(message, where.c_str(), [&](const WireField& f) -> Status {
    if (f.number == 1) piece.text = f.bytes;
    if (f.number == 2) {
      const auto bits = static_cast<uint32_t>(f.varint);
      std::memcpy(&piece.score, &bits, sizeof(bits));
    }
    if (f.number == 3) {
      if (f.varint < 1 || f.varint > 6)
        return InvalidArgument("field " + where + ".type is " + std::to_string(f.varint));
      piece.type = static_cast<PieceType>(f.varint);
    }
    return {};
  }));
  if (piece.text.empty() || piece.text.size() > kMaxAddedTokenBytes || !IsValidUtf8(piece.text)) {
    return InvalidArgument("field " + where + ".piece must be 1 to " +
                           std::to_string(kMaxAddedTokenBytes) + " bytes of UTF-8");
  }
  if (!std::isfinite(piece.score))
    return InvalidArgument("field " + where + ".score is not finite");
  model->pieces.push_back(std::move(piece));
  return {};
}

Status ReadTrainer(std::string_view message, Model* model) {
  return ForEachField(message, "trainer_spec", [&](const WireField& f) -> Status {
    switch (f.number) {
      case 3:
        model->model_type = f.varint;
        break;
      case 24:
        model->whitespace_as_suffix = f.varint != 0;
        break;
      case 35:
        model->byte_fallback = f.varint != 0;
        break;
      case 40:
        model->unk = static_cast<int32_t>(f.varint);
        break;
      case 41:
        model->bos = static_cast<int32_t>(f.varint);
        break;
      case 42:
        model->eos = static_cast<int32_t>(f.varint);
        break;
      case 44:
        model->unk_surface = f.bytes;
        break;
      default:
        break;
    }
    return {};
  });
}

Status ReadNormalizer(std::string_view message, Model* model) {
  return ForEachField(message, "normalizer_spec", [&](const WireField& f) -> Status {
    switch (f.number) {
      case 2:
        model->has_character_map = !f.bytes.empty();
        break;
      case 3:
        model->add_dummy_prefix = f.varint != 0;
        break;
      case 4:
        model->remove_extra_whitespaces = f.varint != 0;
        break;
      case 5:
        model->escape_whitespaces = f.varint != 0;
        break;
      default:
        break;
    }
    return {};
  });
}

Result<Model> ReadModel(std::string_view proto) {
  Model model;
  AISP_RETURN_IF_ERROR(ForEachField(proto, "ModelProto", [&](const WireField& f) -> Status {
    switch (f.number) {
      case 1:
        return ReadPiece(f.bytes, &model);
      case 2:
        return ReadTrainer(f.bytes, &model);
      case 3:
        return ReadNormalizer(f.bytes, &model);
      default:
        return {};
    }
  }));
  if (model.pieces.empty()) return InvalidArgument("field pieces is empty");
  if (model.model_type != 2) {
    return Unimplemented("field trainer_spec.model_type is " + std::to_string(model.model_type) +
                         "; only BPE (2) is supported");
  }
  if (model.has_character_map) {
    return Unimplemented(
        "field normalizer_spec.precompiled_charsmap is not supported (only identity normalization "
        "is)");
  }
  if (model.whitespace_as_suffix)
    return Unimplemented("field trainer_spec.treat_whitespace_as_suffix is not supported");
  if (!IsValidUtf8(model.unk_surface) || model.unk_surface.size() > kMaxPieceBytes) {
    return InvalidArgument("field trainer_spec.unk_surface is not valid");
  }
  return model;
}

bool MatchesText(PieceType type) {
  return type == PieceType::kNormal || type == PieceType::kUserDefined ||
         type == PieceType::kUnused;
}

// SentencePiece merges the neighbours whose joined text has the highest score. Expressed as ranked
// merges: every split of a piece into two pieces is a merge, ranked by the score of the whole
// piece.
std::vector<BpeSpec::Merge> MergesOf(const Model& model,
                                     const std::unordered_map<std::string, TokenId>& ids) {
  std::vector<TokenId> order;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    if (MatchesText(model.pieces[id].type)) order.push_back(static_cast<TokenId>(id));
  }
  const auto score = [&](TokenId id) { return model.pieces[static_cast<size_t>(id)].score; };
  std::stable_sort(order.begin(), order.end(),
                   [&](TokenId a, TokenId b) { return score(a) > score(b); });
  std::vector<BpeSpec::Merge> merges;
  uint32_t rank = 0;
  for (size_t i = 0; i < order.size() && merges.size() < kMaxMerges; ++i) {
    if (i > 0 && score(order[i]) != score(order[i - 1])) ++rank;
    const std::string& text = model.pieces[static_cast<size_t>(order[i])].text;
    for (size_t cut = 1; cut < text.size(); ++cut) {
      if ((static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) continue;
      const auto left = ids.find(text.substr(0, cut));
      if (left == ids.end()) continue;
      const auto right = ids.find(text.substr(cut));
      if (right == ids.end()) continue;
      merges.push_back({left->second, right->second, order[i], rank});
    }
  }
  return merges;
}

Result<BpeSpec> SpecOf(const Model& model) {
  BpeSpec spec;
  std::unordered_map<std::string, TokenId> text_ids;
  std::array<TokenId, 256> bytes;
  bytes.fill(-1);
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& piece = model.pieces[i];
    spec.pieces.push_back(MatchesText(piece.type) ? piece.text : std::string());
    if (MatchesText(piece.type)) text_ids[piece.text] = static_cast<TokenId>(i);
    if (piece.type == PieceType::kByte) {
      const int byte = ByteOfFallbackToken(piece.text);
      if (byte < 0)
        return InvalidArgument("field pieces[" + std::to_string(i) + "].piece is no byte token");
      bytes[static_cast<size_t>(byte)] = static_cast<TokenId>(i);
    }
  }
  if (model.byte_fallback) {
    if (std::find(bytes.begin(), bytes.end(), -1) != bytes.end()) {
      return InvalidArgument(
          "field trainer_spec.byte_fallback is set but not all 256 byte pieces are there");
    }
    spec.byte_tokens = bytes;
  }
  if (model.unk >= 0) spec.unk = static_cast<TokenId>(model.unk);
  spec.fuse_unk = true;
  spec.merges = MergesOf(model, text_ids);
  return spec;
}

Normalizer NormalizerOf(const Model& model) {
  using Step = Normalizer::Step;
  std::vector<Step> steps;
  if (model.remove_extra_whitespaces) {
    Step step;
    step.kind = Step::Kind::kCollapseSpaces;
    steps.push_back(step);
  }
  if (model.add_dummy_prefix) {
    Step step;
    step.kind = Step::Kind::kPrepend;
    step.content = " ";
    steps.push_back(step);
  }
  if (model.escape_whitespaces) {
    Step step;
    step.kind = Step::Kind::kReplace;
    step.from = " ";
    step.content = kSpaceMark;
    steps.push_back(step);
  }
  return Normalizer(std::move(steps));
}

DecoderSpec DecoderOf(const Model& model) {
  using Step = DecoderSpec::Step;
  DecoderSpec spec;
  Step replace;
  replace.kind = Step::Kind::kReplace;
  replace.from = kSpaceMark;
  replace.content = " ";
  spec.steps.push_back(replace);
  Step fallback;
  fallback.kind = Step::Kind::kByteFallback;
  spec.steps.push_back(fallback);
  spec.leading = " ";
  spec.leading_count = model.add_dummy_prefix ? 1 : 0;
  return spec;
}

}  // namespace

Result<std::unique_ptr<TokenizerParts>> ParseSentencePiece(std::string_view proto,
                                                           const TokenizerConfig& config) {
  AISP_ASSIGN_OR_RETURN(const Model model, ReadModel(proto));
  AISP_ASSIGN_OR_RETURN(BpeSpec spec, SpecOf(model));
  AISP_ASSIGN_OR_RETURN(Bpe bpe, Bpe::Create(std::move(spec)));
  auto parts = std::make_unique<TokenizerParts>(std::move(bpe));
  std::vector<std::string> vocabulary;
  std::vector<AddedToken> added;
  parts->special.resize(model.pieces.size());
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& piece = model.pieces[i];
    const auto id = static_cast<TokenId>(i);
    parts->ids[piece.text] = id;
    vocabulary.push_back(piece.type == PieceType::kUnknown ? model.unk_surface : piece.text);
    const bool control = piece.type == PieceType::kControl || piece.type == PieceType::kUnknown;
    parts->special[i] = piece.type == PieceType::kControl;
    if (!control && piece.type != PieceType::kUserDefined) continue;
    AddedToken token;
    token.id = id;
    token.content = piece.text;
    token.special = control;
    token.normalized = !control;  // user-defined pieces spell a space as U+2581
    added.push_back(std::move(token));
  }
  AISP_ASSIGN_OR_RETURN(parts->added, AddedTokens::Create(std::move(added), Normalizer()));
  parts->normalizer = NormalizerOf(model);
  parts->decoder = Decoder::Create(DecoderOf(model), vocabulary);
  const auto control = [&](int64_t id, std::optional<TokenId>* out, std::string* text) {
    if (id < 0 || static_cast<size_t>(id) >= model.pieces.size()) return;
    *out = static_cast<TokenId>(id);
    *text = model.pieces[static_cast<size_t>(id)].text;
  };
  control(model.bos, &parts->bos, &parts->bos_token);
  control(model.eos, &parts->eos, &parts->eos_token);
  if (parts->bos && config.add_bos.value_or(true)) parts->before.push_back(*parts->bos);
  if (parts->eos && config.add_eos.value_or(false)) parts->behind.push_back(*parts->eos);
  return parts;
}

}  // namespace aisp
