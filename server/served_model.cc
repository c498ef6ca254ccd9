#include "server/served_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
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

// A checkpoint whose embeddings are made otherwise still writes text.
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
  return {};
}

// After the template and the tokenizer.
void ChooseFormats(const Config& config, ServedModel* model) {
  const std::string_view source =
      model->chat_template ? std::string_view(model->chat_template->source()) : "";
  const std::string& calls = config.model.tool_call_parser;
  const std::string& think = config.model.reasoning_parser;
  model->call_format = calls == "auto" ? DetectCallFormat(source) : FindCallFormat(calls);
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
  // A shape has no tokenizer, but shall be served like any model; with fewer than 256 ids it is
  // asked by ids alone.
  if (none && !config.model.weights.empty()) loaded = MakePlainTokenizer(model->spec.vocabulary);
  if (!loaded && !none) return tl::unexpected(loaded.error());
  if (loaded) model->tokenizer = std::move(*loaded);
  return {};
}

ApiError NoTokenizer(const std::string& model, const char* param) {
  return ApiError(Code::kFailedPrecondition,
                  fmt::format("the model '{}' has no tokenizer; give the prompt as token ids to "
                              "/v1/completions, with return_token_ids",
                              model),
                  param);
}

// From --fp8-activations and what the weights will be kept in.
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

// From --lora: "name=folder" each.
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

// "name=digest" of each, in the order of their names.
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
  // Block size, KV dtype and arithmetic are the workers' (server/arithmetic.h), unless they are
  // settings: a router opens no device to see what it would choose.
  kv->set_block_tokens(static_cast<uint32_t>(config.engine.block_tokens));
  if (config.model.kv_dtype != "auto")
    kv->set_dtype(std::string(DTypeName(model->kv_layout.dtype)));
  return {};
}

// Four times what the context holds of the longest token: room for normalizers that shorten a text.
size_t MaxTextBytes(const Tokenizer& tokenizer, int32_t max_model_len) {
  size_t longest = 0;
  for (TokenId id = 0; id < tokenizer.VocabSize(); ++id) {
    longest = std::max(longest, tokenizer.IdToPiece(id).size());
  }
  return 4 * longest * static_cast<size_t>(max_model_len);
}

// A checkpoint whose tokenizer knows tokens without an embedding: requests that bring one are
// refused.
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

int64_t LocalTimeS() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t t = std::chrono::system_clock::to_time_t(now);
  std::tm local{};
  localtime_r(&t, &local);
  return static_cast<int64_t>(t) + local.tm_gmtoff;
}

// The answer goes on where the last message ends: what the template wrote behind it is taken off.
ApiResult<std::string> CutAfterLastMessage(std::string text, const Value& messages) {
  const Value* content = messages.AsList().back().AsMap().Find("content");
  const std::string_view last =
      content != nullptr && content->IsString() ? Trim(content->AsString()) : std::string_view();
  const size_t at = last.empty() ? std::string::npos : text.rfind(last);
  if (at == std::string::npos) {
    return tl::unexpected(
        ApiError(Code::kInvalidArgument,
                 "continue_final_message needs a last message whose text the chat "
                 "template keeps as it is",
                 "continue_final_message"));
  }
  text.resize(at + last.size());
  return text;
}

}  // namespace

Result<std::unique_ptr<ServedModel>> LoadServedModel(const Config& config) {
  auto model = std::make_unique<ServedModel>();
  AISP_ASSIGN_OR_RETURN(model->path, ResolveModelPath(config));
  model->name = ServedNameOf(config, model->path);
  AISP_ASSIGN_OR_RETURN(model->spec, LoadModelSpec(model->path));
  AISP_ASSIGN_OR_RETURN(model->max_model_len, ContextOf(config, model->spec));
  AISP_ASSIGN_OR_RETURN(model->kv_layout, LayoutOf(config, model->spec, model->max_model_len));
  AISP_RETURN_IF_ERROR(LoadTokenizer(config, model.get()));
  if (model->tokenizer) {
    model->max_text_bytes = MaxTextBytes(*model->tokenizer, model->max_model_len);
    WarnOfTokensBeyond(*model);
  }
  if (model->tokenizer) {
    model->constraints = std::make_shared<ConstraintPool>(
        model->tokenizer.get(), model->spec.vocabulary,
        ConstraintPool::Limits{.compile_timeout = config.router.grammar_compile_timeout});
  }
  AISP_RETURN_IF_ERROR(LoadTemplate(config, model.get()));
  ChooseFormats(config, model.get());
  AISP_ASSIGN_OR_RETURN(const GenerationDefaults defaults,
                        LoadGenerationDefaults(model->path, model->spec));
  // One that the model cannot draw ends nothing, and workers refuse ids without an embedding.
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

ApiResult<void> ServedModel::CheckName(const std::string& requested) const {
  if (requested.empty() || requested == name || !adapters->DigestOf(requested).empty()) return {};
  std::string served = fmt::format("'{}' is", name);
  if (const std::vector<std::string> names = adapters->Names(); !names.empty())
    served = fmt::format("'{}' is, and its adapters '{}'", name, Join(names, "', '"));
  return tl::unexpected(
      ApiError(Code::kNotFound,
               fmt::format("the model '{}' is not served here; {}", Excerpt(requested), served),
               "model", "model_not_found"));
}

ApiResult<std::vector<TokenId>> ServedModel::RenderChat(const ChatRequest& request,
                                                        bool add_special) const {
  if (!chat_template) {
    return tl::unexpected(ApiError(
        Code::kFailedPrecondition,
        fmt::format("the model '{}' has no chat template; use /v1/completions, or start the "
                    "server with --chat-template",
                    name)));
  }
  if (!tokenizer) return tl::unexpected(NoTokenizer(name, "messages"));
  Value::Map context;
  context.Set("messages", request.messages);
  context.Set("add_generation_prompt", Value(request.add_generation_prompt));
  context.Set("bos_token", Value(tokenizer->BosToken()));
  context.Set("eos_token", Value(tokenizer->EosToken()));
  if (!request.tools.IsNone()) context.Set("tools", request.tools);
  if (!request.thinking.effort.empty()) {
    context.Set("reasoning_effort", Value(request.thinking.effort));
    context.Set("enable_thinking", Value(request.thinking.effort != "none"));
  }
  if (request.template_variables.IsMap()) {
    for (const auto& [key, value] : request.template_variables.AsMap()) context.Set(key, value);
  }
  auto text = chat_template->Render(context, RenderOptions{.now_s = LocalTimeS()});
  if (!text) {
    // What this request makes of the template is beyond its bounds each time: nothing to try again.
    const Code code =
        text.error().code == Code::kResourceExhausted ? Code::kInvalidArgument : text.error().code;
    return tl::unexpected(ApiError(code, text.error().message, "messages"));
  }
  if (request.continue_final_message) {
    AISP_ASSIGN_OR_RETURN(*text, CutAfterLastMessage(std::move(*text), request.messages));
  }
  auto tokens = tokenizer->Encode(*text, add_special, /*parse_special=*/true);
  if (!tokens)
    return tl::unexpected(ApiError(tokens.error().code, tokens.error().message, "messages"));
  AISP_RETURN_IF_ERROR(CheckIds(*tokens, "messages"));
  return std::move(*tokens);
}

ApiResult<std::vector<TokenId>> ServedModel::EncodePrompt(const Prompt& prompt,
                                                          bool add_special) const {
  if (const auto* ids = std::get_if<std::vector<TokenId>>(&prompt)) {
    AISP_RETURN_IF_ERROR(CheckIds(*ids, "prompt"));
    return *ids;
  }
  if (!tokenizer) return tl::unexpected(NoTokenizer(name, "prompt"));
  auto tokens = tokenizer->Encode(std::get<std::string>(prompt), add_special,
                                  /*parse_special=*/true);
  if (!tokens)
    return tl::unexpected(ApiError(tokens.error().code, tokens.error().message, "prompt"));
  AISP_RETURN_IF_ERROR(CheckIds(*tokens, "prompt"));
  return std::move(*tokens);
}

std::string ServedModel::TextOf(const Prompt& prompt) const {
  if (const auto* text = std::get_if<std::string>(&prompt)) return *text;
  if (!tokenizer) return "";
  return tokenizer->Decode(std::get<std::vector<TokenId>>(prompt), /*skip_special=*/true);
}

ApiResult<void> ServedModel::CheckIds(const std::vector<TokenId>& tokens,
                                      const std::string& param) const {
  const auto beyond = std::find_if(tokens.begin(), tokens.end(),
                                   [this](TokenId t) { return t < 0 || t >= spec.vocabulary; });
  if (beyond == tokens.end()) return {};
  std::string piece;
  if (tokenizer && *beyond >= 0 && *beyond < tokenizer->VocabSize())
    piece = fmt::format(" ('{}')", Excerpt(tokenizer->IdToPiece(*beyond)));
  return tl::unexpected(ApiError(
      Code::kInvalidArgument,
      fmt::format("the prompt holds token {}{}, and this model has {} tokens only; leave it out",
                  *beyond, piece, spec.vocabulary),
      param));
}

ApiResult<void> ServedModel::CheckTextSize(size_t bytes, const std::string& param) const {
  if (max_text_bytes == 0 || bytes <= max_text_bytes) return {};
  return tl::unexpected(ApiError(
      Code::kInvalidArgument,
      fmt::format("the prompt has {} bytes, and {} bytes are more than this model's context of {} "
                  "tokens can hold; shorten the prompt",
                  bytes, max_text_bytes, max_model_len),
      param, "context_length_exceeded"));
}

uint32_t ServedModel::DefaultMaxTokens(Endpoint endpoint, uint32_t room) const {
  constexpr uint32_t kCompletionsDefault = 16;
  return endpoint == Endpoint::kChat ? room : std::min(room, kCompletionsDefault);
}

}  // namespace aisp
