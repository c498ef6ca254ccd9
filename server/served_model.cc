#include "server/served_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "common/hash.h"
#include "common/log.h"
#include "common/strings.h"
#include "kernels/cuda/load.h"
#include "model/files.h"
#include "model/generation_config.h"
#include "model/lora_adapter.h"
#include "model/pooling_config.h"
#include "model/safetensors.h"
#include "server/device_defaults.h"
#include "server/kv_pool.h"
#include "server/model_source.h"
#include "text/plain_tokenizer.h"

namespace aisp {
namespace {

constexpr uint32_t kProtocolVersion = 1;
DType KvDType(const Config& config, const ModelSpec& spec) {
  const std::string& name =
      config.model.kv_dtype != "auto" ? config.model.kv_dtype : config.model.dtype;
  if (name == "fp8") return DType::kF8E4M3;
  if (name != "auto") return name == "f32" ? DType::kF32 : DType::kBF16;
  return spec.dtype == DType::kF32 ? DType::kF32 : DType::kBF16;
}

Result<KvLayout> LayoutOf(const Config& config, const ModelSpec& spec, int32_t max_model_len) {
  const KvShape shape = spec.kv();
  KvLayout layout;
  layout.num_layers = shape.num_layers;
  layout.num_kv_heads = shape.num_kv_heads;
  layout.head_dim = shape.head_dim;
  layout.dtype = KvDType(config, spec);
  layout.block_tokens = static_cast<int32_t>(EngineSettingsOf(config).block_tokens);
  AISP_ASSIGN_OR_RETURN(layout.num_blocks, ConfiguredKvBlocks(config, layout, max_model_len));
  return layout;
}

Result<int32_t> ContextOf(const Config& config, const ModelSpec& spec) {
  const int64_t wanted = config.model.max_model_len;
  if (wanted > spec.max_position) {
    return InvalidArgument(
        fmt::format("model.max_model_len = {}, but the model was made for {} tokens", wanted,
                    spec.max_position));
  }
  return wanted == 0 ? spec.max_position : static_cast<int32_t>(wanted);
}

std::string DigestOf(std::string_view text) {
  const Hash128 hash = HashBytes(text);
  return fmt::format("{:016x}{:016x}", hash.hi, hash.lo);
}

// A checkpoint whose embeddings are unsupported can still generate text.
void ChoosePooling(const Config& config, ServedModel* model) {
  std::string mode = config.model.pooling;
  if (mode == "auto") {
    const Result<std::string> said = LoadPoolingMode(model->path);
    if (!said) {
      model->no_embeddings = said.error().message;
      return;
    }
    mode = said->empty() ? "last" : *said;
  }
  if (mode == "mean") {
    model->pooling = v1::POOL_MEAN;
  } else if (mode == "last") {
    model->pooling = v1::POOL_LAST;
  } else if (mode == "cls") {
    model->pooling = v1::POOL_FIRST;
  } else {
    model->no_embeddings = fmt::format(
        "embeddings of '{}' are not supported: its 1_Pooling/config.json says {}; mean_tokens, "
        "lasttoken and cls_token are (--pooling overrides it)",
        model->name, mode);
  }
}

Status LoadTemplate(const Config& config, ServedModel* model) {
  Result<ChatTemplate> loaded = NotFound("");
  if (!config.model.chat_template.empty()) {
    AISP_ASSIGN_OR_RETURN(const std::string source, ReadTextFile(config.model.chat_template));
    loaded = ChatTemplate::Parse(source);
    if (!loaded) return tl::unexpected(loaded.error().WithContext(config.model.chat_template));
  } else {
    loaded = ChatTemplate::Load(model->path);
    if (!loaded && loaded.error().code == Code::kNotFound) return {};
    if (!loaded) return tl::unexpected(std::move(loaded).error());
  }
  model->chat_template = std::make_unique<ChatTemplate>(std::move(*loaded));
  model->template_traits = ProbeTemplate(*model->chat_template);
  return {};
}

// Call after the template and the tokenizer are loaded.
void ChooseFormats(const Config& config, ServedModel* model) {
  const std::string_view source =
      model->chat_template ? std::string_view(model->chat_template->source()) : "";
  const std::string& calls = config.model.tool_call_parser;
  const std::string& think = config.model.reasoning_parser;
  const auto args = model->tokenizer ? model->tokenizer->TokenToId("[ARGS]") : std::nullopt;
  const bool args_token = args && model->tokenizer->IsSpecial(*args);
  model->call_format =
      calls == "auto" ? DetectCallFormat(source, args_token) : FindCallFormat(calls);
  model->think_format = think == "auto" ? DetectThinkFormat(source) : FindThinkFormat(think);
  if (!model->tokenizer) return;
  for (const std::string& marker : MarkersOf(model->call_format, model->think_format)) {
    const auto id = model->tokenizer->TokenToId(marker);
    if (id && model->tokenizer->IsSpecial(*id)) model->markers.push_back(*id);
  }
  std::sort(model->markers.begin(), model->markers.end());
}

Status LoadTokenizer(const Config& config, ServedModel* model) {
  auto loaded = Tokenizer::Load(model->path);
  const bool none = !loaded && loaded.error().code == Code::kNotFound;
  // A shape has no tokenizer of its own and gets a plain one; below 256 ids it takes only token
  // ids.
  if (none && !config.model.weights.empty()) loaded = MakePlainTokenizer(model->spec.vocabulary);
  if (!loaded && !none) return tl::unexpected(loaded.error());
  if (loaded) model->tokenizer = std::move(*loaded);
  return {};
}

// From --fp8-activations and the format that the weights will have.
int32_t Fp8ActivationRows(const Config& config, const QuantSpec& quant) {
  const bool made_here = config.model.quantization == "fp8";
  const bool block = quant.format == QuantFormat::kFp8Block;
  const bool stored = block || quant.format == QuantFormat::kFp8Channel;
  const bool fp8 = made_here || (stored && config.model.quantization == "auto");
  if (!fp8 || config.model.fp8_activations == "off") return 0;
  if (config.model.fp8_activations == "on") return 1;
  if (!made_here && !quant.fp8_activations) return 0;
  return block ? kAutoFp8BlockActivationRows : kAutoFp8ActivationRows;
}

// Reads --lora, entries "name=folder".
Status LoadAdapters(const Config& config, ServedModel* model) {
  const auto most = static_cast<size_t>(config.model.max_loras);
  if (config.model.lora_modules.size() > most) {
    return InvalidArgument(
        fmt::format("{} adapters are given with --lora, and at most {} are "
                    "allowed; raise --max-loras",
                    config.model.lora_modules.size(), most));
  }
  v1::AdapterSet start;
  std::set<std::string> names{model->name};
  for (const std::string& each : config.model.lora_modules) {
    const size_t at = each.find('=');
    const std::string name = each.substr(0, at);
    if (at == std::string::npos || name.empty() || at + 1 == each.size()) {
      return InvalidArgument(
          fmt::format("--lora wants NAME=FOLDER, as in --lora sql=/models/sql-lora, but has '{}'",
                      Excerpt(each)));
    }
    if (!names.insert(name).second) {
      return InvalidArgument(
          fmt::format("--lora: the name '{}' is taken already; give each adapter its own", name));
    }
    const std::string folder = each.substr(at + 1);
    AISP_ASSIGN_OR_RETURN(
        const auto adapter,
        LoraAdapter::Load(name, folder, static_cast<int32_t>(config.model.max_lora_rank)));
    v1::Adapter* entry = start.add_adapters();
    entry->set_name(name);
    entry->set_digest(adapter->digest());
    entry->set_path(folder);
  }
  model->adapters->Begin(std::move(start));
  return {};
}

// "name=digest" of each adapter, sorted by name.
std::string AdaptersText(const ServedModel& model) {
  std::vector<std::string> texts;
  for (const v1::Adapter& adapter : model.adapters->start().adapters())
    texts.push_back(fmt::format("{}={}", adapter.name(), adapter.digest()));
  std::sort(texts.begin(), texts.end());
  return Join(texts, ",");
}

Status FillFingerprint(const Config& config, ServedModel* model) {
  v1::Fingerprint& f = model->fingerprint;
  f.set_protocol_version(kProtocolVersion);
  f.set_model_name(model->name);
  std::string weights = config.model.weights;
  if (weights.empty()) {
    AISP_ASSIGN_OR_RETURN(weights, DigestCheckpoint(model->path));
  }
  f.set_weights_digest(weights);
  f.set_adapters(AdaptersText(*model));
  f.set_mixed_precision(config.model.allow_mixed_precision);
  f.set_tokenizer_digest(model->tokenizer ? model->tokenizer->Fingerprint() : "");
  f.set_template_digest(model->chat_template ? DigestOf(model->chat_template->source()) : "");
  v1::KvLayoutDesc* kv = f.mutable_kv_layout();
  kv->set_num_layers(static_cast<uint32_t>(model->kv_layout.num_layers));
  kv->set_num_kv_heads(static_cast<uint32_t>(model->kv_layout.num_kv_heads));
  kv->set_head_dim(static_cast<uint32_t>(model->kv_layout.head_dim));
  // Block size, KV dtype and arithmetic are set by the workers (server/arithmetic.h) unless
  // configured: a router opens no device and cannot know their choice.
  kv->set_block_tokens(static_cast<uint32_t>(config.engine.block_tokens));
  if (config.model.kv_dtype != "auto")
    kv->set_dtype(std::string(DTypeName(model->kv_layout.dtype)));
  return {};
}

// Four times the longest token for each position, since normalizers may shorten a text.
size_t MaxTextBytes(const Tokenizer& tokenizer, int32_t max_model_len) {
  size_t longest = 0;
  for (TokenId id = 0; id < tokenizer.VocabSize(); ++id) {
    longest = std::max(longest, tokenizer.IdToPiece(id).size());
  }
  return 4 * longest * static_cast<size_t>(max_model_len);
}

// Warns when the tokenizer has tokens without an embedding: requests that contain one are refused.
void WarnOfTokensBeyond(const ServedModel& model) {
  const TokenId known = model.tokenizer->VocabSize();
  int64_t count = 0;
  std::string first;
  for (TokenId id = model.spec.vocabulary; id < known; ++id) {
    const auto piece = model.tokenizer->IdToPiece(id);
    if (piece.empty()) continue;
    if (count++ == 0) first = piece;
  }
  if (count == 0) return;
  LogWarning("the tokenizer has tokens beyond the model's vocabulary; requests with them get 400",
             {{"tokens", count}, {"vocabulary", model.spec.vocabulary}, {"first", first}});
}

}  // namespace

Result<std::unique_ptr<ServedModel>> LoadServedModel(const Config& config) {
  auto model = std::make_unique<ServedModel>();
  AISP_ASSIGN_OR_RETURN(model->path, ResolveModelPath(config));
  model->name = ServedNameOf(config, model->path);
  AISP_ASSIGN_OR_RETURN(model->spec, LoadModelSpec(model->path));
  model->vocabulary = model->spec.vocabulary;
  model->hidden = model->spec.hidden;
  AISP_ASSIGN_OR_RETURN(model->max_model_len, ContextOf(config, model->spec));
  AISP_ASSIGN_OR_RETURN(model->kv_layout, LayoutOf(config, model->spec, model->max_model_len));
  AISP_RETURN_IF_ERROR(LoadTokenizer(config, model.get()));
  if (model->tokenizer) {
    model->max_text_bytes = MaxTextBytes(*model->tokenizer, model->max_model_len);
    WarnOfTokensBeyond(*model);
  }
  if (model->tokenizer) {
    model->guides = std::make_shared<ConstraintPool>(
        model->tokenizer.get(), model->spec.vocabulary,
        ConstraintPool::Limits{.compile_timeout = config.router.grammar_compile_timeout});
    model->constraints = model->guides;
  }
  AISP_RETURN_IF_ERROR(LoadTemplate(config, model.get()));
  ChooseFormats(config, model.get());
  AISP_ASSIGN_OR_RETURN(const GenerationDefaults defaults,
                        LoadGenerationDefaults(model->path, model->spec));
  // The model cannot draw such a token, and workers refuse ids without an embedding.
  for (const TokenId id : defaults.eos) {
    if (id >= 0 && id < model->spec.vocabulary) model->eos.push_back(id);
  }
  ChoosePooling(config, model.get());
  model->max_answer_bytes = static_cast<size_t>(config.http.max_answer);
  model->limits.vocab_size = model->spec.vocabulary;
  model->limits.keeps_responses = config.http.max_stored_responses > 0;
  model->limits.sampling_defaults = {defaults.temperature, defaults.top_p, defaults.top_k,
                                     defaults.min_p, defaults.repetition_penalty};
  model->fp8_activation_rows = Fp8ActivationRows(config, model->spec.quant);
  AISP_RETURN_IF_ERROR(LoadAdapters(config, model.get()));
  AISP_RETURN_IF_ERROR(FillFingerprint(config, model.get()));
  return model;
}

}  // namespace aisp
