#include "model/spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "common/strings.h"
#include "model/files.h"
#include "model/json_reader.h"

namespace aisp {
namespace {

constexpr int32_t kMaxExtent = 1 << 24;

enum class Bias : uint8_t { kNever, kQkv, kFromConfig };
enum class Window : uint8_t { kNever, kAlways, kIfUsed };  // kIfUsed: Qwen's use_sliding_window
enum class Experts : uint8_t { kNone, kMixtral, kQwen, kDeepSeek };

// Properties that all checkpoints of a family share and config.json does not state.
struct Family {
  std::string_view architecture;
  AttentionKind attention = AttentionKind::kGrouped;
  Bias bias = Bias::kNever;
  bool qk_norm = false;
  Window window = Window::kNever;
  Experts experts = Experts::kNone;
};

constexpr std::array kFamilies = {
    Family{.architecture = "LlamaForCausalLM", .bias = Bias::kFromConfig},
    Family{.architecture = "MistralForCausalLM", .window = Window::kAlways},
    Family{.architecture = "Qwen2ForCausalLM", .bias = Bias::kQkv, .window = Window::kIfUsed},
    Family{.architecture = "Qwen3ForCausalLM",
           .bias = Bias::kFromConfig,
           .qk_norm = true,
           .window = Window::kIfUsed},
    Family{.architecture = "MixtralForCausalLM",
           .window = Window::kAlways,
           .experts = Experts::kMixtral},
    Family{.architecture = "Qwen3MoeForCausalLM",
           .bias = Bias::kFromConfig,
           .qk_norm = true,
           .window = Window::kIfUsed,
           .experts = Experts::kQwen},
    Family{.architecture = "DeepseekV3ForCausalLM",
           .attention = AttentionKind::kLatent,
           .experts = Experts::kDeepSeek},
};

Result<const Family*> FindFamily(const Json& json) {
  std::string name;
  if (json.contains("architectures") && json["architectures"].is_array() &&
      !json["architectures"].empty() && json["architectures"][0].is_string()) {
    name = json["architectures"][0].get<std::string>();
  }
  for (const Family& f : kFamilies) {
    if (f.architecture == name) return &f;
  }
  return Unimplemented(
      fmt::format("config.json: architecture \"{}\" is not supported; the known ones are {}",
                  Excerpt(name), KnownArchitectures()));
}

// New checkpoints: rope_parameters {rope_theta, rope_type, ...}. Older ones: rope_theta beside
// rope_scaling {type | rope_type}.
Result<RopeSpec> ParseRope(JsonReader& config, int32_t max_position) {
  RopeSpec rope;
  rope.theta = config.NumberOr("rope_theta", 10000.0, 1.0, 1e12);
  rope.original_max_position = max_position;
  const char* key = config.Has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!config.Has(key)) return rope;
  const Json& json = config.json().at(key);
  if (!json.is_object())
    return InvalidArgument(fmt::format("config.json: \"{}\" has to be an object", key));
  JsonReader r(json, fmt::format("config.json: {}", key));
  rope.theta = r.NumberOr("rope_theta", rope.theta, 1.0, 1e12);
  const std::string type = r.TextOr("rope_type", r.TextOr("type", "default"));
  if (type == "default" || type == "mrope") {
    rope.scaling = RopeScaling::kNone;
  } else if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
    rope.factor = r.Number("factor", 1.0, 1e6);
  } else if (type == "llama3") {
    rope.scaling = RopeScaling::kLlama3;
    rope.factor = r.Number("factor", 1.0, 1e6);
    rope.low_freq_factor = r.Number("low_freq_factor", 1e-6, 1e6);
    rope.high_freq_factor = r.Number("high_freq_factor", 1e-6, 1e6);
    rope.original_max_position = r.Int("original_max_position_embeddings", 1, kMaxExtent);
    if (rope.high_freq_factor <= rope.low_freq_factor)
      r.Refuse(fmt::format("{}: high_freq_factor has to be above low_freq_factor", r.name()));
  } else if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    rope.factor = r.Number("factor", 1.0, 1e6);
    rope.beta_fast = r.NumberOr("beta_fast", 32.0, 1e-6, 1e6);
    rope.beta_slow = r.NumberOr("beta_slow", 1.0, 1e-6, 1e6);
    rope.original_max_position =
        r.IntOr("original_max_position_embeddings", max_position, 1, kMaxExtent);
    const auto mscale = [&](double m) {
      return rope.factor <= 1.0 ? 1.0 : 0.1 * m * std::log(rope.factor) + 1.0;
    };
    const double m = r.NumberOr("mscale", 0.0, 0.0, 100.0),
                 all = r.NumberOr("mscale_all_dim", 0.0, 0.0, 100.0);
    rope.attention_factor = r.NumberOr(
        "attention_factor", m > 0 && all > 0 ? mscale(m) / mscale(all) : mscale(1.0), 0.0, 100.0);
  } else {
    return Unimplemented(
        fmt::format("config.json: rope type \"{}\" is not supported; the known ones are default, "
                    "linear, llama3, yarn",
                    Excerpt(type)));
  }
  AISP_RETURN_IF_ERROR(r.status());
  return rope;
}

Status CheckActivation(JsonReader& r) {
  const std::string act = r.TextOr("hidden_act", "silu");
  if (act != "silu" && act != "swish") {
    return Unimplemented(
        fmt::format("config.json: hidden_act \"{}\" is not supported; only silu is", Excerpt(act)));
  }
  return {};
}

AttentionSpec GroupedAttention(JsonReader& r, const Family& f, int32_t hidden) {
  AttentionSpec a;
  a.num_heads = r.Int("num_attention_heads", 1, 4096);
  a.num_kv_heads = r.IntOr("num_key_value_heads", a.num_heads, 1, 4096);
  a.head_dim = r.IntOr("head_dim", a.num_heads > 0 ? hidden / a.num_heads : 0, 1, 512);
  a.qk_norm = f.qk_norm;
  a.qkv_bias =
      f.bias == Bias::kQkv || (f.bias == Bias::kFromConfig && r.BoolOr("attention_bias", false));
  a.output_bias = f.bias == Bias::kFromConfig && a.qkv_bias;
  a.scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  if (a.num_kv_heads > 0 && a.num_heads % a.num_kv_heads != 0) {
    r.Refuse(fmt::format("config.json: {} attention heads cannot share {} key-value heads evenly",
                         a.num_heads, a.num_kv_heads));
  }
  if (a.head_dim % 16 != 0)
    r.Refuse(fmt::format("config.json: head_dim {} is not a multiple of 16", a.head_dim));
  return a;
}

AttentionSpec LatentAttention(JsonReader& r) {
  AttentionSpec a;
  a.kind = AttentionKind::kLatent;
  a.num_heads = r.Int("num_attention_heads", 1, 4096);
  a.num_kv_heads = a.num_heads;
  a.q_lora_rank = r.IntOr("q_lora_rank", 0, 0, kMaxExtent);
  a.kv_lora_rank = r.Int("kv_lora_rank", 1, kMaxExtent);
  a.nope_dim = r.Int("qk_nope_head_dim", 1, 256);
  a.rope_dim = r.Int("qk_rope_head_dim", 2, 256);
  a.v_dim = r.Int("v_head_dim", 1, 512);
  a.head_dim = std::max(a.nope_dim + a.rope_dim, a.v_dim);
  a.scale = 1.0f / std::sqrt(static_cast<float>(a.nope_dim + a.rope_dim));
  if ((a.nope_dim + a.rope_dim) % 16 != 0 || a.v_dim % 16 != 0 || a.rope_dim % 2 != 0) {
    r.Refuse(
        "config.json: qk_nope_head_dim + qk_rope_head_dim and v_head_dim have to be multiples of "
        "16");
  }
  if (!r.BoolOr("rope_interleave", true))
    r.Refuse("config.json: rope_interleave false is not supported");
  return a;
}

// DeepSeek's long-context scaling also sharpens the scores.
void ScaleForYarn(const Json& config, const RopeSpec& rope, AttentionSpec* a) {
  if (a->kind != AttentionKind::kLatent || rope.scaling != RopeScaling::kYarn || rope.factor <= 1.0)
    return;
  const Json& json =
      config.contains("rope_parameters") ? config["rope_parameters"] : config["rope_scaling"];
  if (!json.contains("mscale_all_dim") || !json["mscale_all_dim"].is_number()) return;
  const double m = 0.1 * json["mscale_all_dim"].get<double>() * std::log(rope.factor) + 1.0;
  a->scale *= static_cast<float>(m * m);
}

MlpSpec ExpertMlp(JsonReader& r, const Family& f) {
  MlpSpec m;
  m.kind = MlpKind::kExperts;
  const bool mixtral = f.experts == Experts::kMixtral;
  m.intermediate = r.Int(mixtral ? "intermediate_size" : "moe_intermediate_size", 1, kMaxExtent);
  const char* count = r.Has("num_local_experts")  ? "num_local_experts"
                      : r.Has("n_routed_experts") ? "n_routed_experts"
                                                  : "num_experts";
  m.num_experts = r.Int(count, 1, 1024);
  m.top_k = r.Int("num_experts_per_tok", 1, m.num_experts);
  m.normalise = mixtral || r.BoolOr("norm_topk_prob", false);
  if (f.experts != Experts::kDeepSeek) return m;
  m.score = RouterScore::kSigmoid;
  m.correction_bias = true;
  m.num_groups = r.IntOr("n_group", 1, 1, m.num_experts);
  m.top_groups = r.IntOr("topk_group", 1, 1, m.num_groups);
  m.routed_scale = static_cast<float>(r.NumberOr("routed_scaling_factor", 1.0, 0.0, 1e6));
  m.shared_intermediate = m.intermediate * r.IntOr("n_shared_experts", 0, 0, 64);
  if (m.num_experts % m.num_groups != 0)
    r.Refuse("config.json: n_group does not divide n_routed_experts");
  return m;
}

bool IsDense(JsonReader& r, const Family& f, int32_t layer) {
  switch (f.experts) {
    case Experts::kNone:
      return true;
    case Experts::kMixtral:
      return false;
    case Experts::kDeepSeek:
      return layer < r.IntOr("first_k_dense_replace", 0, 0, 4096);
    case Experts::kQwen: {
      if (r.Has("mlp_only_layers")) {
        const Json& list = r.json().at("mlp_only_layers");
        if (list.is_array() && std::find(list.begin(), list.end(), Json(layer)) != list.end())
          return true;
      }
      return (layer + 1) % r.IntOr("decoder_sparse_step", 1, 1, 4096) != 0;
    }
  }
  return true;
}

// The window of a layer: from layer_types if present, else the family's rule.
int32_t WindowOf(JsonReader& r, const Family& f, int32_t layer) {
  if (f.window == Window::kNever || !r.Has("sliding_window")) return 0;
  if (f.window == Window::kIfUsed && !r.BoolOr("use_sliding_window", false)) return 0;
  const int32_t window = r.Int("sliding_window", 1, INT32_MAX);
  if (r.Has("layer_types")) {
    const Json& types = r.json().at("layer_types");
    const auto i = static_cast<size_t>(layer);
    if (!types.is_array() || i >= types.size() || !types[i].is_string()) {
      r.Refuse("config.json: \"layer_types\" has to name every layer");
      return 0;
    }
    return types[i].get<std::string>() == "sliding_attention" ? window : 0;
  }
  if (f.window == Window::kIfUsed && layer < r.IntOr("max_window_layers", 0, 0, 4096)) return 0;
  return window;
}

void ParseTokenIds(JsonReader& r, const char* key, std::vector<TokenId>* out) {
  if (!r.Has(key)) return;
  const Json& v = r.json().at(key);
  const Json list = v.is_array() ? v : Json::array({v});
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
      r.Refuse(fmt::format("{}: \"{}\" has to be a token id or a list of them", r.name(), key));
      return;
    }
    out->push_back(id.get<TokenId>());
  }
}

// Whether an FP8 checkpoint asks for FP8 activations. Scales are computed per row at run time, even
// if the checkpoint has calibrated ones ("static"), which clip values not seen in calibration.
bool AsksForFp8Activations(const Json& json, const std::string& method) {
  if (method != "compressed-tensors") return true;  // fp8 and modelopt: the format is W8A8
  const auto groups = json.find("config_groups");
  if (groups == json.end() || !groups->is_object()) return false;
  return std::any_of(groups->begin(), groups->end(), [](const Json& group) {
    if (!group.is_object()) return false;
    const auto input = group.find("input_activations");
    return input != group.end() && input->is_object() && input->value("num_bits", Json(0)) == 8;
  });
}

Result<QuantSpec> ParseQuant(const Json& config) {
  QuantSpec q;
  if (!config.contains("quantization_config") || config["quantization_config"].is_null()) return q;
  const Json& json = config["quantization_config"];
  if (!json.is_object())
    return InvalidArgument("config.json: \"quantization_config\" has to be an object");
  JsonReader r(json, "config.json: quantization_config");
  const std::string method = r.TextOr("quant_method", ""), algorithm = r.TextOr("quant_algo", ""),
                    format = r.TextOr("format", "");
  if (method == "fp8" && r.Has("weight_block_size")) {
    q.format = QuantFormat::kFp8Block;
    const Json& block = json["weight_block_size"];
    if (!block.is_array() || block.size() != 2 || !block[0].is_number_integer() ||
        !block[1].is_number_integer() || block[0].get<int64_t>() < 1 ||
        block[1].get<int64_t>() < 1 || block[0].get<int64_t>() > kMaxExtent ||
        block[1].get<int64_t>() > kMaxExtent) {
      return InvalidArgument("config.json: weight_block_size has to be two positive numbers");
    }
    q.block_rows = block[0].get<int32_t>();
    q.block_cols = block[1].get<int32_t>();
  } else if (method == "fp8" || (method == "compressed-tensors" && format == "float-quantized") ||
             (method == "modelopt" && algorithm == "FP8")) {
    q.format = QuantFormat::kFp8Channel;
  } else if (method == "modelopt" && algorithm == "NVFP4") {
    q.format = QuantFormat::kNvfp4;
    if (r.IntOr("group_size", 16, 1, 4096) != 16) r.Refuse("config.json: NVFP4 has groups of 16");
  } else {
    return Unimplemented(
        fmt::format("config.json: quantization \"{}\" (algorithm \"{}\", format \"{}\") is not "
                    "supported; the known "
                    "ones are fp8, compressed-tensors float-quantized, modelopt FP8 and NVFP4",
                    Excerpt(method), Excerpt(algorithm), Excerpt(format)));
  }
  q.fp8_activations = q.format != QuantFormat::kNvfp4 && AsksForFp8Activations(json, method);
  AISP_RETURN_IF_ERROR(r.status());
  return q;
}

DType AnnouncedDType(JsonReader& r) {
  const std::string name = r.TextOr("dtype", r.TextOr("torch_dtype", "float32"));
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  return DType::kF32;
}

}  // namespace

KvShape ModelSpec::kv() const {
  const AttentionSpec& a = layers.front().attention;
  return {static_cast<int32_t>(layers.size()), a.num_kv_heads, a.head_dim};
}

std::string KnownArchitectures() {
  std::vector<std::string> names;
  names.reserve(std::size(kFamilies));
  for (const Family& f : kFamilies) names.emplace_back(f.architecture);
  return Join(names, ", ");
}

Result<ModelSpec> ParseModelSpec(std::string_view config_json) {
  AISP_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(config_json, "config.json"));
  AISP_ASSIGN_OR_RETURN(const Family* family, FindFamily(json));
  JsonReader r(json, "config.json");
  ModelSpec spec;
  spec.architecture = std::string(family->architecture);
  spec.hidden = r.Int("hidden_size", 1, kMaxExtent);
  spec.vocabulary = r.Int("vocab_size", 1, kMaxExtent);
  spec.max_position = r.Int("max_position_embeddings", 1, kMaxExtent);
  spec.norm_epsilon = static_cast<float>(r.NumberOr("rms_norm_eps", 1e-6, 0.0, 1.0));
  spec.tied_embeddings = r.BoolOr("tie_word_embeddings", false);
  spec.dtype = AnnouncedDType(r);
  ParseTokenIds(r, "eos_token_id", &spec.eos);
  std::vector<TokenId> bos;
  ParseTokenIds(r, "bos_token_id", &bos);
  if (!bos.empty()) spec.bos = bos[0];
  AISP_RETURN_IF_ERROR(CheckActivation(r));
  if (r.BoolOr("mlp_bias", false))
    return Unimplemented("config.json: mlp_bias true is not supported");
  AISP_ASSIGN_OR_RETURN(spec.rope, ParseRope(r, spec.max_position));
  AISP_ASSIGN_OR_RETURN(spec.quant, ParseQuant(json));

  const int32_t layers = r.Int("num_hidden_layers", 1, 1024);
  AISP_RETURN_IF_ERROR(r.status());
  AttentionSpec attention = family->attention == AttentionKind::kLatent
                                ? LatentAttention(r)
                                : GroupedAttention(r, *family, spec.hidden);
  ScaleForYarn(json, spec.rope, &attention);
  for (int32_t i = 0; i < layers && r.status(); ++i) {
    LayerSpec layer;
    layer.attention = attention;
    layer.attention.window = WindowOf(r, *family, i);
    if (IsDense(r, *family, i)) {
      layer.mlp.intermediate = r.Int("intermediate_size", 1, kMaxExtent);
    } else {
      layer.mlp = ExpertMlp(r, *family);
    }
    spec.layers.push_back(layer);
  }
  AISP_RETURN_IF_ERROR(r.status());
  return spec;
}

Result<ModelSpec> LoadModelSpec(const std::string& directory) {
  const bool is_file = directory.ends_with(".json");
  AISP_ASSIGN_OR_RETURN(const std::string text,
                        ReadTextFile(is_file ? directory : directory + "/config.json"));
  auto spec = ParseModelSpec(text);
  if (!spec) return tl::unexpected(spec.error().WithContext(directory));
  return spec;
}

}  // namespace aisp
