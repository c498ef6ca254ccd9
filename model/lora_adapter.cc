#include "model/lora_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "common/hash.h"
#include "common/strings.h"
#include "model/files.h"
#include "model/json_reader.h"
#include "model/weights.h"

namespace aisp {
namespace {

constexpr int32_t kMaxRank = 4096;

bool IsEmpty(const Json& value) {
  return value.is_null() || value == false || value.empty() || value == "none" || value == "";
}

// Options that change the computation and are unsupported here.
constexpr std::array kNotApplied = {
    "use_dora",
    "use_qalora",
    "lora_bias",
    "rank_pattern",
    "alpha_pattern",
    "modules_to_save",
    "bias",
    "fan_in_fan_out",
    "trainable_token_indices",
    "layer_replication",
    "target_parameters",
    "alora_invocation_tokens",
    "arrow_config",
    "monteclora_config",
};

// Initialisations that leave the base model's weights unchanged.
bool KeepsBase(const Json& init) {
  return init.is_boolean() || init == "gaussian" || init == "eva" || init == "orthogonal";
}

// Also in bf16, the GPU's format of factors. Kernels multiply rows of other adapters by zero, and
// only finite factors then give zero.
bool AllFinite(const TensorView& tensor, float scale) {
  constexpr float kMost = 3.38e38f;
  std::vector<float> values(static_cast<size_t>(tensor.rows() * tensor.cols()));
  ReadFloats(tensor, values);
  return std::all_of(values.begin(), values.end(), [&](float v) {
    return std::abs(v) <= kMost && std::abs(v * scale) <= kMost;  // false for NaN
  });
}

struct TensorName {
  std::string module;
  bool up = false;
};

// Parses "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"; nullopt for other names.
std::optional<TensorName> ReadName(std::string_view name) {
  constexpr std::string_view kPrefix = "base_model.model.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  for (const std::string_view suffix : {".lora_A.weight", ".lora_B.weight"}) {
    if (!name.ends_with(suffix)) continue;
    name.remove_suffix(suffix.size());
    return TensorName{std::string(name), suffix == ".lora_B.weight"};
  }
  return std::nullopt;
}

}  // namespace

Result<LoraConfig> ParseLoraConfig(std::string_view text, const std::string& file) {
  AISP_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text, file));
  JsonReader r(json, file);
  const std::string type = r.TextOr("peft_type", "LORA");
  if (r.status() && type != "LORA") {
    return Unimplemented(
        fmt::format("{}: peft_type is \"{}\"; LORA alone is supported", file, Excerpt(type)));
  }
  for (const char* option : kNotApplied) {
    if (!json.contains(option) || IsEmpty(json[option])) continue;
    return Unimplemented(fmt::format("{}: \"{}\" is {}, which is not supported", file, option,
                                     Excerpt(json[option].dump())));
  }
  if (r.Has("init_lora_weights") && !KeepsBase(json["init_lora_weights"])) {
    return Unimplemented(fmt::format(
        "{}: \"init_lora_weights\" is {}: such an adapter belongs to changed base weights; save it "
        "converted to plain LoRA (PEFT: path_initial_model_for_weight_conversion)",
        file, Excerpt(json["init_lora_weights"].dump())));
  }
  LoraConfig out;
  out.rank = r.Int("r", 1, kMaxRank);
  const double alpha = r.Number("lora_alpha", -1e6, 1e6);
  const bool by_root = r.BoolOr("use_rslora", false);
  AISP_RETURN_IF_ERROR(r.status());
  out.scale = static_cast<float>(alpha / (by_root ? std::sqrt(out.rank) : out.rank));
  return out;
}

Result<std::shared_ptr<const LoraAdapter>> LoraAdapter::Load(const std::string& name,
                                                             const std::string& folder,
                                                             int32_t max_rank) {
  const std::string config = folder + "/adapter_config.json";
  const std::string tensors = folder + "/adapter_model.safetensors";
  AISP_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(config));
  AISP_ASSIGN_OR_RETURN(std::vector<std::byte> file, ReadBytes(tensors));
  std::shared_ptr<LoraAdapter> adapter(new LoraAdapter(name, std::move(file)));
  AISP_ASSIGN_OR_RETURN(adapter->config_, ParseLoraConfig(text, config));
  if (adapter->config_.rank > max_rank) {
    return InvalidArgument(
        fmt::format("{}: the rank is {}, and at most {} is allowed; raise "
                    "--max-lora-rank",
                    config, adapter->config_.rank, max_rank));
  }
  AISP_RETURN_IF_ERROR(adapter->TakeMatrices(tensors));
  const std::string both =
      HashBytes(text).ToHex() + HashBytes(std::span<const std::byte>(adapter->file_)).ToHex();
  adapter->digest_ = HashBytes(both).ToHex();
  return std::shared_ptr<const LoraAdapter>(std::move(adapter));
}

Status LoraAdapter::TakeMatrices(const std::string& path) {
  AISP_ASSIGN_OR_RETURN(const auto stored, ParseSafetensors(file_, path));
  for (const auto& [tensor, each] : stored) {
    const std::optional<TensorName> name = ReadName(tensor);
    if (!name) {
      return Unimplemented(
          fmt::format("{}: tensor \"{}\" is not one of base_model.model.MODULE.lora_A.weight and "
                      "lora_B.weight, and nothing else is applied",
                      path, Excerpt(tensor)));
    }
    AISP_ASSIGN_OR_RETURN(const TensorView view, ViewOf(each, tensor));
    const bool float_like =
        view.dtype == DType::kF32 || view.dtype == DType::kBF16 || view.dtype == DType::kF16;
    const int64_t rank = view.rank == 2 ? view.shape[name->up ? 1 : 0] : -1;
    if (!float_like || rank != config_.rank) {
      return InvalidArgument(
          fmt::format("{}: tensor \"{}\" is {} with shape [{}]; f32, bf16 or f16 with the "
                      "configured rank of {} "
                      "as its {} extent are expected",
                      path, Excerpt(tensor), each.dtype, fmt::join(each.shape, ", "), config_.rank,
                      name->up ? "second" : "first"));
    }
    if (!AllFinite(view, name->up ? config_.scale : 1.0f)) {
      return InvalidArgument(
          fmt::format("{}: tensor \"{}\" has values that are not finite, or none in bf16", path,
                      Excerpt(tensor)));
    }
    Matrix& matrix = matrices_[name->module];
    (name->up ? matrix.up : matrix.down) = view;
  }
  if (matrices_.empty()) return InvalidArgument(path + ": no tensors");
  for (const auto& [module, matrix] : matrices_) {
    if (matrix.up.data == nullptr || matrix.down.data == nullptr) {
      return InvalidArgument(fmt::format("{}: module \"{}\" has lora_{} and no lora_{}", path,
                                         Excerpt(module), matrix.up.data != nullptr ? "B" : "A",
                                         matrix.up.data != nullptr ? "A" : "B"));
    }
  }
  return {};
}

}  // namespace aisp
