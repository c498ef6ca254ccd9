#include "model/eagle_spec.h"

#include <fmt/format.h>

#include "model/files.h"
#include "model/json_reader.h"

namespace aisp {
namespace {

constexpr const char* kLayerIds = "eagle_aux_hidden_state_layer_ids";

// At the top level of config.json or, in some files, in an object of its own.
const Json* FindLayerIds(const Json& json) {
  if (json.contains(kLayerIds)) return &json.at(kLayerIds);
  const auto inner = json.find("eagle_config");
  if (inner == json.end() || !inner->is_object() || !inner->contains(kLayerIds)) return nullptr;
  return &inner->at(kLayerIds);
}

Result<std::vector<int32_t>> FeatureLayers(const Json& json, const ModelSpec& target) {
  const auto layers = static_cast<int32_t>(target.layers.size());
  const Json* const ids = FindLayerIds(json);
  if (ids == nullptr) {
    if (layers < 4) {
      return InvalidArgument(
          fmt::format("config.json: \"{}\" is missing, and the target's {} layers have no low, "
                      "middle and high one",
                      kLayerIds, layers));
    }
    return std::vector<int32_t>{2, layers / 2, layers - 3};
  }
  std::vector<int32_t> out;
  for (const Json& id : ids->is_array() ? *ids : Json::array({*ids})) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > layers) {
      return InvalidArgument(fmt::format("config.json: \"{}\" has {}; the target has {} layers",
                                         kLayerIds, id.dump().substr(0, 60), layers));
    }
    out.push_back(id.get<int32_t>());
  }
  if (out.empty() || out.size() > 16) {
    return InvalidArgument(fmt::format("config.json: \"{}\" names {} layers; 1 to 16 are possible",
                                       kLayerIds, out.size()));
  }
  return out;
}

Status CheckTarget(const EagleSpec& spec, const ModelSpec& target) {
  const auto refuse = [](std::string_view what, int32_t have, int32_t want) {
    return InvalidArgument(
        fmt::format("config.json: {} is {}, and the target's is {}", what, have, want));
  };
  // The head uses the target's embeddings, so the widths must be equal.
  if (spec.layer.hidden != target.hidden)
    return refuse("hidden_size", spec.layer.hidden, target.hidden);
  if (spec.target_hidden != target.hidden)
    return refuse("target_hidden_size", spec.target_hidden, target.hidden);
  if (spec.layer.vocabulary != target.vocabulary)
    return refuse("vocab_size", spec.layer.vocabulary, target.vocabulary);
  return {};
}

}  // namespace

Result<EagleSpec> ParseEagleSpec(std::string_view config_json, const ModelSpec& target) {
  AISP_ASSIGN_OR_RETURN(Json json, ParseJsonObject(config_json, "config.json"));
  if (json.contains("medusa_num_heads")) {
    return InvalidArgument(
        "config.json: medusa_num_heads: these are Medusa heads and no EAGLE-3 head; their method "
        "is "
        "\"medusa\"");
  }
  // Heads use various architecture names; the layer is always a Llama layer.
  json["architectures"] = Json::array({"LlamaForCausalLM"});
  EagleSpec spec;
  AISP_ASSIGN_OR_RETURN(spec.layer, ParseModelSpec(json.dump()));
  if (spec.layer.layers.size() != 1) {
    return Unimplemented(fmt::format("config.json: num_hidden_layers is {}; a head has one",
                                     spec.layer.layers.size()));
  }
  if (spec.layer.quant.format != QuantFormat::kNone)
    return Unimplemented("config.json: a quantised EAGLE-3 head is not supported");
  JsonReader r(json, "config.json");
  spec.target_hidden = r.IntOr("target_hidden_size", spec.layer.hidden, 1, 1 << 24);
  spec.draft_vocabulary =
      r.IntOr("draft_vocab_size", spec.layer.vocabulary, 1, spec.layer.vocabulary);
  AISP_RETURN_IF_ERROR(r.status());
  AISP_RETURN_IF_ERROR(CheckTarget(spec, target));
  AISP_ASSIGN_OR_RETURN(spec.feature_layers, FeatureLayers(json, target));
  return spec;
}

Result<EagleSpec> LoadEagleSpec(const std::string& directory, const ModelSpec& target) {
  const bool is_file = directory.ends_with(".json");
  AISP_ASSIGN_OR_RETURN(const std::string text,
                        ReadTextFile(is_file ? directory : directory + "/config.json"));
  auto spec = ParseEagleSpec(text, target);
  if (!spec) return tl::unexpected(spec.error().WithContext(directory));
  return spec;
}

}  // namespace aisp
